"""Samara: actor-critic agents with experience replay on any simulator."""

__version__ = "0.1.0"


def __getattr__(name: str):
    """Find `load` on first use, so that importing a sub-package imports nothing else."""
    if name == "load":
        from algorithm.runs.trained_agent import load

        return load
    raise AttributeError(f"module 'algorithm' has no attribute {name!r}")
