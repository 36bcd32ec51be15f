"""What is learned from, and how often."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from algorithm.agents.agent import DataSchedule
from algorithm.replay import Replay
from algorithm.rollout import Rollout


class BatchScheduler:
    """Stores each rollout and yields it, then replayed batches, by an agent's schedule."""

    def __init__(self, replay: Replay, schedule: DataSchedule, rng: np.random.Generator):
        self.replay = replay
        self.schedule = schedule
        self.rng = rng
        self.remainder = 0.0  # batches of a fractional ratio that are still to come (fixed draw)

    def __call__(self, rollout: Rollout) -> Iterator[Rollout]:
        """Add `rollout` to the replay and yield the batches to learn from now."""
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
        """What a resumed run needs beside the replay and the generator."""
        return {"remainder": self.remainder}

    def restore(self, state: Mapping[str, float]) -> None:
        """Take over what `state` gave."""
        self.remainder = state["remainder"]

    def _draw_batch_count(self) -> int:
        """How many batches: Poisson(replay_ratio) (Wang et al. 2017, Algorithm 1), or its mean."""
        if self.schedule.replay_count_distribution == "poisson":
            return int(self.rng.poisson(self.schedule.replay_ratio))
        self.remainder += self.schedule.replay_ratio
        batches = int(self.remainder)
        self.remainder -= batches
        return batches
