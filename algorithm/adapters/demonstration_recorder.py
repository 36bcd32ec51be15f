"""A wrapper of an adapter that records complete episodes as demonstrations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from algorithm.adapters.adapter import Adapter
from algorithm.adapters.wrappers import AdapterWrapper
from algorithm.demonstrations import Demonstrations
from algorithm.rollout import Step
from algorithm.specs import Role


class DemonstrationRecorder(AdapterWrapper):
    """A wrapper that keeps every episode that is played to its end."""

    def __init__(self, inner: Adapter):
        self._inner = inner
        self._steps: dict[str, Step] = {}  # the last Step of each role, whose actions are next
        self._rows: dict[tuple[str, int], list[dict[str, Any]]] = {}  # of the running episode of each role and lane
        self._ended: dict[str, list[dict[str, Any]]] = {}  # rows of the episodes of each role that have ended

    def reset(self, seed: int) -> dict[str, Step]:
        self._rows.clear()
        return self._keep(super().reset(seed))

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        for role, step in self._steps.items():
            for row, lane in enumerate(step.lane):
                episode = self._rows.setdefault((role, lane), [])
                if not episode and not step.first[row]:
                    continue  # its first rows are unknown
                obs = {name: values[row] for name, values in step.obs.items()}
                flags = {"first": step.first[row], "is_bootstrap_row": step.is_bootstrap_row[row]}
                nothing = {"reward": np.float32(0), "alive": np.True_}
                episode.append({"obs": obs, "action": actions[role][row].copy(), **flags, **nothing})
        super().send(actions)

    def receive(self) -> dict[str, Step]:
        return self._keep(super().receive())

    def _keep(self, steps: dict[str, Step]) -> dict[str, Step]:
        """Complete the rows before these Steps, and keep the Steps."""
        for role, step in steps.items():
            for row, lane in enumerate(step.lane):
                episode = self._rows.get((role, lane))
                if not episode:
                    continue
                if not episode[-1]["is_bootstrap_row"]:
                    episode[-1] |= {"reward": step.reward[row], "alive": step.alive[row]}
                if step.first[row]:
                    self._ended.setdefault(role, []).extend(self._rows.pop((role, lane)))
        self._steps = {role: Step.from_arrays(_copy(step.to_arrays())) for role, step in steps.items()}
        return steps

    def collect(self) -> dict[str, Demonstrations]:
        """Return the episodes that have ended so far, by role; roles without one are missing."""
        return {role: _stack(self.roles[role], rows) for role, rows in self._ended.items()}


def _copy(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values.copy() for name, values in arrays.items()}


def _stack(role: Role, rows: list[dict[str, Any]]) -> Demonstrations:
    obs = {name: np.stack([row["obs"][name] for row in rows]) for name in role.obs_specs}
    fields = {name: np.stack([row[name] for row in rows]) for name in rows[0] if name != "obs"}
    return Demonstrations(role=role.with_lanes(1), obs=obs, **fields)
