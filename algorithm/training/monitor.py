"""Deciding: when a run is reported, evaluated and saved, which of its weights are the best, and when it is over."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import inf
from typing import Any, Literal

from algorithm.adapters.adapter import EnvironmentStartError
from algorithm.agents.agent import LossReport
from algorithm.checkpointing.best import BestCheckpoint
from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.training.actor import Actor
from algorithm.training.evaluator import EvaluationResult
from algorithm.training.history import WINDOW, Counters, History, RecentEpisodes
from algorithm.training.limits import Limits
from algorithm.training.reporter import Reporter

ConfirmedBy = Literal["evaluation", "training"]  # whose episodes confirmed a goal

DISPLAY_INTERVAL = 0.25  # seconds between pictures of the run


class Monitor:
    """Watches one run: `evaluate` plays so many evaluation episodes, `save` writes a checkpoint, or reports why not.

    If evaluation is not possible (`evaluate` is None, or raises EnvironmentStartError), the run continues
    without it, and a goal that was reached is confirmed by as many later training episodes of every role.
    """

    def __init__(
        self,
        history: History,
        limits: Limits,
        reporter: Reporter,
        evaluate: Callable[[int], dict[str, EvaluationResult]] | None,
        save: Callable[[Counters], Checkpoint | None],
        best: BestCheckpoint,
    ):
        self.history, self.limits, self.reporter = history, limits, reporter
        self.training, self.counters, self.timer = history.training, history.counters, history.training.timer
        self.evaluate, self.save, self.best = evaluate, save, best
        self.evaluation: dict[str, EvaluationResult] | None = None  # the last evaluation
        self.confirmed_by: ConfirmedBy | None = None
        self._trial_counts: dict[str, int] | None = (
            None  # training episodes of each role when a confirmation by them began
        )
        self._evaluated_at = -1  # env steps of the last evaluation
        self._episodes_until_check = 0  # training episodes before the goal may be checked again
        self._pending_best: float | None = None  # mean return of the weights that are the best and not yet saved
        # Saving comes last in a tick, so that a resumed run does nothing of this moment again.
        self._intervals: list[tuple[int, Callable[[], None]]] = [
            (every, action)
            for every, action in [
                (limits.log_every, reporter.log_metrics),
                (limits.evaluate_every, self._evaluate),
                (limits.save_every, self._save),
            ]
            if every
        ]
        self._last_checked = self.counters.env_steps  # when the intervals were last looked at
        self._next_due = self._find_next_due()
        self._next_display = -inf

    def record_update(self, role: str, report: LossReport) -> None:
        """An update was made."""
        self.counters.updates += 1
        self.reporter.record_update(role, report)

    def tick(self, actor: Actor) -> bool:
        """The simulator has moved on: do what is due. True when the run is over."""
        counters = self.counters
        counters.env_steps += actor.env_steps
        actor.env_steps = 0
        if actor.episodes:
            self._count_episodes(actor)
        if counters.env_steps >= self._next_due:
            self._run_intervals()
        over = self._is_over()
        if over and self.limits.evaluates:
            self._evaluate()
        if self._pending_best is not None:
            self._save()
        if self.timer.last_lap >= self._next_display:
            self._next_display = self.timer.last_lap + DISPLAY_INTERVAL
            self.reporter.show_progress()
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
        return {**self.history.state(), "until_check": self._episodes_until_check}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        self.history.restore(state)
        self._episodes_until_check = state["until_check"]

    def abort(self) -> None:
        """Log, and leave the checkpoints as they are."""
        self.reporter.close()

    @property
    def mean_returns(self) -> dict[str, float]:
        """Return the mean return of the last training episodes of every team; NaN before the first has ended."""
        return {name: recent.mean for name, recent in self._collect_recent().items()}

    def _count_episodes(self, actor: Actor) -> None:
        """Count the episodes that ended; check the goal."""
        if actor.episodes:  # at most ticks none has ended
            self._episodes_until_check -= len(actor.episodes)
            self.history.add_episodes(actor.episodes, actor.active_lanes)
            actor.episodes.clear()
        if self._trial_counts is not None:
            self._confirm_by_training(self._trial_counts)
        elif self._is_goal_met():
            self._confirm()

    def _run_intervals(self) -> None:
        """Do what the intervals ask for."""
        for every, action in self._intervals:
            if self.counters.env_steps // every > self._last_checked // every:
                action()
        self._last_checked = self.counters.env_steps
        self._next_due = self._find_next_due()

    def _find_next_due(self) -> int:
        """The env step at which an interval ends next."""
        return min((self._last_checked // every + 1) * every for every, _ in self._intervals)

    def _is_over(self) -> bool:
        fraction_done = self.limits.fraction_done(self.counters)
        return self.confirmed or (fraction_done is not None and fraction_done >= 1)

    def _is_goal_met(self) -> bool:
        """Every role's last training episodes reach the goal."""
        goal = self.limits.goal
        if goal is None or self._episodes_until_check > 0:
            return False
        return all(recent.is_full and recent.mean >= goal for recent in self._collect_recent().values())

    def _collect_recent(self) -> dict[str, RecentEpisodes]:
        """Return the last training episodes of every team."""
        return {name: self.history.recent[name] for names in self.training.team_names.values() for name in names}

    def _confirm(self) -> None:
        """Check whether evaluation episodes reach the goal too. Weights that do count as the best from then on."""
        evaluation = self._evaluate()
        if evaluation is None:
            self._trial_counts = {name: recent.count for name, recent in self._collect_recent().items()}
            return
        self._episodes_until_check = WINDOW
        if all(result.mean >= self.limits.goal for result in evaluation.values()):
            self._set_confirmed("evaluation", evaluation.values())

    def _confirm_by_training(self, trial: Mapping[str, int]) -> None:
        """Check whether the episodes that ended since the goal was met reach it, once every role has enough of them."""
        recent = self._collect_recent()
        if all(recent[name].count - start >= WINDOW for name, start in trial.items()):
            self._trial_counts = None
            if self._is_goal_met():
                self._set_confirmed("training", recent.values())

    def _set_confirmed(
        self, confirmed_by: ConfirmedBy, episodes: Collection[EvaluationResult | RecentEpisodes]
    ) -> None:
        self.confirmed_by = confirmed_by
        self._mark_best(_mean(episodes))

    def _mark_best(self, mean: float) -> None:
        """Name the next checkpoint the best.

        Not if teams share an agent: a better return of one team is a worse one of another, and the newest is played.
        """
        if not self.training.has_teams:
            self._pending_best = mean

    def _evaluate(self) -> Mapping[str, EvaluationResult] | None:
        """Play evaluation episodes, once at the same number of env steps; None if that is not possible."""
        if self.evaluate is None:
            return None
        if self._evaluated_at != self.counters.env_steps:
            self.timer.lap("acting")
            try:
                self.evaluation = self.evaluate(WINDOW)
            except EnvironmentStartError as error:
                self.evaluate = None
                self.reporter.report_evaluation_error(error)
                return None
            finally:
                self.timer.lap("evaluation")
            self._evaluated_at = self.counters.env_steps
            mean = _mean(self.evaluation.values())
            self._pending_best = None
            if mean >= self.best.mean:  # of weights that do equally well, as in a game of zero sum, the latest
                self._mark_best(mean)
            self.reporter.report_evaluation(self.evaluation)
        return self.evaluation

    def _save(self) -> None:
        self.timer.lap("acting")
        self.history.update_seconds()
        checkpoint = self.save(self.counters)
        if self.training.has_teams:  # since now, perhaps: what was the best before had no opponent
            self.best.clear()
        elif checkpoint and self._pending_best is not None:
            self.best.set_best(checkpoint, self._pending_best)
            self._pending_best = None
        self.timer.lap("saving")


def _mean(episodes: Collection[EvaluationResult | RecentEpisodes]) -> float:
    """Return the mean return over roles."""
    return sum(each.mean for each in episodes) / len(episodes)
