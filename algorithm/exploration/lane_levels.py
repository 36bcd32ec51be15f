"""The base of explorers with a different level of exploration in each lane."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import ClassVar

import numpy as np

from algorithm.exploration.explorer import Explorer
from algorithm.specs import Role


class LaneLevels(Explorer):
    """An explorer whose levels rise from the first to the last lane, evenly spaced unless a subclass says otherwise.

    Lanes that are added later have levels between the levels of the others.

    Args:
        role: The role.
        levels: [min, max], the levels of the first and of the last lane; at least 0, and at most 1 if the role has
            discrete actions, for which the level is a probability.

    Raises:
        ValueError: Invalid levels.
    """

    PROBABILITY: ClassVar[str] = "a random action"  # event that the level of a discrete action is the probability of

    def __init__(self, role: Role, levels: Sequence[float]):
        highest = 1 if role.action_spec.branches else np.inf
        if not (_is_number_pair(levels) and 0 <= levels[0] <= levels[1] <= highest):
            bound = f" <= 1, since it is the probability of {self.PROBABILITY}" if role.action_spec.branches else ""
            raise ValueError(f"levels are {levels!r}; they must be two numbers [min, max] with 0 <= min <= max{bound}")
        self.lowest, self.highest = levels
        self.lane_levels = self._find_levels(np.linspace(0, 1, role.lanes))

    def grow(self, lanes: int, initial_lanes: int) -> None:
        positions = np.append(np.linspace(0, 1, initial_lanes), _van_der_corput(lanes - initial_lanes))
        self.lane_levels = self._find_levels(positions)

    def select_lanes(self, lanes: Sequence[int]) -> None:
        self.lane_levels = self.lane_levels[list(lanes)]

    def interpolate(self, position: np.ndarray) -> np.ndarray:
        """Return the levels at positions [n] from 0, the first lane, to 1, the last one."""
        return self.lowest + (self.highest - self.lowest) * position

    def _find_levels(self, position: np.ndarray) -> np.ndarray:
        return self.interpolate(position).astype(np.float32)


def _van_der_corput(count: int) -> np.ndarray:
    """Return the first numbers of the van der Corput sequence 1/2, 1/4, 3/4, 1/8, 5/8, ..., which are evenly spread."""
    return np.array([int(f"{k:b}"[::-1], 2) / 2 ** k.bit_length() for k in range(1, count + 1)])


def _is_number_pair(levels: object) -> bool:
    """Return whether `levels` is a list or tuple of two finite numbers."""
    pair = levels if isinstance(levels, list | tuple) else ()
    valid = [level for level in pair if isinstance(level, int | float) and not isinstance(level, bool)]
    return len(pair) == len(valid) == 2 and all(map(isfinite, valid))
