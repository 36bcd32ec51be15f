"""Exploration in addition to an agent's own: explorers replace its actions while experience is collected."""
