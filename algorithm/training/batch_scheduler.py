"""The batches that an agent learns from after each of its rollouts, with a replay or without one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.agent import DataSchedule
from algorithm.replay import DemonstrationReplay, Replay
from algorithm.rollout import TD_ERROR, Rollout


class BatchScheduler(ABC):
    """A scheduler that yields the batches to learn from after a rollout.

    Attributes:
        replay: the replay that stores the rollouts; None without one.
        rng: the generator of the schedule.
        initial_lanes: the number of lanes at the start of the run.
        records_td_errors: whether the replay stores the TD errors of collected rollouts, for initial priorities.
    """

    replay: Replay | None
    rng: np.random.Generator
    initial_lanes: int
    records_td_errors: bool = False

    @abstractmethod
    def __call__(self, rollout: Rollout) -> Iterator[Rollout]:
        """Yield the batches that follow a collected rollout, each when the step of the one before is done."""

    def prioritize(self, batch: Rollout, compute_td_errors: Callable[[], np.ndarray]) -> None:
        """Pass the TD errors of a batch after its step to the replay, if there is one."""
        if self.replay:
            self.replay.prioritize(batch.index, compute_td_errors)

    def compute_metrics(self, batch: Rollout) -> dict[str, Tensor]:
        """Return scalars about a batch that was yielded, by the names of metrics. The default returns none."""
        return {}

    def grow(self, lanes: int) -> None:
        """Add lanes, so that there are `lanes` lanes, to the replay, if there is one."""
        if self.replay:
            self.replay.grow(lanes)

    def state(self) -> dict[str, float]:
        """Return what a checkpoint needs in addition to the replay and the generator."""
        return {}

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore what `state` returned. The default restores nothing."""


@dataclass(eq=False)
class DemonstrationShare:
    """The share of replayed batches that is from demonstrations.

    Attributes:
        replay: the demonstrations.
        share: the mean share of the sequences of a batch; None: in proportion to the steps of both replays.
        batches: the number of batches that were drawn.
        remainder: the fraction of a sequence that was left over.
    """

    replay: DemonstrationReplay
    share: float | None
    batches: int = 0
    remainder: float = 0.0

    def sample(self, batch: int, replay: Replay) -> Rollout | None:
        """Return the part of a batch of this size that is not from `replay`, which has at least one sequence of it."""
        share = len(self.replay) / (len(self.replay) + replay.rows) if self.share is None else self.share
        self.remainder += share * batch
        count = min(int(self.remainder), batch - 1)
        self.remainder = min(self.remainder - count, 1.0)
        if not count:
            return None
        self.batches += 1
        return self.replay.sample(count, self.batches)


@dataclass(eq=False)
class ReplayScheduler(BatchScheduler):
    """A scheduler that stores each rollout in a replay, and yields it and replayed batches, by an agent's schedule.

    Attributes:
        record_td_errors: adds TD errors to a collected rollout without them; None if the replay does not store them.
        demonstrations: the demonstrations that are a part of each replayed batch; None without them.
        remainder: the fraction of a batch that was left over (count distribution `fixed`).
    """

    replay: Replay
    schedule: DataSchedule
    rng: np.random.Generator
    record_td_errors: Callable[[Rollout], Rollout] | None = None
    demonstrations: DemonstrationShare | None = None
    remainder: float = 0.0

    def __post_init__(self) -> None:
        self.records_td_errors = self.record_td_errors is not None

    @property
    def initial_lanes(self) -> int:  # type: ignore[override]
        """Return the number of lanes that share the capacity of the replay."""
        return self.replay.initial_lanes

    def __call__(self, rollout: Rollout) -> Iterator[Rollout]:
        """Store `rollout`. Yield it if the agent learns on-policy, then the replayed batches, as they are sampled."""
        if self.record_td_errors and TD_ERROR not in rollout.records:
            rollout = self.record_td_errors(rollout)
        self.replay.add(rollout)
        if self.schedule.on_policy_updates:
            yield rollout
        if self.replay.rows < self.schedule.learning_starts:
            return
        for _ in range(self._draw_batch_count(rollout.reward.size)):
            demonstrated = None
            if self.demonstrations:
                demonstrated = self.demonstrations.sample(self.schedule.batch_size, self.replay)
            batch = self.replay.sample(self.schedule.batch_size - (len(demonstrated.lane) if demonstrated else 0))
            if batch is None:
                return
            yield Rollout.join_columns([batch, demonstrated]) if demonstrated else batch

    def compute_metrics(self, batch: Rollout) -> dict[str, Tensor]:
        ages = self.replay.compute_ages(batch.index)
        values = {"train/replay_fill": self.replay.fill, **({"train/replay_age": ages.mean()} if len(ages) else {})}
        return {name: torch.tensor(value, dtype=torch.float32) for name, value in values.items()}

    def state(self) -> dict[str, float]:
        state = {"remainder": self.remainder}
        if self.demonstrations:
            state["demonstration_batches"] = self.demonstrations.batches
            state["demonstration_remainder"] = self.demonstrations.remainder
        return state

    def restore(self, state: Mapping[str, float]) -> None:
        self.remainder = state["remainder"]
        if self.demonstrations:
            self.demonstrations.batches = int(state.get("demonstration_batches", 0))
            self.demonstrations.remainder = state.get("demonstration_remainder", 0.0)

    def _draw_batch_count(self, rows: int) -> int:
        """Draw the number of replayed batches after a rollout with this number of rows.

        It has a Poisson distribution (Wang et al. 2017, Algorithm 1), or is the mean.
        """
        mean = self.schedule.count_batches(rows)
        if self.schedule.replay_count_distribution == "poisson":
            return int(self.rng.poisson(mean))
        self.remainder += mean
        batches = int(self.remainder)
        self.remainder -= batches
        return batches


@dataclass(eq=False)
class OnPolicyScheduler(BatchScheduler):
    """A scheduler that yields each rollout once as it is, or minibatches of a prepared rollout in several epochs.

    A minibatch consists of whole columns if the network has a memory, and otherwise of single rows. Each epoch shuffles
    them again (Schulman et al. 2017, Algorithm 1).
    """

    replay = None
    schedule: DataSchedule
    prepare: Callable[[Rollout], Rollout]
    _: KW_ONLY
    has_memory: bool
    initial_lanes: int
    rng: np.random.Generator

    def __call__(self, rollout: Rollout) -> Iterator[Rollout]:
        if self.schedule.epochs is None:
            yield rollout
            return
        prepared = self.prepare(rollout)
        if not self.has_memory:
            prepared = prepared.split_rows()
        columns = np.flatnonzero(prepared.valid.any(0))
        for _ in range(self.schedule.epochs):
            for part in np.array_split(self.rng.permutation(columns), self.schedule.minibatches):
                if len(part):
                    yield prepared.take_columns(part)
