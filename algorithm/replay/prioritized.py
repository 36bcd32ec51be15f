"""Windows drawn by the error that was last found in them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from algorithm.replay.sampler import Drawn, Errors, Rating, Sampler
from algorithm.replay.sequences import Windows
from algorithm.replay.sum_tree import WIDTH, SumTree


class Prioritized(Sampler):
    """Proportional prioritisation (Schaul et al. 2016, arXiv 1511.05952, Algorithm 1), for windows of any length.

        P(i) = p_i^alpha / sum p^alpha,   w_i = (N P(i))^-beta / max w

    One window is drawn from each of `batch` equal parts of the sum. A new window has the largest priority that was
    found so far, at first 1. Beta rises with every batch, to 1.
    """

    BYTES = 8 * WIDTH / (WIDTH - 1)

    def __init__(self, windows: Windows, rating: Rating, alpha: float, beta: float, beta_increment_per_sampling: float):
        self.windows, self.rating = windows, rating
        self.alpha, self.first_beta, self.increment = alpha, beta, beta_increment_per_sampling
        self.batches = 0  # drawn so far
        self.largest = min(max(1.0, rating.td_error_min), rating.td_error_max)
        self.span = windows.span()
        self.tree = SumTree(windows.lanes * windows.slots)

    @property
    def beta(self) -> float:
        """The exponent of the next batch's weights."""
        return min(1.0, self.first_beta + self.increment * self.batches)

    def draw(self, rng: np.random.Generator, batch: int) -> Drawn | None:
        total = self.tree.total
        if not total:
            return None
        leaf, _ = self.tree.find((np.arange(batch) + rng.random(batch)) * (total / batch))
        drawn = self.tree.leaves[leaf]
        weight = (drawn / drawn.min()) ** -self.beta  # N and the sum are the same in the largest weight
        self.batches += 1
        return Drawn(*self.windows.turn(leaf, self.span.oldest), weight.astype(np.float32))

    def follow(self) -> None:
        before, self.span = self.span, self.windows.span()
        overwritten, broken, new = self.windows.news(before, self.span)
        for starts in (overwritten, broken):
            self.tree.set(self.windows.slot(*starts), 0.0)
        self.tree.set(self.windows.slot(*new), self.largest**self.alpha)

    def grow(self) -> None:
        self.span = self.windows.span()
        self.tree.grow(self.windows.lanes * self.windows.slots)

    def prioritize(self, index: np.ndarray, errors: Errors) -> None:
        starts, priority = self.rating.learned(self.windows, self.span, index, errors)
        leaf = self.windows.slot(*starts)
        there = self.tree.leaves[leaf] > 0
        self.tree.set(leaf[there], priority[there] ** self.alpha)
        self.largest = max(self.largest, priority[there].max(initial=0))

    def state(self) -> dict[str, np.ndarray]:
        return {
            "windows": self.windows.shape,
            "leaves": self.tree.leaves,
            "largest": np.array(self.largest),
            "batches": np.array(self.batches),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.windows.check(state["windows"])
        self.span = self.windows.span()
        self.tree.fill(state["leaves"])
        self.largest, self.batches = float(state["largest"]), int(state["batches"])
