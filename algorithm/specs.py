"""What a simulator offers: observations, actions, and the roles that agents play in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

AGENT = "agent"  # the role in a simulator that names none
# The observation that tells which actions are allowed (1), those of all branches side by side; no network reads it.
MASK = "action_mask"


def of_role(role: str) -> str:
    """` of <role>` for a sentence; nothing where the simulator names no roles."""
    return "" if role == AGENT else f" of {role}"


@dataclass(frozen=True)
class ObsSpec:
    """One observation of one lane: its shape without the lane axis, and its dtype as numpy names it."""

    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class ActionSpec:
    """An action: `continuous` numbers in [-1, 1] followed by one index for each discrete branch.

    Samples and actions travel as one float32 array [n, size] in this order. `start` is the environment's own
    number of each branch's first action (zeros where it is empty).
    """

    continuous: int = 0
    branches: tuple[int, ...] = ()
    start: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Columns of a sample or an action."""
        return self.continuous + len(self.branches)

    def native(self, action: np.ndarray) -> np.ndarray:
        """An action [n, size] in the environment's own units and dtype: int64 [n] for a single branch.

        Raises ValueError for any other space.
        """
        if self.continuous or len(self.branches) != 1:
            raise ValueError(f"only a single discrete branch has native actions so far, not {self}")
        return action[:, 0].astype(np.int64) + (self.start[0] if self.start else 0)


@dataclass(frozen=True)
class Role:
    """A kind of agent in a simulator: how many lanes play it, what each observes and what it may do."""

    lanes: int
    obs_specs: Mapping[str, ObsSpec]
    action_spec: ActionSpec
