"""The base class of wrappers around an adapter, and wrappers that open adapters: on first use, and after a crash."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from algorithm.adapters.adapter import Adapter, EnvironmentCrashed, SimulatorError, derive_seed
from algorithm.rollout import Step
from algorithm.specs import Role

LOG = logging.getLogger(__name__)
SAVED_COUNTERS = ("_failures", "_past_restarts", "_seed")


class AdapterWrapper(Adapter):
    """An adapter that delegates every method to another adapter, `_inner`; a subclass overrides what it changes."""

    _inner: Adapter

    @property
    def roles(self) -> Mapping[str, Role]:  # type: ignore[override]
        return self._inner.roles

    @property
    def restarts(self) -> int:  # type: ignore[override]
        return self._inner.restarts

    @property
    def last_error(self) -> str:  # type: ignore[override]
        return self._inner.last_error

    @property
    def shared_agents(self) -> Mapping[str, str] | None:
        return self._inner.shared_agents

    def reset(self, seed: int) -> dict[str, Step]:
        return self._inner.reset(seed)

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        self._inner.send(actions)

    def receive(self) -> dict[str, Step]:
        return self._inner.receive()

    def statistics(self) -> dict[str, float]:
        return self._inner.statistics()

    def state(self) -> dict[str, Any] | None:
        return self._inner.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._inner.restore(state)

    def close(self) -> None:
        self._inner.close()


class OnDemand(AdapterWrapper):
    """A wrapper that makes its adapter with `make` when it is first used, which also raises what `make` raises.

    An adapter that is never used, for example because a run ends without an evaluation, is never opened.
    """

    def __init__(self, make: Callable[[], Adapter]):
        self._make = make

    @cached_property
    def _inner(self) -> Adapter:  # type: ignore[override]
        return self._make()

    def close(self) -> None:
        if "_inner" in vars(self):
            self._inner.close()


class RestartOnFailure(AdapterWrapper):
    """A wrapper that makes another adapter after a crash; all episodes are truncated, and new ones start.

    Args:
        make: A function that returns an adapter.
        max_restarts: Maximum number of restarts, including the adapter's restarts of single environments; None is no
            limit.

    Raises:
        EnvironmentCrashed: The maximum is exceeded, or the new adapter does not start.
    """

    def __init__(self, make: Callable[[], Adapter], max_restarts: int | None):
        self._make = make
        self._max_restarts = max_restarts
        self._inner = make()
        self._failures = 0  # adapters that crashed
        self._past_restarts = 0  # restarts before the present adapter
        self._seed: int | None = None
        self._first_steps: dict[str, Step] | None = None  # of an adapter that replaced one that crashed in `send`

    @property
    def restarts(self) -> int:  # type: ignore[override]
        return self._past_restarts + self._inner.restarts

    def reset(self, seed: int) -> dict[str, Step]:
        has_started, self._seed, self._first_steps = self._seed is not None, seed, None
        try:
            return self._inner.reset(seed)
        except SimulatorError as error:
            if not has_started:
                raise
            return self._restart(error)

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        try:
            self._inner.send(actions)
        except EnvironmentCrashed as error:
            self._first_steps = self._restart(error)

    def receive(self) -> dict[str, Step]:
        first_steps, self._first_steps = self._first_steps, None
        if first_steps is not None:
            return first_steps
        before = self._inner.restarts
        try:
            steps = self._inner.receive()
        except EnvironmentCrashed as error:
            return self._restart(error)
        if self._inner.restarts > before:
            self._check_limit(None)
        return steps

    def state(self) -> dict[str, Any] | None:
        inner = self._inner.state()
        counters = {name.removeprefix("_"): getattr(self, name) for name in SAVED_COUNTERS}
        return None if inner is None else {"inner": inner, **counters}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._inner.restore(state.get("inner", {}))
        for name in SAVED_COUNTERS:
            setattr(self, name, state[name.removeprefix("_")])

    def _restart(self, error: SimulatorError) -> dict[str, Step]:
        """Replace the adapter and return the first Steps of the new one."""
        self._inner.close()
        self._failures += 1
        self._past_restarts += 1
        self._check_limit(error)
        LOG.warning(f"{error}; all environments are restarted and their episodes truncated")
        LOG.info(traceback.format_exc())
        try:
            inner = self._make()
            self._past_restarts, self._inner = self.restarts, inner
            return inner.reset(derive_seed(self._seed or 0, self._failures))
        except SimulatorError as second_error:
            raise EnvironmentCrashed(f"{second_error}; it was restarted after: {error}") from second_error

    def _check_limit(self, error: SimulatorError | None) -> None:
        if self._max_restarts is not None and self.restarts > self._max_restarts:
            raise EnvironmentCrashed(
                f"the environment crashed {self.restarts} times, which is more than base_config.max_env_restarts: "
                f"{error or self._inner.last_error}"
            ) from error
