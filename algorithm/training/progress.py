"""The progress of a run: its counters and limits, its last episodes, and the same as plain numbers for a display."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from algorithm.training.components import TrainingComponents
from algorithm.training.invalid_values import Episode
from algorithm.training.timer import STARTING

WINDOW = 20  # training episodes whose mean return must reach the goal


@dataclass(kw_only=True)
class Counters:
    """The env steps, updates, episodes, iterations and seconds of a run so far.

    `cpu_seconds` is as of the last row of metrics or checkpoint; None if not counted from the start.
    """

    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    iterations: int = 0
    seconds: float = 0.0
    cpu_seconds: float | None = 0.0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a run, its intervals and its goal; None is never.

    Attributes:
        max_step: env steps at which the run ends.
        max_iter: iterations at which the run ends.
        log_every: env steps between rows of metrics.
        save_every: env steps between checkpoints.
        evaluate_every: env steps between evaluations.
        goal: mean return at which the run ends.
        evaluation_episodes: number of episodes of an evaluation, of each role.
        pause_at: env steps at which training pauses, after an evaluation; the run then continues from its checkpoint.
    """

    max_step: int | None = None
    max_iter: int | None = None
    log_every: int
    save_every: int | None = None
    evaluate_every: int | None = None
    goal: float | None = None
    evaluation_episodes: int
    pause_at: int | None = None

    @property
    def evaluates(self) -> bool:
        """Return whether there are evaluations; then there is one at the end of the run, too."""
        return any(limit is not None for limit in (self.goal, self.evaluate_every, self.pause_at))

    @property
    def last_step(self) -> float:
        """Return the env steps at which the run ends or pauses; infinity without such a limit."""
        return min(limit for limit in (self.max_step, self.pause_at, inf) if limit is not None)

    def are_reached(self, counters: Counters) -> bool:
        """Return whether the run has made `max_step` env steps or `max_iter` iterations, or pauses."""
        last_iteration = inf if self.max_iter is None else self.max_iter
        return counters.env_steps >= self.last_step or counters.iterations >= last_iteration

    def list_reached(self, counters: Counters) -> list[str]:
        """Return a line for each limit, but a pause, that a run which is about to start has reached before."""
        units = {"max_step": "env steps", "max_iter": "iterations"}
        return [
            f"the run has ended already, after {count:,} {units[name]}: base_config.{name} above {limit:,} continues it"
            for name, (count, limit) in self._compare(counters).items()
            if count >= limit
        ]

    def fraction_done(self, counters: Counters) -> float | None:
        """Return the fraction of the run that is done, by `max_step` or `max_iter`, whichever ends it first."""
        return max((count / limit for count, limit in self._compare(counters).values()), default=None)

    def _compare(self, counters: Counters) -> dict[str, tuple[int, int]]:
        """Return the count and the limit of each of `max_step` and `max_iter` that is a limit of the run."""
        limits = {"max_step": (counters.env_steps, self.max_step), "max_iter": (counters.iterations, self.max_iter)}
        return {name: (count, limit) for name, (count, limit) in limits.items() if limit is not None}


