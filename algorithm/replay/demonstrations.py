"""Sequences of demonstrations, in the form of an agent's replayed batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from algorithm.demonstrations import Demonstrations
from algorithm.replay.replay import Replay
from algorithm.rollout import DEMONSTRATED, Rollout


@dataclass(kw_only=True, eq=False)
class DemonstrationReplay:
    """A replay of demonstrations, whose sequences are drawn uniformly, with repetition.

    The statistics of the policy that acted are unknown and 0, the memory is 0 before each sequence, and
    `Rollout.index` is DEMONSTRATED.

    Attributes:
        demonstrations: The demonstrations.
        seed: Seeds the draws.
        length: Rows of a sequence that are learned from.
        burn_in: Rows before these that only update the agent's memory.
        warmup_rows: The first of the burn-in rows, which rebuild the part of the memory that is not stored.
        state_size: Number of values of the agent's memory.
        stored_state_size: Those of them that a replay stores, the first ones.
        statistics_size: Number of statistics of the policy's distribution.
        from_action: Returns the raw actions of executed ones.

    Raises:
        ValueError: The demonstrations have fewer rows than a sequence.
    """

    demonstrations: Demonstrations
    seed: int
    length: int
    burn_in: int
    warmup_rows: int
    state_size: int
    stored_state_size: int
    statistics_size: int
    from_action: Callable[[np.ndarray], np.ndarray]

    def __post_init__(self) -> None:
        needed = self.burn_in + self.length
        if len(self) < needed:
            raise ValueError(f"they have {len(self)} steps, and a sequence has {needed}")

    def __len__(self) -> int:
        return len(self.demonstrations)

    def sample(self, batch: int, number: int) -> Rollout:
        """Return the `number`-th batch of sequences, the same for the same number."""
        self._replay.rng = np.random.default_rng((self.seed, number))
        sampled = self._replay.sample(batch)
        assert sampled is not None  # there is a sequence
        return replace(sampled, index=np.full_like(sampled.index, DEMONSTRATED))

    def read_rows(self, rows: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return observations {name: [n, ...]} and raw actions [n, size] of rows [n]."""
        source = self.demonstrations
        obs = {name: values[rows] for name, values in source.obs.items()}
        return obs, self.from_action(source.action[rows]).astype(np.float32)

    @cached_property
    def _replay(self) -> Replay:
        """The replay with all rows in one lane. Sequences with a stored memory start at the begin of a column."""
        rows, stored = len(self), self.stored_state_size
        chunk = 1 if stored else rows
        replay = Replay(
            capacity=2 * rows,
            lanes=1,
            chunk=chunk,
            length=self.length,
            rng=np.random.default_rng(self.seed),
            burn_in=self.burn_in,
            warmup_rows=self.warmup_rows,
            stored_state_size=stored,
        )
        for start in range(0, rows, chunk):
            replay.add(self.make_rollout(start, start + chunk))
        return replay

    def make_rollout(self, start: int = 0, end: int | None = None) -> Rollout:
        """Return the rows from `start` to `end`, by default all, as one column."""
        source, end = self.demonstrations, len(self) if end is None else end
        column, one = slice(start, end), np.ones(1, np.float32)
        after = np.arange(start, end + 1).clip(max=len(source) - 1)
        return Rollout(
            obs={name: values[after][:, None] for name, values in source.obs.items()},
            first=np.append(source.first, True)[start : end + 1][:, None],
            raw_action=self.from_action(source.action[column])[:, None].astype(np.float32),
            reward=source.reward[column][:, None].astype(np.float32),
            alive=source.alive[column][:, None],
            behavior=np.zeros((end - start, 1, self.statistics_size), np.float32),
            memory=np.zeros((1, self.state_size), np.float32),
            lane=np.zeros(1, np.int64),
            continues_previous=np.array([start > 0]),
            weight=one,
            index=np.full(1, DEMONSTRATED),
            version=np.zeros(1, np.int64),
        )
