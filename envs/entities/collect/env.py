"""A grid with items to collect among distractors, which the agent observes as rows in any order."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIDE = 7  # of the grid, in cells
ITEMS, DISTRACTORS = (1, 4), (2, 8)  # smallest and largest number at the start of an episode
STEPS = 40  # of an episode
PENALTY = 0.25  # of a distractor
MOVES = np.array([(0, 1), (0, -1), (1, 0), (-1, 0)])


class Collect(gymnasium.Env):
    """A grid of 7 x 7 cells, on which an agent moves by one cell in four directions.

    Each item that it reaches is removed, with a reward of 1 / number of items; the last one ends the episode. Each
    distractor that it reaches is removed, with a reward of -0.25. The observation is a sequence of rows [3] of those
    that are left, in a new random order in each step: the distances to the right and up, in cells / 6, and 1 for an
    item, -1 for a distractor.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Sequence(spaces.Box(-1.0, 1.0, (3,), np.float32))
        self.action_space = spaces.Discrete(len(MOVES))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[tuple, dict]:
        """Place the agent, the items and the distractors on different cells."""
        super().reset(seed=seed)
        self.steps = 0
        self.n_items = int(self.np_random.integers(ITEMS[0], ITEMS[1] + 1))
        distractors = int(self.np_random.integers(DISTRACTORS[0], DISTRACTORS[1] + 1))
        cells = self.np_random.choice(SIDE * SIDE, 1 + self.n_items + distractors, replace=False)
        places = np.stack(np.divmod(cells, SIDE), 1)
        self.place, self.things = places[0], places[1:]
        self.kinds = np.array([1.0] * self.n_items + [-1.0] * distractors)
        return self._observe(), {}

    def step(self, action: int) -> tuple[tuple, float, bool, bool, dict]:
        """Move the agent, which stays on the grid."""
        self.steps += 1
        self.place = np.clip(self.place + MOVES[action], 0, SIDE - 1)
        reached = (self.things == self.place).all(1)
        kinds = self.kinds[reached]
        reward = float((kinds > 0).sum()) / self.n_items - PENALTY * float((kinds < 0).sum())
        self.things, self.kinds = self.things[~reached], self.kinds[~reached]
        ended = not (self.kinds > 0).any()
        return self._observe(), reward, ended, self.steps >= STEPS and not ended, {}

    def _observe(self) -> tuple[np.ndarray, ...]:
        distances = (self.things - self.place) / (SIDE - 1)
        rows = np.concatenate((distances, self.kinds[:, None]), 1).astype(np.float32)
        return tuple(self.np_random.permutation(rows))


def make() -> Collect:
    """Return the environment."""
    return Collect()


def mean_optimum() -> float:
    """Return the mean return of a player that reaches all items around the distractors."""
    return 1.0