@dataclass
class RecentEpisodes:
    """The last `WINDOW` training episodes of one role, and the first and the best mean return of a full window.

    Attributes:
        awaited: the number of further episodes before the goal may be checked again; not above 0: none.
        trial: the returns of the episodes that confirm the goal, in this process; None: it is not being confirmed.
    """

    returns: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW))
    first: float | None = None
    best: float | None = None
    awaited: int = 0
    trial: list[float] | None = None

    @property
    def is_full(self) -> bool:
        """Return whether there are `WINDOW` episodes."""
        return len(self.returns) == WINDOW

    @property
    def mean(self) -> float:
        """Return the mean return; NaN without an episode."""
        return compute_mean(self.returns)

    @property
    def length(self) -> float:
        """Return the mean length; NaN without an episode."""
        return compute_mean(self.lengths)

    def add(self, episode_return: float, length: int) -> None:
        """Add an episode that ended."""
        self.returns.append(episode_return)
        self.lengths.append(length)
        self.awaited -= 1
        if self.trial is not None:
            self.trial.append(episode_return)
        if self.is_full:
            mean = self.mean
            self.first = mean if self.first is None else self.first
            self.best = mean if self.best is None else max(self.best, mean)

    def state(self) -> dict[str, Any]:
        """Return all but the trial, in values of JSON."""
        return {
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "first": self.first,
            "best": self.best,
            "awaited": self.awaited,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.returns.extend(state["returns"])
        self.lengths.extend(state["lengths"])
        self.first, self.best, self.awaited = state["first"], state["best"], state["awaited"]


class History:
    """The training episodes of a run: its counters, and the last episodes of each role or team.

    Attributes:
        failed_confirmations: the number of times that the goal was not confirmed.
        evaluation_is_due: whether an evaluation was due when the process ended, which the next one then makes.
    """

    def __init__(self, training: TrainingComponents, counters: Counters):
        self.training = training
        self.counters = counters
        self.recent: dict[str, RecentEpisodes] = defaultdict(RecentEpisodes)
        self.failed_confirmations = 0
        self.evaluation_is_due = False
        self._ended_lanes: dict[str, set[int]] = defaultdict(set)  # lanes that ended an episode in this iteration
        self._seconds_before, self._cpu_seconds_before = counters.seconds, counters.cpu_seconds  # of earlier processes

    def add_episodes(self, episodes: Iterable[Episode], active_lanes: Mapping[str, np.ndarray]) -> None:
        """Count the training episodes that ended in one tick.

        An iteration is over when every active lane has ended an episode in it. Then `active_lanes` is cleared, so that
        the next iteration does not wait for a lane without an agent.

        Args:
            episodes: the episodes.
            active_lanes: {role: [lanes] bool}, the lanes that had a row since the iteration began.
        """
        iteration_ended = False
        for episode in episodes:
            self.counters.episodes += 1
            self.recent[episode.team or episode.role].add(episode.episode_return, episode.length)
            self._ended_lanes[episode.role].add(episode.lane)
            if not iteration_ended and self._all_ended(active_lanes):
                iteration_ended = True
                self.counters.iterations += 1
                self._ended_lanes.clear()
        if iteration_ended:
            for lanes in active_lanes.values():
                lanes[:] = False

    def collect_recent(self) -> dict[str, RecentEpisodes]:
        """Return the last training episodes of every team, or of every role without teams."""
        return {name: self.recent[name] for teams in self.training.lanes_by_team.values() for name in teams}

    def update_seconds(self, with_cpu: bool = False) -> None:
        """Set the seconds of the counters; `with_cpu`: also the CPU seconds, which take milliseconds to measure."""
        self.counters.seconds = self._seconds_before + self.training.timer.total
        if with_cpu and self._cpu_seconds_before is not None:
            self.counters.cpu_seconds = self._cpu_seconds_before + self.training.timer.cpu_seconds

    def state(self) -> dict[str, Any]:
        """Return all but the counters, in values of JSON."""
        return {
            "recent": {role: recent.state() for role, recent in self.recent.items()},
            "ended": {role: sorted(lanes) for role, lanes in self._ended_lanes.items()},
            "failed_confirmations": self.failed_confirmations,
            "evaluation_is_due": self.evaluation_is_due,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        for role, recent in state["recent"].items():
            self.recent[role].restore(recent)
        for role, lanes in state["ended"].items():
            self._ended_lanes[role].update(lanes)
        self.failed_confirmations = state["failed_confirmations"]
        self.evaluation_is_due = state["evaluation_is_due"]

    def _all_ended(self, active_lanes: Mapping[str, np.ndarray]) -> bool:
        for role, lanes in active_lanes.items():
            ended = self._ended_lanes.get(role, set())
            # The count is the fast test; it fails after most episodes.
            if len(ended) < np.count_nonzero(lanes) or not ended.issuperset(np.flatnonzero(lanes).tolist()):
                return False
        return True


def compute_mean(values: Collection[float]) -> float:
    """Return the mean; NaN without a value."""
    return sum(values) / len(values) if values else float("nan")


@dataclass(frozen=True)
class Throughput:
    """Env steps and updates per second between two times, and the fraction of the time that each phase took."""

    env_steps: float
    updates: float
    shares: Mapping[str, float]


@dataclass(frozen=True)
class Snapshot:
    """The counters of a run at one time, and the seconds of each phase until then."""

    counters: Counters
    seconds: Mapping[str, float]

    @property
    def running_seconds(self) -> float:
        """Return the seconds of all phases but the start."""
        return sum(self.seconds.values()) - self.seconds[STARTING]

    def compute_throughput(self, start: Snapshot) -> Throughput:
        """Return the throughput since an earlier snapshot."""
        seconds = max(self.running_seconds - start.running_seconds, 1e-9)
        spent = {phase: value - start.seconds[phase] for phase, value in self.seconds.items()}
        total = max(sum(spent.values()), 1e-9)
        return Throughput(
            env_steps=(self.counters.env_steps - start.counters.env_steps) / seconds,
            updates=(self.counters.updates - start.counters.updates) / seconds,
            shares={phase: value / total for phase, value in spent.items()},
        )


@dataclass(frozen=True, kw_only=True)
class RoleProgress:
    """The progress of one role or team: means over its last training episodes and its last updates.

    Attributes:
        mean: mean return; NaN before the first episode has ended.
        first: mean return of the first full window of episodes.
        best: best mean return of a full window.
        length: mean length of an episode; NaN before the first has ended.
        lanes: number of agents.
        policy_metrics: {name: mean over the last updates}, of the policy.
        losses: {name: mean over the last updates}.
    """

    mean: float
    first: float | None
    best: float | None
    length: float
    lanes: int = 0
    policy_metrics: Mapping[str, float]
    losses: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class EvaluatedMean:
    """The mean return of an evaluation over roles, and the env steps of the run at which it started."""

    env_steps: int
    mean: float


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run.

    Attributes:
        wrote_row: whether a row of metrics has just been written.
        has_ended: whether the run has ended; `throughput` then covers the whole process.
        counters: the counters.
        max_step: env steps at which the run ends; None without this limit.
        goal: mean return that is the goal; None without a goal.
        fraction_done: fraction of the run that is done, by max_step or max_iter; None without both.
        seconds_left: the longest time that the run will take; None if it is unknown, or the run has ended.
        throughput: env steps and updates per second.
        device: devices on which the agents learn.
        faults: number of faults that this process has reported and tolerated.
        roles: {role or team: its progress}.
        evaluation: the last evaluation of the run; None before the first one, and with teams.
        best_evaluation: the best one, the newest of equally good ones; None likewise.
    """

    wrote_row: bool
    has_ended: bool = False
    counters: Counters
    max_step: int | None
    goal: float | None
    fraction_done: float | None
    seconds_left: float | None
    throughput: Throughput
    device: str = ""
    faults: int = 0
    roles: Mapping[str, RoleProgress]
    evaluation: EvaluatedMean | None = None
    best_evaluation: EvaluatedMean | None = None
