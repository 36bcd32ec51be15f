"""Counting, reporting, evaluating, saving, and knowing when to stop."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.agent import Report
from algorithm.loop.actor import Actor, Episode
from algorithm.loop.evaluator import Played
from algorithm.loop.metrics import Metrics
from algorithm.loop.parts import Parts
from algorithm.specs import AGENT

WINDOW = 20  # training episodes whose mean return must reach the goal, and held-out episodes that confirm it
SAMPLED = 8  # of so many updates, one is asked for its metrics


@dataclass
class Counters:
    """How far a run is."""

    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    iterations: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Limits:
    """When to do what. Intervals and `max_step` are env steps, None is never."""

    max_step: int | None
    max_iter: int | None
    log_every: int
    save_every: int | None
    evaluate_every: int | None
    goal: float | None


class Monitor:
    """Watches one run: `evaluate` plays so many held-out episodes, `save` writes a checkpoint, `say` tells the user."""

    def __init__(
        self,
        parts: Parts,
        limits: Limits,
        counters: Counters,
        metrics: Metrics,
        evaluate: Callable[[int], dict[str, Played]],
        save: Callable[[Counters], None],
        say: Callable[[str], None],
    ):
        self.parts, self.limits, self.counters = parts, limits, counters
        self.metrics, self.evaluate, self.save, self.say = metrics, evaluate, save, say
        self.recent: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self.lengths: dict[str, deque[int]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self.played: dict[str, Played] | None = None  # the last evaluation
        self.confirmed = False
        self._metrics: dict[str, list[dict[str, Tensor]]] = defaultdict(list)  # of updates since the last row
        self._until_check = 0  # training episodes before the goal may be checked again
        self._ended: dict[str, set[int]] = defaultdict(set)  # lanes that ended an episode in this iteration
        self._begin = time.perf_counter() - counters.seconds
        self._logged = Counters(**vars(counters))
        self._intervals: list[tuple[int, Callable[[], None]]] = [
            (every, action)
            for every, action in [
                (limits.log_every, self._log),
                (limits.evaluate_every, self._evaluate),
                (limits.save_every, self._save),  # last, so that nothing of this moment is done again on resuming
            ]
            if every
        ]
        self._seen = counters.env_steps  # when the intervals were last looked at
        self._due = self._soonest()

    def updated(self, role: str, report: Report) -> None:
        """An update was made."""
        self.counters.updates += 1
        if not self._metrics[role] or self.counters.updates % SAMPLED == 0:
            self._metrics[role].append(report.metrics())

    def tick(self, actor: Actor) -> bool:
        """The simulator has moved on: do what is due. True when the run is over."""
        counters = self.counters
        counters.env_steps += actor.env_steps
        actor.env_steps = 0
        ended = bool(actor.episodes)
        while actor.episodes:
            self._episode(actor.episodes.popleft())
        if ended and self._goal_met():
            self._confirm()
        if counters.env_steps >= self._due:
            for every, action in self._intervals:
                if counters.env_steps // every > self._seen // every:
                    action()
            self._seen = counters.env_steps
            self._due = self._soonest()
        limits = self.limits
        return (
            self.confirmed
            or (limits.max_step is not None and counters.env_steps >= limits.max_step)
            or (limits.max_iter is not None and counters.iterations >= limits.max_iter)
        )

    def finish(self) -> None:
        """Log and save what there is; save even where there is no logging any more."""
        try:
            self._log()
        finally:
            self._save()
            self.metrics.close()

    def state(self) -> dict[str, Any]:
        """What decides beside the counters, as values that JSON holds. The intervals follow from the counters."""
        return {
            "recent": {role: list(returns) for role, returns in self.recent.items()},
            "lengths": {role: list(lengths) for role, lengths in self.lengths.items()},
            "ended": {role: sorted(lanes) for role, lanes in self._ended.items()},
            "until_check": self._until_check,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        for role, returns in state["recent"].items():
            self.recent[role].extend(returns)
            self.lengths[role].extend(state["lengths"][role])
        for role, lanes in state["ended"].items():
            self._ended[role].update(lanes)
        self._until_check = state["until_check"]

    def mean_return(self, role: str) -> float:
        """Of the last training episodes; NaN before there is one."""
        return float(np.mean(self.recent[role])) if self.recent[role] else float("nan")

    def _episode(self, episode: Episode) -> None:
        self.counters.episodes += 1
        self._until_check -= 1
        self.recent[episode.role].append(episode.reward)
        self.lengths[episode.role].append(episode.length)
        self._ended[episode.role].add(episode.lane)
        if all(len(self._ended[role]) == team.role.lanes for role, team in self.parts.teams.items()):
            self.counters.iterations += 1
            self._ended.clear()

    def _goal_met(self) -> bool:
        """Every role's last training episodes reach the goal."""
        goal = self.limits.goal
        if goal is None or self._until_check > 0:
            return False
        return all(len(self.recent[role]) == WINDOW and self.mean_return(role) >= goal for role in self.parts.teams)

    def _confirm(self) -> None:
        self._evaluate()
        self.confirmed = all(played.mean >= self.limits.goal for played in self.played.values())
        self._until_check = WINDOW

    def _soonest(self) -> int:
        """The env step at which an interval ends next."""
        return min((self._seen // every + 1) * every for every, _ in self._intervals)

    def _save(self) -> None:
        self._clock()
        self.save(self.counters)

    def _evaluate(self) -> None:
        self.played = self.evaluate(WINDOW)
        for role, played in self.played.items():
            self.metrics.write(
                self.counters.env_steps,
                {
                    self._tag(role, "eval/return"): played.mean,
                    self._tag(role, "eval/return_std"): played.std,
                    self._tag(role, "eval/length"): played.length,
                },
            )
            self.say(
                f"evaluation{self._of(role)}: {played.mean:.1f} +- {played.std:.1f} over {len(played.returns)} episodes"
            )

    def _log(self) -> None:
        self._clock()
        now, before = self.counters, self._logged
        if now.env_steps == before.env_steps:
            return
        seconds = max(now.seconds - before.seconds, 1e-9)
        steps, updates = (now.env_steps - before.env_steps) / seconds, (now.updates - before.updates) / seconds
        values = {
            "time/seconds": now.seconds,
            "time/env_steps_per_second": steps,
            "time/updates_per_second": updates,
            "time/episodes": now.episodes,
            "time/updates": now.updates,
        }
        returns = []
        for role in self.parts.teams:
            if self.recent[role]:
                values[self._tag(role, "reward/return")] = self.mean_return(role)
                values[self._tag(role, "reward/length")] = float(np.mean(self.lengths[role]))
            for name, value in _mean(self._metrics.pop(role, [])).items():
                values[self._tag(role, name)] = value
            values[self._tag(role, "loss/skipped")] = self.parts.teams[role].learner.skipped
            returns.append(f"return{self._of(role)} {self.mean_return(role):.1f}")
        self.metrics.write(now.env_steps, values)
        of = f" of {self.limits.max_step:,}" if self.limits.max_step else ""
        self.say(
            f"{now.env_steps:,}{of} steps  {', '.join(returns)}  "
            f"{now.episodes:,} episodes  {steps:,.0f} steps/s  {updates:,.0f} updates/s"
        )
        self._logged = Counters(**vars(now))

    def _clock(self) -> None:
        self.counters.seconds = time.perf_counter() - self._begin

    @staticmethod
    def _tag(role: str, name: str) -> str:
        """Tags carry the role where it has a name."""
        return name if role == AGENT else f"{name}/{role}"

    @staticmethod
    def _of(role: str) -> str:
        return "" if role == AGENT else f" of {role}"


def _mean(updates: list[dict[str, Tensor]]) -> dict[str, float]:
    """The mean of each metric over these updates."""
    if not updates:
        return {}
    return {name: torch.stack([metrics[name] for metrics in updates]).mean().item() for name in updates[0]}
