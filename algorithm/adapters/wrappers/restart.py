"""A simulator that is made anew when it broke."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from algorithm.adapters.adapter import Adapter, EnvironmentCrashed, EnvironmentStartError, derive_seed
from algorithm.rollout import Step

LOG = logging.getLogger(__name__)
SAVED_COUNTERS = ("restarts", "_failures", "_past_restarts", "_seed")


class RestartOnFailure(Adapter):
    """The adapter that `make` gives, and another one after it broke: all episodes are cut there, and new ones start.

    `max_restarts` is how often that may happen, counting the copies that the adapter rebuilt by itself; None is without end.
    """

    def __init__(self, make: Callable[[], Adapter], max_restarts: int | None):
        self._make = make
        self._max_restarts = max_restarts
        self._inner = make()
        self.roles = self._inner.roles
        self._failures = 0  # adapters that were given up
        self._past_restarts = 0  # restarts up to the one that is at work
        self._seed: int | None = None

    def reset(self, seed: int) -> dict[str, Step]:
        started, self._seed = self._seed is not None, seed
        try:
            return self._inner.reset(seed)
        except EnvironmentStartError as error:
            if not started:
                raise
            return self._restart(error)

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, Step]:
        self.send(actions)
        return self.receive()

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        self._inner.send(actions)

    def receive(self) -> dict[str, Step]:
        try:
            steps = self._inner.receive()
        except EnvironmentCrashed as error:
            return self._restart(error)
        self.roles = self._inner.roles
        if self._past_restarts + self._inner.restarts > self.restarts:
            self._set_restarts(self._past_restarts + self._inner.restarts, None)
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
        return None if inner is None else {"inner": inner, **{name: getattr(self, name) for name in SAVED_COUNTERS}}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._inner.restore(state.get("inner", {}))
        self.roles = self._inner.roles
        for name in SAVED_COUNTERS:
            setattr(self, name, state[name])

    def _restart(self, error: EnvironmentStartError) -> dict[str, Step]:
        self._inner.close()
        self._failures += 1
        self._past_restarts += self._inner.restarts + 1
        self._set_restarts(self._past_restarts, error)
        LOG.warning(f"{error}; all copies are started anew, their episodes are cut")
        LOG.info(traceback.format_exc())
        try:
            self._inner = self._make()
            self.roles = self._inner.roles
            return self._inner.reset(derive_seed(self._seed or 0, self._failures))
        except EnvironmentStartError as second_error:
            raise EnvironmentCrashed(f"{second_error}; it had broken: {error}") from second_error

    def _set_restarts(self, restarts: int, error: EnvironmentStartError | None) -> None:
        self.restarts = restarts
        if self._max_restarts is not None and restarts > self._max_restarts:
            reason = f": {error}" if error else "; faults.log tells how"
            raise EnvironmentCrashed(
                f"the environment broke {restarts} times, which is more than base_config.max_env_restarts{reason}"
            ) from error
