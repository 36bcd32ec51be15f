"""Runs: run folders, their settings, training, resuming, playing, results and trained agents."""
