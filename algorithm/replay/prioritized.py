"""Prioritized experience replay: sequences are drawn by their latest TD errors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from algorithm.replay.sampler import Errors, PriorityFunction, SampledSequences, Sampler
from algorithm.replay.sequences import Sequences
from algorithm.replay.sum_tree import BRANCHING, SumTree


class PrioritizedSampler(Sampler):
    """A sampler with proportional priorities (Schaul et al. 2016, arXiv 1511.05952, Algorithm 1).

        P(i) = p_i^alpha / sum p^alpha,   w_i = (N P(i))^-beta / max w

    One sequence is drawn from each of `batch` equal parts of the sum. A new sequence has the largest priority so far,
    initially 1.

    Args:
        sequences: The sequences to draw from.
        priority_function: The priority of a sequence.
        alpha: Exponent of the priorities; 0: uniform.
        beta: Initial exponent of the weights.
        beta_increment_per_sampling: Increase of beta with each batch, up to 1.
    """

    BYTES_PER_START = 8 * BRANCHING / (BRANCHING - 1)

    def __init__(
        self,
        sequences: Sequences,
        priority_function: PriorityFunction,
        alpha: float,
        beta: float,
        beta_increment_per_sampling: float,
    ):
        self.sequences, self.priority_function = sequences, priority_function
        self.alpha, self.initial_beta, self.beta_increment = alpha, beta, beta_increment_per_sampling
        self.n_batches = 0  # drawn so far
        self.max_priority = min(max(1.0, priority_function.td_error_min), priority_function.td_error_max)
        self.start_range = sequences.compute_start_range()
        self.tree = SumTree(sequences.lanes * sequences.slots)

    @property
    def beta(self) -> float:
        """Exponent of the weights of the next batch."""
        return min(1.0, self.initial_beta + self.beta_increment * self.n_batches)

    def sample(self, rng: np.random.Generator, batch: int) -> SampledSequences | None:
        total = self.tree.total
        if not total:
            return None
        leaf, _ = self.tree.find((np.arange(batch) + rng.random(batch)) * (total / batch))
        priority = self.tree.leaves[leaf]
        weight = (priority / priority.min()) ** -self.beta  # N and the sum cancel out
        self.n_batches += 1
        return SampledSequences(*self.sequences.find_start(leaf, self.start_range.oldest), weight.astype(np.float32))

    def update_after_write(self) -> None:
        before, self.start_range = self.start_range, self.sequences.compute_start_range()
        overwritten, broken, new = self.sequences.compare_ranges(before, self.start_range)
        for starts in (overwritten, broken):
            self.tree.set(self.sequences.find_slot(*starts), 0.0)
        self.tree.set(self.sequences.find_slot(*new), self.max_priority**self.alpha)

    def grow(self) -> None:
        self.start_range = self.sequences.compute_start_range()
        self.tree.grow(self.sequences.lanes * self.sequences.slots)

    def prioritize(self, index: np.ndarray, errors: Errors) -> None:
        starts, priority = self.priority_function.compute_priorities(self.sequences, self.start_range, index, errors)
        leaf = self.sequences.find_slot(*starts)
        is_drawable = self.tree.leaves[leaf] > 0
        self.tree.set(leaf[is_drawable], priority[is_drawable] ** self.alpha)
        self.max_priority = max(self.max_priority, priority[is_drawable].max(initial=0))

    def state(self) -> dict[str, np.ndarray]:
        return {
            "sequences": self.sequences.shape,
            "leaves": self.tree.leaves,
            "max_priority": np.array(self.max_priority),
            "n_batches": np.array(self.n_batches),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.sequences.check(state["sequences"])
        self.start_range = self.sequences.compute_start_range()
        self.tree.fill(state["leaves"])
        self.max_priority, self.n_batches = float(state["max_priority"]), int(state["n_batches"])
