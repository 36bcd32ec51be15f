"""Unity adapters of the scripted player."""

from __future__ import annotations

from pathlib import Path

from algorithm.adapters.adapter import EnvConfig
from algorithm.adapters.unity.adapter import UnityAdapter
from tests.unity_player.launcher import make_player

SECTION = {
    "base_port": None,
    "agents": None,
    "no_graphics": False,
    "time_scale": 20,
    "quality_level": 1,
    "width": 84,
    "height": 84,
    "target_frame_rate": -1,
    "capture_frame_rate": 60,
    "additional_args": [],
    "log_folder": None,
    "timeout_wait": 20.0,
}


def make_config(path: Path | None, copies: int = 1, parameters=None, ended=None, **section) -> EnvConfig:
    """Return the configuration of a player, or of the editor for None; `section` changes `unity_args`."""
    build_path = "editor" if path is None else str(path)
    return EnvConfig(
        name="",
        n_envs=copies,
        section={"build_path": build_path, **SECTION, **section},
        parameters=parameters,
        on_episode_end=ended,
    )


def make_scenes(folder: Path, task: str, *flags: str, **config) -> UnityAdapter:
    """Return an adapter of a task of the scripted player, whose program is written to `folder`."""
    return UnityAdapter(make_config(make_player(folder, task, *flags), **config))
