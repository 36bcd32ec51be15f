"""Checkpoints: their files, how they are written, and how they are read."""
