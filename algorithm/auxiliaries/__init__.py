"""Auxiliary rewards and losses, which can be added to any agent."""
