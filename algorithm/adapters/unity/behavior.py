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

TEAM_SUFFIX = re.compile(r"\?team=(\d+)$")


@dataclass(frozen=True)
class AgentSpecs:
    """What the agents of a behavior observe and do."""

    obs_specs: dict[str, ObsSpec]
    action_spec: ActionSpec


def get_role_name(behavior: str) -> str:
    """`EnvName` for `Name?team=0`, `Name-team1` for `Name?team=1`; what no file name should hold becomes `_`."""
    name = TEAM_SUFFIX.sub(lambda team: "" if int(team[1]) == 0 else f"-team{team[1]}", behavior)
    return re.sub(r"[^\w .-]", "_", name)


def get_agent_name(behavior: str) -> str:
    """Return the name of the agent that plays all teams of a behavior: `EnvName` for `Name?team=0` and `Name?team=1`."""
    return get_role_name(TEAM_SUFFIX.sub("", behavior))


class BehaviorReader:
    """Reads the steps of one behavior by the specification that the scene gave of it.

    Sensors keep their names; one without a name of its own is `sensor_<place>`. Vectors are float32, sequences of
    variable length one vector with zeros behind them, images [channels, rows, columns]: bytes where they are sent
    `compressed`, one truth for each sensor.
    """

    def __init__(self, spec: Any, compressed: Sequence[bool]):
        self._branches = tuple(spec.action_spec.discrete_branches)
        action = ActionSpec(int(spec.action_spec.continuous_size), self._branches)
        names = [sensor.name for sensor in spec.observation_specs]
        self._names = [
            name if name and names.count(name) == 1 and name != ACTION_MASK else f"sensor_{index}"
            for index, name in enumerate(names)
        ]
        specs = {
            name: _make_obs_spec(tuple(sensor.shape), is_bytes)
            for name, sensor, is_bytes in zip(self._names, spec.observation_specs, compressed, strict=True)
        }
        if action.branches:
            specs[ACTION_MASK] = ObsSpec((sum(action.branches),), "uint8")
        self.agent_specs = AgentSpecs(specs, action)

    def read_decisions(self, steps: Any) -> Batch:
        """Those that await a decision."""
        return self._read_batch(steps, np.zeros(len(steps), bool), steps.action_mask)

    def read_terminals(self, steps: Any) -> Batch:
        """Those whose episode ended."""
        return self._read_batch(steps, np.array(steps.interrupted, bool), None)

    def to_unity_actions(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[n, size] as the client takes them: numbers [n, continuous] float32 and branches [n, branches] int32."""
        n_continuous = self.agent_specs.action_spec.continuous
        return np.clip(actions[:, :n_continuous], -1, 1), actions[:, n_continuous:].astype(np.int32)

    def _read_batch(self, steps: Any, interrupted: np.ndarray, masks: list[np.ndarray] | None) -> Batch:
        obs = {}
        for name, values in zip(self._names, steps.obs, strict=True):
            spec = self.agent_specs.obs_specs[name]
            array = np.rint(255 * values) if spec.dtype == "uint8" else values
            obs[name] = np.asarray(array, spec.dtype).reshape(len(steps), *spec.shape)
        if self._branches:
            obs[ACTION_MASK] = self._read_masks(len(steps), masks)
        reward = np.asarray(steps.reward, np.float32) + np.asarray(steps.group_reward, np.float32)
        return Batch(np.asarray(steps.agent_id, np.int64), obs, reward, interrupted)

    def _read_masks(self, agents: int, masks: list[np.ndarray] | None) -> np.ndarray:
        """[n, sum of branches]: the scene says what is forbidden, an observation what is allowed."""
        if masks is None:
            return np.ones((agents, sum(self._branches)), np.uint8)
        return (~np.concatenate(masks, -1)).astype(np.uint8)


def _make_obs_spec(shape: tuple[int, ...], is_bytes: bool) -> ObsSpec:
    """Of one sensor: rank 1 is a vector, 2 a sequence of variable length, 3 an image."""
    if len(shape) == 3 and is_bytes:
        return ObsSpec(shape, "uint8", high=255.0)
    if len(shape) == 2:
        return ObsSpec((prod(shape),), env_shape=shape)
    return ObsSpec(shape)
