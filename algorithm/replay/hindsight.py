"""Hindsight experience replay (Andrychowicz et al. 2017, arXiv 1707.01495), strategy `future`.

A replayed sequence is learned from as if its goal had been one that the same episode reached later. Its rewards and
terminations are computed again for this goal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from algorithm.replay.ring import Ring
from algorithm.rollout import Rollout

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"  # observations
# The goals that were achieved by steps [n, ...], and the desired ones -> rewards [n], and whether they end the episode.
ComputeGoalRewards = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class Hindsight:
    """What hindsight needs.

    Attributes:
        share: Share of the sequences that get another goal; k / (k + 1) for k of them for each with its own.
        compute_rewards: Computes rewards and terminations.
    """

    share: float
    compute_rewards: ComputeGoalRewards


class GoalRelabeler:
    """The goals of replayed sequences.

    `_ends` holds for each row the number of the row after the last one of its episode that is stored; 0 while the
    episode runs.

    Args:
        hindsight: What hindsight needs.
        ring: The rows, with the observations `ACHIEVED` and `DESIRED`.
    """

    def __init__(self, hindsight: Hindsight, ring: Ring):
        self.hindsight, self.ring = hindsight, ring
        self._ends = np.zeros((ring.lanes, ring.rows), np.int64)
        self._starts = np.zeros(ring.lanes, np.int64)  # of the running episode of each lane

    def grow(self) -> None:
        """Continue after lanes were added to the ring."""
        added = self.ring.lanes - len(self._starts)
        self._ends, self._starts = np.pad(self._ends, ((0, added), (0, 0))), np.pad(self._starts, (0, added))

    def observe(self, rollout: Rollout) -> None:
        """Note the ends of episodes in a rollout that is about to be written."""
        for columns in rollout.iterate_lane_batches():
            for column in columns:
                lane = int(rollout.lane[column])
                head = int(self.ring.head[lane]) + len(rollout) * self._count_before(rollout, column)
                if not rollout.continues_previous[column]:  # the observation after the row before is overwritten
                    self._close(lane, head)
                self._ends[lane, (head + 1 + np.arange(len(rollout))) % self.ring.rows] = 0
                for t in np.flatnonzero(rollout.first[1:, column]) + 1:
                    self._close(lane, head + int(t))

    def restore(self) -> None:
        """Find the episodes of a ring that was restored."""
        self._ends[:], self._starts[:] = 0, 0
        for lane, head in enumerate(self.ring.head.tolist()):
            oldest = max(0, head + 1 - self.ring.rows)
            rows = np.arange(oldest, head + 1)
            place = rows % self.ring.rows
            is_start = self.ring.arrays["first"][lane, place] | (self.ring.unbroken_rows[lane, place] == 0)
            self._starts[lane] = oldest
            for row in rows[is_start].tolist():
                self._close(lane, row)

    def relabel(self, rollout: Rollout, lane: np.ndarray, row: np.ndarray, rng: np.random.Generator) -> None:
        """Give some sequences of the ring, which start at rows [B], other goals.

        Rows of the next episode keep theirs. A termination whose achieved goal is unknown becomes a row that is not
        learned from.
        """
        end = self._ends[lane, row % self.ring.rows]
        end = np.where(end > 0, end, self.ring.head[lane] + 1)
        chosen = np.flatnonzero((rng.random(len(row)) < self.hindsight.share) & (end - row > 1))
        if not len(chosen):
            return
        lane, row, end = lane[chosen], row[chosen], end[chosen]
        future = row + 1 + (rng.random(len(row)) * (end - 1 - row)).astype(np.int64)
        goal = self.ring.arrays[f"obs/{ACHIEVED}"][lane, future % self.ring.rows]
        rows = np.arange(len(rollout) + 1)[:, None] + row
        desired, achieved = rollout.obs[DESIRED], rollout.obs[ACHIEVED]
        for t in range(len(rollout) + 1):
            inside = rows[t] < end
            desired[t, chosen[inside]] = goal[inside]
            if t:
                columns = chosen[inside]
                reward, is_end = self.hindsight.compute_rewards(achieved[t, columns], goal[inside])
                rollout.reward[t - 1, columns] = reward
                rollout.alive[t - 1, columns] = ~is_end
                rollout.alive[t - 1, chosen[rows[t] == end]] = True  # with the next row a first one: not valid

    def _close(self, lane: int, end: int) -> None:
        """End the running episode of a lane before the row `end`."""
        start = max(int(self._starts[lane]), end - self.ring.rows + 1)
        self._ends[lane, np.arange(start, end) % self.ring.rows] = end
        self._ends[lane, end % self.ring.rows] = 0
        self._starts[lane] = end

    @staticmethod
    def _count_before(rollout: Rollout, column: int) -> int:
        """Return the number of columns of the same lane before a column."""
        return int((rollout.lane[:column] == rollout.lane[column]).sum())
