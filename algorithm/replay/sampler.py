"""Which windows are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


class Uniform:
    """Every window of every lane with the same probability."""

    def draw(self, rng: np.random.Generator, starts: np.ndarray, batch: int) -> tuple[np.ndarray, np.ndarray]:
        """`starts` [lanes] counts the possible starts of each lane -> lanes [batch] and which of its starts [batch]."""
        ends = starts.cumsum()
        drawn = rng.integers(ends[-1], size=batch)
        lane = ends.searchsorted(drawn, side="right")
        return lane, drawn - ends[lane] + starts[lane]

    def state(self) -> dict[str, np.ndarray]:
        """What a resumed run needs: nothing."""
        return {}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `state` gave."""

    def prioritize(self, index: np.ndarray, priority: Callable[[], Any]) -> None:
        """Uniform replay has no priorities."""
