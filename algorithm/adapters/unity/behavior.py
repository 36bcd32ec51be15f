"""One behavior of a scene: what its sensors and actions are to an agent, and its steps as plain arrays."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from algorithm.adapters.unity.lanes import Batch
from algorithm.specs import ACTION_MASK, ActionSpec, ObsSpec

TEAM = re.compile(r"\?team=(\d+)$")


@dataclass(frozen=True)
class Offer:
    """What the agents of a behavior observe and do."""

    obs_specs: dict[str, ObsSpec]
    action_spec: ActionSpec


def role_name(behavior: str) -> str:
    """`Name` for `Name?team=0`, `Name-team1` for `Name?team=1`; what no file name should hold becomes `_`."""
    name = TEAM.sub(lambda team: "" if int(team[1]) == 0 else f"-team{team[1]}", behavior)
    return re.sub(r"[^\w .-]", "_", name)


def agent_name(behavior: str) -> str:
    """Return the name of the agent that plays all teams of a behavior: `Name` for `Name?team=0` and `Name?team=1`."""
    return role_name(TEAM.sub("", behavior))


class Behavior:
    """Reads the steps of one behavior by the specification that the scene gave of it.

    Sensors keep their names; one without a name of its own is `sensor_<place>`. Vectors are float32, sequences of
    variable length one vector with zeros behind them, images [channels, rows, columns]: bytes where they are sent
    `compressed`, one truth for each sensor.
    """

    def __init__(self, spec: Any, compressed: Sequence[bool]):
        self._discrete = tuple(spec.action_spec.discrete_branches)
        action = ActionSpec(int(spec.action_spec.continuous_size), self._discrete)
        names = [sensor.name for sensor in spec.observation_specs]
        self._names = [
            name if name and names.count(name) == 1 and name != ACTION_MASK else f"sensor_{place}"
            for place, name in enumerate(names)
        ]
        specs = {
            name: _obs_spec(tuple(sensor.shape), of_bytes)
            for name, sensor, of_bytes in zip(self._names, spec.observation_specs, compressed, strict=True)
        }
        if action.branches:
            specs[ACTION_MASK] = ObsSpec((sum(action.branches),), "uint8")
        self.offer = Offer(specs, action)

    def decided(self, steps: Any) -> Batch:
        """Those that await a decision."""
        return self._batch(steps, np.zeros(len(steps), bool), steps.action_mask)

    def ended(self, steps: Any) -> Batch:
        """Those whose episode ended."""
        return self._batch(steps, np.array(steps.interrupted, bool), None)

    def actions(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[n, size] as the client takes them: numbers [n, continuous] float32 and branches [n, branches] int32."""
        numbers = self.offer.action_spec.continuous
        return np.clip(actions[:, :numbers], -1, 1), actions[:, numbers:].astype(np.int32)

    def _batch(self, steps: Any, interrupted: np.ndarray, forbidden: list[np.ndarray] | None) -> Batch:
        obs = {}
        for name, values in zip(self._names, steps.obs, strict=True):
            spec = self.offer.obs_specs[name]
            numbers = np.rint(255 * values) if spec.dtype == "uint8" else values
            obs[name] = np.asarray(numbers, spec.dtype).reshape(len(steps), *spec.shape)
        if self._discrete:
            obs[ACTION_MASK] = self._allowed(len(steps), forbidden)
        reward = np.asarray(steps.reward, np.float32) + np.asarray(steps.group_reward, np.float32)
        return Batch(np.asarray(steps.agent_id, np.int64), obs, reward, interrupted)

    def _allowed(self, agents: int, forbidden: list[np.ndarray] | None) -> np.ndarray:
        """[n, sum of branches]: the scene says what is forbidden, an observation what is allowed."""
        if forbidden is None:
            return np.ones((agents, sum(self._discrete)), np.uint8)
        return (~np.concatenate(forbidden, -1)).astype(np.uint8)


def _obs_spec(shape: tuple[int, ...], of_bytes: bool) -> ObsSpec:
    """Of one sensor: rank 1 is a vector, 2 a sequence of variable length, 3 an image."""
    if len(shape) == 3 and of_bytes:
        return ObsSpec(shape, "uint8", high=255.0)
    if len(shape) == 2:
        return ObsSpec((prod(shape),), env_shape=shape)
    return ObsSpec(shape)
