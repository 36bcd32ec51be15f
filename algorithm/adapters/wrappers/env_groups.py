"""Groups of environments that take turns: while the agent decides for one group, the others step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from algorithm.adapters.adapter import Adapter, EnvConfig, UnsupportedEnvironment
from algorithm.rollout import Step, merge_steps


class EnvGroups(Adapter):
    """An adapter whose environments are divided into groups that take turns, each with its own adapter.

    `reset` returns the Step of all lanes. After that, `send` starts the step of the lanes of the last Step, and
    `receive` returns the Step of the group that has been stepping for the longest time, while the others continue to
    step. The environments have the lanes and the seeds that they have without groups.

    Args:
        make: A function that returns an adapter for a configuration; its `supports_groups` must be true.
        config: The configuration of all environments.
        n_groups: Number of groups, at most the number of environments.

    Raises:
        UnsupportedEnvironment: The environments cannot step while the agent decides, or `make` raised this error.
        EnvironmentStartError: `make` raised this error.
    """

    def __init__(self, make: Callable[[EnvConfig], Adapter], config: EnvConfig, n_groups: int):
        bounds = [config.n_envs * number // n_groups for number in range(n_groups + 1)]
        self._lanes = [slice(start, end) for start, end in pairwise(bounds)]  # of each group
        self._groups: list[Adapter] = []
        try:
            for lanes in self._lanes:
                part = replace(config, n_envs=lanes.stop - lanes.start, first_env=config.first_env + lanes.start)
                self._groups.append(make(part))
                if not self._groups[0].supports_groups:
                    raise UnsupportedEnvironment(
                        f"env_groups is {n_groups}, but only environments of Gymnasium in subprocesses or threads can "
                        "take turns: set env_groups to 1, or env_args.vectorization_mode to async"
                    )
        except BaseException:
            self.close()
            raise
        self.roles = {name: replace(role, lanes=config.n_envs) for name, role in self._groups[0].roles.items()}
        self._active_rows: dict[int, slice] = {}  # {group: its rows in the last Step}
        self._stepping: deque[int] = deque()  # groups that step, in the order in which they started

    @property
    def restarts(self) -> int:  # type: ignore[override]
        return sum(group.restarts for group in self._groups)

    @property
    def last_error(self) -> str:  # type: ignore[override]
        return next((group.last_error for group in self._groups if group.last_error), "")

    def reset(self, seed: int) -> dict[str, Step]:
        steps = [
            self._shift_lanes(number, group.reset(seed + self._lanes[number].start))
            for number, group in enumerate(self._groups)
        ]
        self._active_rows = dict(enumerate(self._lanes))
        self._stepping.clear()
        return {role: merge_steps([step[role] for step in steps]) for role in self.roles}

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        for number, rows in self._active_rows.items():
            self._groups[number].send({role: action[rows] for role, action in actions.items()})
            self._stepping.append(number)

    def receive(self) -> dict[str, Step]:
        number = self._stepping.popleft()
        self._active_rows = {number: slice(None)}
        return self._shift_lanes(number, self._groups[number].receive())

    def close(self) -> None:
        for group in self._groups:
            group.close()

    def _shift_lanes(self, number: int, steps: Mapping[str, Step]) -> dict[str, Step]:
        """Return the Steps of a group with its lanes numbered among those of all groups."""
        first = self._lanes[number].start
        return {role: replace(step, lane=step.lane + first) for role, step in steps.items()}
