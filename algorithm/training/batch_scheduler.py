"""The batches that an agent learns from, and their number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from algorithm.agents.agent import DataSchedule
from algorithm.replay import Replay
from algorithm.rollout import Rollout


class BatchScheduler:
    """A scheduler that stores each rollout in a replay, and yields the batches to learn from, by an agent's schedule.

    Attributes:
        remainder: the fraction of a batch that a fractional `replay_ratio` has left over (count distribution `fixed`).
    """

    def __init__(self, replay: Replay, schedule: DataSchedule, rng: np.random.Generator):
        self.replay = replay
        self.schedule = schedule
        self.rng = rng
        self.remainder = 0.0

    def __call__(self, rollout: Rollout) -> Iterator[Rollout]:
        """Store `rollout`. Yield it if the agent learns on-policy, then the replayed batches, as they are sampled."""
        self.replay.add(rollout)
        if self.schedule.on_policy_updates:
            yield rollout
        if self.replay.rows < self.schedule.learning_starts:
            return
        for _ in range(self._draw_batch_count()):
            batch = self.replay.sample(self.schedule.batch_size)
            if batch is None:
                return
            yield batch

    def state(self) -> dict[str, float]:
        """Return what a checkpoint needs in addition to the replay and the generator."""
        return {"remainder": self.remainder}

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore what `state` returned."""
        self.remainder = state["remainder"]

    def _draw_batch_count(self) -> int:
        """Draw the number of replayed batches: Poisson(replay_ratio) (Wang et al. 2017, Algorithm 1), or its mean."""
        if self.schedule.replay_count_distribution == "poisson":
            return int(self.rng.poisson(self.schedule.replay_ratio))
        self.remainder += self.schedule.replay_ratio
        batches = int(self.remainder)
        self.remainder -= batches
        return batches
