"""Samara: actor-critic agents with experience replay on any simulator.

`train` trains an agent, `load` returns a trained one, `Callback` receives the events of a run,
`read_demonstrations` returns the episodes of a recording.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.2.0"
__all__ = ["Callback", "RunResult", "TrainedAgent", "__version__", "load", "read_demonstrations", "train"]

if TYPE_CHECKING:
    from algorithm.api import train
    from algorithm.parts.demonstrations import read_demonstrations
    from algorithm.runs.callbacks import Callback, RunResult
    from algorithm.runs.trained_agent import TrainedAgent, load

_MODULES = {
    "train": "algorithm.api",
    "Callback": "algorithm.runs.callbacks",
    "RunResult": "algorithm.runs.callbacks",
    "TrainedAgent": "algorithm.runs.trained_agent",
    "load": "algorithm.runs.trained_agent",
    "read_demonstrations": "algorithm.parts.demonstrations",
}


def __getattr__(name: str) -> object:
    """Import a name on first use, so that importing a sub-package imports nothing else."""
    if name not in _MODULES:
        raise AttributeError(f"module 'algorithm' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)
