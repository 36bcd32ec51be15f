"""A simulator that is made anew when it broke."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from algorithm.adapters.adapter import Adapter, EnvironmentBroke, EnvironmentFailed, later_seed
from algorithm.rollout import Step

LOG = logging.getLogger(__name__)
COUNTED = ("restarts", "_broken", "_before", "_seed")


class Restarting(Adapter):
    """The adapter that `make` gives, and another one after it broke: all episodes are cut there, and new ones start.

    `budget` is how often that may happen, counting the copies that the adapter rebuilt by itself; None is without end.
    """

    def __init__(self, make: Callable[[], Adapter], budget: int | None):
        self._make = make
        self._budget = budget
        self._inner = make()
        self.roles = self._inner.roles
        self._broken = 0  # adapters that were given up
        self._before = 0  # restarts up to the one that is at work
        self._seed: int | None = None

    def reset(self, seed: int) -> dict[str, Step]:
        started, self._seed = self._seed is not None, seed
        try:
            return self._inner.reset(seed)
        except EnvironmentFailed as error:
            if not started:
                raise
            return self._start_anew(error)

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, Step]:
        self.send(actions)
        return self.receive()

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        self._inner.send(actions)

    def receive(self) -> dict[str, Step]:
        try:
            steps = self._inner.receive()
        except EnvironmentBroke as error:
            return self._start_anew(error)
        self.roles = self._inner.roles
        if self._before + self._inner.restarts > self.restarts:
            self._count(self._before + self._inner.restarts, None)
        return steps

    def close(self) -> None:
        self._inner.close()

    @property
    def shared_agents(self) -> Mapping[str, str] | None:
        return self._inner.shared_agents

    def statistics(self) -> dict[str, float]:
        return self._inner.statistics()

    def state(self) -> dict[str, Any] | None:
        inner = self._inner.state()
        return None if inner is None else {"inner": inner, **{name: getattr(self, name) for name in COUNTED}}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._inner.restore(state.get("inner", {}))
        self.roles = self._inner.roles
        for name in COUNTED:
            setattr(self, name, state[name])

    def _start_anew(self, error: EnvironmentFailed) -> dict[str, Step]:
        self._inner.close()
        self._broken += 1
        self._before += self._inner.restarts + 1
        self._count(self._before, error)
        LOG.warning(f"{error}; all copies are started anew, their episodes are cut")
        LOG.info(traceback.format_exc())
        try:
            self._inner = self._make()
            self.roles = self._inner.roles
            return self._inner.reset(later_seed(self._seed or 0, self._broken))
        except EnvironmentFailed as again:
            raise EnvironmentBroke(f"{again}; it had broken: {error}") from again

    def _count(self, restarts: int, error: EnvironmentFailed | None) -> None:
        self.restarts = restarts
        if self._budget is not None and restarts > self._budget:
            reason = f": {error}" if error else "; faults.log tells how"
            raise EnvironmentBroke(
                f"the environment broke {restarts} times, which is more than base_config.max_env_restarts{reason}"
            ) from error
