"""Scripted players for tests, and actions for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from algorithm.adapters.unity.client import UnityClient, api
from tests.unity_player.launcher import make_player


def start(folder: Path, task: str, *flags: str, limit: float = 5.0, start_limit: float = 20.0, **how) -> UnityClient:
    """Start a player and return its client."""
    program = make_player(folder, task, *flags)
    return UnityClient(program, port=0, start_limit=start_limit, limit=limit, **how)


def act(client: UnityClient, choose=None) -> None:
    """Step with the actions of `choose(name, DecisionSteps)`, or with zeros."""
    for name, spec in client.behavior_specs.items():
        waiting, _ = client.get_steps(name)
        agents, actions = len(waiting), spec.action_spec
        action = choose(name, waiting) if choose else None
        client.set_actions(
            name,
            action
            or api.ActionTuple(
                np.zeros((agents, actions.continuous_size), np.float32),
                np.zeros((agents, actions.discrete_size), np.int32),
            ),
        )
    client.step()
