"""A simulator that is opened when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from algorithm.adapters.adapter import Adapter
from algorithm.rollout import Step
from algorithm.specs import Role


class OnDemand(Adapter):
    """The adapter that `make` returns, opened by its first use, which also raises what `make` raises.

    If it is never used, as when a run ends without an evaluation, it costs nothing.
    """

    def __init__(self, make: Callable[[], Adapter]):
        self._make = make

    @cached_property
    def _inner(self) -> Adapter:
        return self._make()

    @property
    def roles(self) -> Mapping[str, Role]:  # type: ignore[override]
        return self._inner.roles

    @property
    def restarts(self) -> int:  # type: ignore[override]
        return self._inner.restarts

    def reset(self, seed: int) -> dict[str, Step]:
        return self._inner.reset(seed)

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, Step]:
        return self._inner.step(actions)

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
        if "_inner" in vars(self):
            self._inner.close()
