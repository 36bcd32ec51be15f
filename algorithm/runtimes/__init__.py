"""Runtimes: ways to run the parts of a training run."""
