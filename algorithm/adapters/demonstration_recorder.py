"""A wrapper of an adapter that records complete episodes as demonstrations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from algorithm.adapters.adapter import Adapter
from algorithm.adapters.wrappers import AdapterWrapper
from algorithm.demonstrations import Demonstrations
from algorithm.rollout import Step
from algorithm.specs import Role, drop_team


class DemonstrationRecorder(AdapterWrapper):
    """A wrapper that keeps every episode that is played to its end, as each agent observes it without its team."""

    def __init__(self, inner: Adapter):
        self._inner = inner
        self._steps: dict[str, Step] = {}  # the last Step of each role, whose actions are next
        self._rows: dict[tuple[str, int], list[dict[str, Any]]] = {}  # of the running episode of each role and lane
        self._ended: dict[str, list[tuple[int, list[dict[str, Any]]]]] = {}  # lane and rows of each episode

    def reset(self, seed: int) -> dict[str, Step]:
        self._rows.clear()
        return self._keep(super().reset(seed))

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        for role, step in self._steps.items():
            for row, lane in enumerate(step.lane):
                episode = self._rows.setdefault((role, lane), [])
                if not step.is_bootstrap_row[row] and (episode or step.first[row]):  # or its first rows are unknown
                    episode.append(_make_row(step, row, actions[role][row].copy()))
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
                episode[-1] |= {"reward": step.reward[row], "alive": step.alive[row]}
                if step.is_bootstrap_row[row]:
                    episode.append(_make_row(step, row, np.zeros_like(episode[-1]["action"])))
                if step.first[row] or step.is_bootstrap_row[row]:
                    self._ended.setdefault(role, []).append((int(lane), self._rows.pop((role, lane))))
        self._steps = {role: Step.from_arrays(_copy(step.to_arrays())) for role, step in steps.items()}
        return steps

    def collect(self, counted: Mapping[str, Sequence[int]] | None = None) -> dict[str, Demonstrations]:
        """Return the episodes that have ended so far, by role; roles without one are missing.

        Args:
            counted: {role or team: lane of each episode that an evaluation has counted}. Only these are returned: lanes
                with short episodes have played more. None: all are returned.
        """
        return {
            role: _stack(self.roles[role], rows)
            for role, ended in self._ended.items()
            if (rows := [row for episode in self._select(role, ended, counted) for row in episode])
        }

    def _select(
        self, role: str, ended: list[tuple[int, list[dict[str, Any]]]], counted: Mapping[str, Sequence[int]] | None
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows of the episodes of a role that `collect` returns."""
        kept: Counter[int] = Counter()
        for lane, rows in ended:
            lanes = None if counted is None else counted.get(self.roles[role].find_team(lane) or role, ())
            if lanes is None or (_is_valid(rows) and kept[lane] < lanes.count(lane)):
                kept[lane] += 1
                yield rows


def _make_row(step: Step, row: int, action: np.ndarray) -> dict[str, Any]:
    """Return a row of an episode, without the consequence of its action."""
    obs = {name: values[row] for name, values in drop_team(step.obs).items()}
    flags = {"first": step.first[row], "is_bootstrap_row": step.is_bootstrap_row[row]}
    return {"obs": obs, "action": action, **flags, "reward": np.float32(0), "alive": np.True_}


def _is_valid(rows: list[dict[str, Any]]) -> bool:
    """Return whether an episode has neither NaN nor infinity in a row that is learned from."""
    if rows[-1]["is_bootstrap_row"] and not rows[-2]["alive"]:
        rows = rows[:-1]  # the observation after a termination
    return all(np.isfinite(value).all() for row in rows for value in (row["reward"], *row["obs"].values()))


def _copy(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values.copy() for name, values in arrays.items()}


def _stack(role: Role, rows: list[dict[str, Any]]) -> Demonstrations:
    obs_specs = drop_team(role.obs_specs)
    obs = {name: np.stack([row["obs"][name] for row in rows]) for name in obs_specs}
    fields = {name: np.stack([row[name] for row in rows]) for name in rows[0] if name != "obs"}
    return Demonstrations(role=replace(role.with_lanes(1), obs_specs=obs_specs), obs=obs, **fields)
