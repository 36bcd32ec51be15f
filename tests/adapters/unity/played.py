"""Scripted players for tests, adapters of them, and actions for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import yaml

from algorithm.adapters.adapter import EnvConfig
from algorithm.adapters.scenes.scene import SceneTick
from algorithm.adapters.unity.adapter import UnityAdapter
from algorithm.adapters.unity.client import UnityClient
from tests.adapters.configs import opened
from tests.unity_player.launcher import ROOT, make_player

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
DEFAULTS = yaml.safe_load((ROOT / "default_config.yaml").read_text())
SECTION = {**DEFAULTS["base_config"]["unity_args"], "agents": None, "no_graphics": False, "timeout_wait": 20.0}


def start(folder: Path, task: str, *flags: str, limit: float = 5.0, start_limit: float = 20.0, **how) -> UnityClient:
    """Start a player and return its client."""
    program = make_player(folder, task, *flags)
    return UnityClient(program, port=0, start_limit=start_limit, limit=limit, **how)


def act(client: UnityClient, tick: SceneTick) -> SceneTick:
    """Step with zeros as actions, and return the next tick."""
    sizes = {name: role.action_spec.size for name, role in client.roles.items()}
    return client.step({name: np.zeros((len(asked), sizes[name])) for name, (asked, _) in tick.batches.items()})


def press_play(port: int, task: str, *flags: str) -> subprocess.Popen:
    """Start a player that connects to a trainer, as the editor does."""
    command = [sys.executable, "-m", "tests.unity_player", task, "--mlagents-port", str(port), *flags]
    return subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.DEVNULL)


def make_config(path: Path | None, copies: int = 1, parameters=None, ended=None, **section) -> EnvConfig:
    """Return the configuration of a player, or of the editor for None; `section` changes `unity_args`."""
    build_path = "editor" if path is None else str(path)
    return EnvConfig(
        name="",
        n_envs=copies,
        section={**SECTION, "build_path": build_path, **section},
        parameters=parameters,
        on_episode_end=ended,
    )


def make_scenes(folder: Path, task: str, *flags: str, **config) -> UnityAdapter:
    """Return an adapter of a task of the scripted player, whose program is written to `folder`."""
    return opened(UnityAdapter(make_config(make_player(folder, task, *flags), **config)))
