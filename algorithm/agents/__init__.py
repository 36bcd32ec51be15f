"""Algorithms: how an agent acts, its losses, and what it does after a step. Nothing else."""
