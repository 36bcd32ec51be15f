"""What has happened in a run so far, counted."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from algorithm.training.actor import Episode
from algorithm.training.components import TrainingComponents

WINDOW = 20  # training episodes whose mean return must reach the goal, and evaluation episodes that confirm it


@dataclass
class Counters:
    """How far a run is."""

    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    iterations: int = 0
    seconds: float = 0.0


@dataclass
class RecentEpisodes:
    """The last training episodes of one role, and the first and the best mean return of a full window."""

    returns: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW))
    first: float | None = None
    best: float | None = None
    count: int = 0  # episodes since this process started

    @property
    def is_full(self) -> bool:
        """There are as many as count."""
        return len(self.returns) == WINDOW

    @property
    def mean(self) -> float:
        """Mean return; NaN before there is one."""
        return _mean(self.returns)

    @property
    def length(self) -> float:
        """Mean length; NaN before there is one."""
        return _mean(self.lengths)

    def add(self, episode_return: float, length: int) -> None:
        """An episode ended."""
        self.returns.append(episode_return)
        self.lengths.append(length)
        self.count += 1
        if self.is_full:
            mean = self.mean
            self.first = mean if self.first is None else self.first
            self.best = mean if self.best is None else max(self.best, mean)

    def state(self) -> dict[str, Any]:
        """All of it, as values that JSON holds."""
        return {"returns": list(self.returns), "lengths": list(self.lengths), "first": self.first, "best": self.best}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        self.returns.extend(state["returns"])
        self.lengths.extend(state["lengths"])
        self.first, self.best = state["first"], state["best"]


class History:
    """Counts a run: its counters, and the last training episodes of each role."""

    def __init__(self, training: TrainingComponents, counters: Counters):
        self.training = training
        self.counters = counters
        self.recent: dict[str, RecentEpisodes] = defaultdict(RecentEpisodes)
        self._ended_lanes: dict[str, set[int]] = defaultdict(set)  # lanes that ended an episode in this iteration
        self._seconds_before = counters.seconds  # of earlier sessions

    def add_episodes(self, episodes: Iterable[Episode], active_lanes: Mapping[str, np.ndarray]) -> None:
        """Count the training episodes that ended in one tick.

        An iteration is over when every lane that was `active_lanes` in it has ended an episode. Then `active_lanes` [lanes] of each
        role is cleared, so that an iteration never waits for a lane without an agent.
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

    def _all_ended(self, active_lanes: Mapping[str, np.ndarray]) -> bool:
        return all(
            self._ended_lanes.get(role, set()).issuperset(np.flatnonzero(lanes)) for role, lanes in active_lanes.items()
        )

    def state(self) -> dict[str, Any]:
        """What it knows beside the counters, as values that JSON holds."""
        return {
            "recent": {role: recent.state() for role, recent in self.recent.items()},
            "ended": {role: sorted(lanes) for role, lanes in self._ended_lanes.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        for role, recent in state["recent"].items():
            self.recent[role].restore(recent)
        for role, lanes in state["ended"].items():
            self._ended_lanes[role].update(lanes)

    def update_seconds(self) -> None:
        """Bring `seconds` up to date."""
        self.counters.seconds = self._seconds_before + self.training.timer.total


def _mean(values: deque) -> float:
    return sum(values) / len(values) if values else float("nan")
