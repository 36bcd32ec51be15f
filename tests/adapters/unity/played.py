"""Scripted players for tests, and actions for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from algorithm.adapters.unity.client import UnityClient
from algorithm.adapters.unity.scene_tick import SceneTick
from tests.unity_player.launcher import make_player


def start(folder: Path, task: str, *flags: str, limit: float = 5.0, start_limit: float = 20.0, **how) -> UnityClient:
    """Start a player and return its client."""
    program = make_player(folder, task, *flags)
    return UnityClient(program, port=0, start_limit=start_limit, limit=limit, **how)


def act(client: UnityClient, tick: SceneTick) -> SceneTick:
    """Step with zeros as actions, and return the next tick."""
    specs = client.agent_specs
    return client.step(
        {
            name: np.zeros((len(decisions), specs[name].action_spec.size))
            for name, (decisions, _) in tick.batches.items()
        }
    )
