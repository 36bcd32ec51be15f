"""Suggested settings for an environment, from its spaces and a short trial."""
