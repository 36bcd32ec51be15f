"""Unity adapters on the scripted player."""

from __future__ import annotations

from pathlib import Path

from algorithm.adapters.unity.adapter import UnityAdapter
from algorithm.adapters.unity.curriculum import SceneParameters
from algorithm.adapters.unity.launch import EngineSettings, LaunchConfig
from tests.unity_player.launcher import make_player

ENGINE = EngineSettings(
    time_scale=20, quality_level=1, width=84, height=84, target_frame_rate=-1, capture_frame_rate=60
)


def launch_of(path: Path | None, **changes) -> LaunchConfig:
    """A player, or the editor for None; with graphics unless told otherwise."""
    given = {
        "path": None if path is None else str(path),
        "port": None,
        "no_graphics": False,
        "timeout": 20.0,
        "additional_args": (),
        "log_folder": None,
        "engine": ENGINE,
    }
    return LaunchConfig(**{**given, **changes})


def scene_of(folder: Path, task: str, *flags: str, copies: int = 1, agents=None, scene=None, ended=None, **changes):
    """An adapter of so many copies of a task of the scripted player, whose program is written to `folder`."""
    launch = launch_of(make_player(folder, task, *flags), **changes)
    return UnityAdapter(launch, copies, agents, scene or SceneParameters({}), ended)
