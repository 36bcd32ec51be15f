"""Algorithms: an agent selects actions, computes losses, and updates its target networks after an optimizer step."""
