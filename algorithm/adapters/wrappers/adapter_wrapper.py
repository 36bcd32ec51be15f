"""The base class of wrappers around an adapter, and the wrapper that opens its adapter when it is first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from algorithm.adapters.adapter import Adapter
from algorithm.rollout import Step
from algorithm.specs import Role


class AdapterWrapper(Adapter):
    """An adapter that delegates every method to another adapter, `_inner`; a subclass overrides what it changes.

    `step` is `send` and `receive`, so a subclass overrides these two.
    """

    _inner: Adapter

    @property
    def roles(self) -> Mapping[str, Role]:  # type: ignore[override]
        return self._inner.roles

    @property
    def restarts(self) -> int:  # type: ignore[override]
        return self._inner.restarts

    @property
    def shared_agents(self) -> Mapping[str, str] | None:
        return self._inner.shared_agents

    def reset(self, seed: int) -> dict[str, Step]:
        return self._inner.reset(seed)

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, Step]:
        self.send(actions)
        return self.receive()

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
