"""Telling what happens in a run: rows of metrics, lines of text, and how it stands for whoever shows it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from algorithm.agents.agent import Report
from algorithm.specs import AGENT, of_role
from algorithm.training.evaluator import Played
from algorithm.training.history import History
from algorithm.training.limits import Limits
from algorithm.training.metrics import Metrics
from algorithm.training.progress import Moment, Pace, Progress, Standing

SAMPLED = 16  # of so many updates, one is asked for its metrics
LATEST = 10  # of those, so many make the measures of a Standing
SOONEST = 1.0  # seconds behind a row before a pace of its own means anything
MEASURES = {  # metrics of a policy that are shown, and their names there
    "train/entropy": "entropy",
    "train/entropy_discrete": "discrete entropy",
    "train/entropy_continuous": "continuous entropy",
    "train/alpha_discrete": "discrete temperature",
    "train/alpha_continuous": "continuous temperature",
    "train/kl_to_average": "KL to average",
}
LOSS = "_loss"  # every metric with this ending is shown


class Reporter:
    """Tells of one run: `say` gets lines for the user, `show` how it stands."""

    def __init__(
        self,
        history: History,
        limits: Limits,
        metrics: Metrics,
        say: Callable[[str], None],
        show: Callable[[Progress], None],
    ):
        self.history, self.limits, self.metrics = history, limits, metrics
        self.parts, self.clock = history.parts, history.parts.clock
        self.say, self.show = say, show
        self._sampled: dict[str, list[dict[str, Tensor]]] = defaultdict(list)  # metrics of updates since the last row
        self._latest: dict[str, dict[str, float]] = {}  # by role: mean metrics of the last updates
        self._begin = self._row = self._moment()
        self._pace = Pace.between(self._row, self._row)

    def updated(self, role: str, report: Report) -> None:
        """An update was made and counted."""
        if not self._sampled[role] or self.history.counters.updates % SAMPLED == 0:
            self._sampled[role].append(report.metrics())

    def log(self) -> None:
        """Write a row of metrics, unless nothing has happened since the last one."""
        now = self._moment()
        if now.counters.env_steps > self._row.counters.env_steps:
            self._measure()
            self._pace = Pace.between(self._row, now)
            told = {f"scene/{name}": value for name, value in self.parts.adapter.statistics().items()}
            self.metrics.write(now.counters.env_steps, {**self._times(now), **self._scores(), **told})
            self._sampled.clear()
            self._row = now
            self.show(self._progress(now, row=True))
        self.clock.book("reporting")

    def look(self) -> None:
        """Show how the run stands now."""
        now = self._moment()
        self._measure()
        if self._row is self._begin or now.running - self._row.running > SOONEST:
            self._pace = Pace.between(self._row, now)
        self.show(self._progress(now, row=False))
        self.clock.book("reporting")

    def evaluated(self, played: Mapping[str, Played]) -> None:
        """Report the evaluation episodes that were played."""
        env_steps = self.history.counters.env_steps
        values = {}
        for role, result in played.items():
            low, high = result.interval
            measured = {
                "eval/return": result.mean,
                "eval/return_low": low,
                "eval/return_high": high,
                "eval/return_std": result.std,
                "eval/length": result.length,
            }
            values |= {_tag(role, name): value for name, value in measured.items()}
            self.say(f"evaluation{of_role(role)} at {env_steps:,} env steps: {result}")
        self.metrics.write(env_steps, values)
        self.clock.book("reporting")

    def cannot_evaluate(self, error: Exception) -> None:
        """Report that evaluation is not possible."""
        instead = "" if self.limits.goal is None else "; training episodes alone confirm the goal"
        why = " ".join(str(error).split())
        self.say(
            f"evaluation at {self.history.counters.env_steps:,} env steps is not possible: {why}; "
            f"training continues without evaluation{instead}"
        )

    def close(self) -> None:
        """Write the last row, show how the run ended with the pace of the whole session, and flush everything."""
        try:
            self.log()
            now = self._moment()
            self._pace = Pace.between(self._begin, now)
            self.show(self._progress(now, row=False, ended=True))
        finally:
            self.metrics.close()

    def _moment(self) -> Moment:
        self.history.look_at_the_clock()
        return Moment.of(self.history.counters, self.clock.seconds)

    def _times(self, now: Moment) -> dict[str, float]:
        return {
            "time/seconds": now.counters.seconds,
            "time/env_steps_per_second": self._pace.env_steps,
            "time/updates_per_second": self._pace.updates,
            "time/episodes": now.counters.episodes,
            "time/updates": now.counters.updates,
            **{f"time/{part}_fraction": share for part, share in self._pace.shares.items()},
        }

    def _scores(self) -> dict[str, float]:
        values = {}
        for name in [name for names in self.parts.team_names.values() for name in names]:
            if self.history.recent[name].returns:
                values[_tag(name, "rollout/return")] = self.history.recent[name].mean
                values[_tag(name, "rollout/length")] = self.history.recent[name].length
        for role, team in self.parts.teams.items():
            for name, value in _mean(self._sampled[role]).items():
                values[_tag(role, name)] = value
            values[_tag(role, "train/skipped_updates")] = team.learner.skipped
        return values

    def _measure(self) -> None:
        for role, sampled in self._sampled.items():
            if sampled:
                self._latest[role] = _mean(sampled[-LATEST:])

    def _progress(self, now: Moment, row: bool, ended: bool = False) -> Progress:
        limits, counters = self.limits, now.counters
        done = limits.done(counters)
        return Progress(
            row=row,
            ended=ended,
            counters=counters,
            max_step=limits.max_step,
            goal=limits.goal,
            done=done,
            seconds_left=None if ended else self._seconds_left(now.running, done),
            pace=self._pace,
            roles={
                name: self._standing(name, role if place == 0 else None)
                for role, names in self.parts.team_names.items()
                for place, name in enumerate(names)
            },
        )

    def _standing(self, name: str, role: str | None) -> Standing:
        """Return the summary of one team, with the metrics of `role`, which are shown once for all its teams."""
        recent, latest = self.history.recent[name], {} if role is None else self._latest.get(role, {})
        return Standing(
            mean=recent.mean,
            first=recent.first,
            best=recent.best,
            length=recent.length,
            measures={MEASURES[name]: value for name, value in latest.items() if name in MEASURES},
            losses={
                name.removeprefix("train/").removesuffix(LOSS): value
                for name, value in latest.items()
                if name.endswith(LOSS)
            },
        )

    def _seconds_left(self, running: float, done: float | None) -> float | None:
        before = self.limits.done(self._begin.counters)
        if done is None or before is None or done <= before:
            return None
        return max(0.0, (1 - done) / (done - before) * (running - self._begin.running))


def _tag(role: str, name: str) -> str:
    """Tags carry the role where it has a name."""
    return name if role == AGENT else f"{name}/{role}"


def _mean(updates: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """The mean of each metric over these updates."""
    if not updates:
        return {}
    return {name: torch.stack([metrics[name] for metrics in updates]).mean().item() for name in updates[0]}
