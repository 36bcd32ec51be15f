"""Deciding: when a run is reported, evaluated and saved, which of its weights are the best, and when it is over."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import inf
from typing import Any, Literal

from algorithm.adapters.adapter import EnvironmentFailed
from algorithm.agents.agent import Report
from algorithm.checkpointing.best import Best
from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.training.actor import Actor
from algorithm.training.evaluator import Played
from algorithm.training.history import WINDOW, Counters, History, Recent
from algorithm.training.limits import Limits
from algorithm.training.reporter import Reporter

ConfirmedBy = Literal["evaluation", "training"]  # whose episodes confirmed a goal

LOOK = 0.25  # seconds between pictures of the run


class Monitor:
    """Watches one run: `evaluate` plays so many evaluation episodes, `save` writes a checkpoint, or reports why not.

    If evaluation is not possible (`evaluate` is None, or raises EnvironmentFailed), the run continues
    without it, and a goal that was reached is confirmed by as many later training episodes of every role.
    """

    def __init__(
        self,
        history: History,
        limits: Limits,
        reporter: Reporter,
        evaluate: Callable[[int], dict[str, Played]] | None,
        save: Callable[[Counters], Checkpoint | None],
        best: Best,
    ):
        self.history, self.limits, self.reporter = history, limits, reporter
        self.parts, self.counters, self.clock = history.parts, history.counters, history.parts.clock
        self.evaluate, self.save, self.best = evaluate, save, best
        self.played: dict[str, Played] | None = None  # the last evaluation
        self.confirmed_by: ConfirmedBy | None = None
        self._trial: dict[str, int] | None = None  # training episodes of each role when a confirmation by them began
        self._played_at = -1  # env steps of the last evaluation
        self._until_check = 0  # training episodes before the goal may be checked again
        self._best_due: float | None = None  # mean return of the weights that are the best and not yet saved
        # Saving comes last in a tick, so that a resumed run does nothing of this moment again.
        self._intervals: list[tuple[int, Callable[[], None]]] = [
            (every, action)
            for every, action in [
                (limits.log_every, reporter.log),
                (limits.evaluate_every, self._evaluate),
                (limits.save_every, self._save),
            ]
            if every
        ]
        self._seen = self.counters.env_steps  # when the intervals were last looked at
        self._due = self._soonest()
        self._look_at = -inf

    def updated(self, role: str, report: Report) -> None:
        """An update was made."""
        self.counters.updates += 1
        self.reporter.updated(role, report)

    def tick(self, actor: Actor) -> bool:
        """The simulator has moved on: do what is due. True when the run is over."""
        counters = self.counters
        counters.env_steps += actor.env_steps
        actor.env_steps = 0
        if actor.episodes:
            self._take(actor)
        if counters.env_steps >= self._due:
            self._attend()
        over = self._over()
        if over and self.limits.evaluated:
            self._evaluate()
        if self._best_due is not None:
            self._save()
        if self.clock.now >= self._look_at:
            self._look_at = self.clock.now + LOOK
            self.reporter.look()
        return over

    @property
    def confirmed(self) -> bool:
        """Return whether the goal was reached and confirmed."""
        return self.confirmed_by is not None

    def finish(self) -> None:
        """Save and log what there is; log even where it cannot be saved."""
        try:
            self._save()
        finally:
            self.reporter.close()

    def state(self) -> dict[str, Any]:
        """What decides beside the counters, as values that JSON holds. The intervals follow from the counters."""
        return {**self.history.state(), "until_check": self._until_check}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        self.history.restore(state)
        self._until_check = state["until_check"]

    def give_up(self) -> None:
        """Log, and leave the checkpoints as they are."""
        self.reporter.close()

    @property
    def mean_returns(self) -> dict[str, float]:
        """Return the mean return of the last training episodes of every team; NaN before the first has ended."""
        return {name: recent.mean for name, recent in self._recent().items()}

    def _take(self, actor: Actor) -> None:
        """Count the episodes that ended; check the goal."""
        if actor.episodes:  # at most ticks none has ended
            self._until_check -= len(actor.episodes)
            self.history.episodes(actor.episodes, actor.shown)
            actor.episodes.clear()
        if self._trial is not None:
            self._confirm_by_training(self._trial)
        elif self._goal_met():
            self._confirm()

    def _attend(self) -> None:
        """Do what the intervals ask for."""
        for every, action in self._intervals:
            if self.counters.env_steps // every > self._seen // every:
                action()
        self._seen = self.counters.env_steps
        self._due = self._soonest()

    def _soonest(self) -> int:
        """The env step at which an interval ends next."""
        return min((self._seen // every + 1) * every for every, _ in self._intervals)

    def _over(self) -> bool:
        done = self.limits.done(self.counters)
        return self.confirmed or (done is not None and done >= 1)

    def _goal_met(self) -> bool:
        """Every role's last training episodes reach the goal."""
        goal = self.limits.goal
        if goal is None or self._until_check > 0:
            return False
        return all(recent.full and recent.mean >= goal for recent in self._recent().values())

    def _recent(self) -> dict[str, Recent]:
        """Return the last training episodes of every team."""
        return {name: self.history.recent[name] for names in self.parts.team_names.values() for name in names}

    def _confirm(self) -> None:
        """Check whether evaluation episodes reach the goal too. Weights that do count as the best from then on."""
        played = self._evaluate()
        if played is None:
            self._trial = {name: recent.count for name, recent in self._recent().items()}
            return
        self._until_check = WINDOW
        if all(result.mean >= self.limits.goal for result in played.values()):
            self._reach("evaluation", played.values())

    def _confirm_by_training(self, trial: Mapping[str, int]) -> None:
        """Check whether the episodes that ended since the goal was met reach it, once every role has enough of them."""
        recent = self._recent()
        if all(recent[name].count - begin >= WINDOW for name, begin in trial.items()):
            self._trial = None
            if self._goal_met():
                self._reach("training", recent.values())

    def _reach(self, confirmed_by: ConfirmedBy, episodes: Collection[Played | Recent]) -> None:
        self.confirmed_by = confirmed_by
        self._mark_best(_mean(episodes))

    def _mark_best(self, mean: float) -> None:
        """Name the next checkpoint the best.

        Not if teams share an agent: a better return of one team is a worse one of another, and the newest is played.
        """
        if not self.parts.has_teams:
            self._best_due = mean

    def _evaluate(self) -> Mapping[str, Played] | None:
        """Play evaluation episodes, once at the same number of env steps; None if that is not possible."""
        if self.evaluate is None:
            return None
        if self._played_at != self.counters.env_steps:
            self.clock.book("acting")
            try:
                self.played = self.evaluate(WINDOW)
            except EnvironmentFailed as error:
                self.evaluate = None
                self.reporter.cannot_evaluate(error)
                return None
            finally:
                self.clock.book("evaluation")
            self._played_at = self.counters.env_steps
            mean = _mean(self.played.values())
            self._best_due = None
            if mean >= self.best.mean:  # of weights that do equally well, as in a game of zero sum, the latest
                self._mark_best(mean)
            self.reporter.evaluated(self.played)
        return self.played

    def _save(self) -> None:
        self.clock.book("acting")
        self.history.look_at_the_clock()
        checkpoint = self.save(self.counters)
        if self.parts.has_teams:  # since now, perhaps: what was the best before had no opponent
            self.best.forget()
        elif checkpoint and self._best_due is not None:
            self.best.name(checkpoint, self._best_due)
            self._best_due = None
        self.clock.book("saving")


def _mean(episodes: Collection[Played | Recent]) -> float:
    """Return the mean return over roles."""
    return sum(each.mean for each in episodes) / len(episodes)
