"""A run that trackers open."""

from algorithm.tracking.trackers import TrackedRun


def make_run(folder, **changes) -> TrackedRun:
    """Return a new run in a run folder, offline."""
    values = {
        "folder": folder,
        "runs": folder.parent,
        "name": "gym/cartpole/first",
        "project": "samara",
        "group": None,
        "settings": {"acer_config.gamma": 0.9, "base_config.env_wrappers": [], "goal": None},
        "config": "",
        "env_steps": 0,
        "suffixes": ("",),
        "online": False,
        "address": None,
    }
    return TrackedRun(**{**values, **changes})
