"""Explorers, which replace the actions of an agent while experience is collected."""
