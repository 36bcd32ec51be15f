"""Observations to features, one encoder per observation."""
