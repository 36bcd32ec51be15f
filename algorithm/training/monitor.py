"""The monitor of a run: when it is logged, evaluated and saved, which weights are the best, and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from math import inf
from typing import Any, Literal, Protocol

import numpy as np

from algorithm.adapters.adapter import SimulatorError
from algorithm.agents.agent import LossReport
from algorithm.training.actor import Actor
from algorithm.training.episodes import Episode
from algorithm.training.evaluator import EvaluationResult
from algorithm.training.progress import WINDOW, Counters, History, Limits, RecentEpisodes
from algorithm.training.reporter import Reporter

ConfirmedBy = Literal["evaluation", "training"]  # the kind of episodes that confirmed a goal

DISPLAY_INTERVAL = 0.25  # seconds between two calls of the display


class BestRecord(Protocol):
    """A record of the checkpoint with the best evaluation."""

    @property
    def mean(self) -> float:
        """Return the mean return of its evaluation; minus infinity without one."""

    def set_best(self, checkpoint: Any, mean: float) -> None:
        """Record that a checkpoint, as `save` returned it, is the best."""

    def clear(self) -> None:
        """Record that no checkpoint is the best."""


class RunCallbacks(Protocol):
    """The callbacks of a run, as the monitor uses them; `stop_requested` ends the run."""

    stop_requested: bool

    def on_evaluation(self, results: Mapping[str, EvaluationResult]) -> object:
        """Receive the result of an evaluation, by role or team."""


class Monitor:
    """A monitor, which is called after each tick; it logs, evaluates and saves when that is due.

    If evaluation is not possible (`evaluate` is None, or raises SimulatorError), the run continues without it.
    A goal that was reached is then confirmed by the next `WINDOW` training episodes of every role.

    Args:
        history: the counters and the recent episodes.
        limits: the limits, intervals and goal of the run.
        reporter: writes metrics, and shows the progress.
        evaluate: plays the given number of evaluation episodes per role; None if evaluation is not possible.
        save: writes a checkpoint and returns it; None if it could not be written.
        best: the record of the best checkpoint.
        callbacks: the callbacks of the run.

    Attributes:
        evaluation: the results of the last evaluation.
        confirmed_by: the kind of episodes that confirmed the goal; None if it is not confirmed.
        stopped: whether a callback has stopped the run.
    """

    def __init__(
        self,
        history: History,
        limits: Limits,
        reporter: Reporter,
        evaluate: Callable[[int], dict[str, EvaluationResult]] | None,
        save: Callable[[Counters], Any],
        best: BestRecord,
        callbacks: RunCallbacks,
    ):
        self.history, self.limits, self.reporter = history, limits, reporter
        self.training, self.counters, self.timer = history.training, history.counters, history.training.timer
        self.evaluate, self.save, self.best, self.callbacks = evaluate, save, best, callbacks
        self.evaluation: dict[str, EvaluationResult] | None = None
        self.confirmed_by: ConfirmedBy | None = None
        self.stopped = False
        # The number of training episodes of each role when a confirmation by training episodes began.
        self._trial_counts: dict[str, int] | None = None
        self._evaluated_at = -1  # env steps of the last evaluation
        self._pending_best: float | None = None  # mean return of the best weights, which are not saved yet
        # Saving is last, so that a resumed run does not repeat the other actions.
        actions: list[tuple[int | None, Callable[[], object]]] = [
            (limits.log_every, reporter.log_metrics),
            (limits.evaluate_every, self._evaluate),
            (limits.save_every, self._save),
        ]
        self._intervals = [(every, action) for every, action in actions if every]
        self._last_checked = self.counters.env_steps  # env steps when the intervals were last checked
        self._next_due = self._find_next_due()
        self._next_display = -inf
        self._checks_goal = False  # episodes have ended since the goal was last checked

    def record_update(self, role: str, report: LossReport) -> None:
        """Count an update, and record its metrics."""
        self.counters.updates += 1
        self.reporter.record_update(role, report)

    def tick(self, actor: Actor) -> bool:
        """Count what `actor` has collected in a tick, and do what is due. Return whether the run is over."""
        self.count_steps(actor.env_steps)
        actor.env_steps = 0
        if actor.episodes:
            self.count_episodes(actor.episodes, actor.active_lanes)
            actor.episodes.clear()
        return self.do_due()

    def count_steps(self, env_steps: int) -> None:
        """Count env steps."""
        self.counters.env_steps += env_steps

    def count_episodes(self, episodes: Iterable[Episode], active_lanes: Mapping[str, np.ndarray]) -> None:
        """Count the episodes that ended, with the arguments of `History.add_episodes`."""
        self.history.add_episodes(episodes, active_lanes)
        self._checks_goal = True

    @property
    def next_due(self) -> int | float:
        """Return the env steps at which an interval or the run ends."""
        return min(self._next_due, self.limits.last_step or inf)

    @property
    def is_due(self) -> bool:
        """Return whether `do_due` would do more than to show the progress."""
        return (
            self.counters.env_steps >= self._next_due
            or self._is_over()
            or (self._checks_goal and (self._trial_counts is not None or self._is_goal_met()))
        )

    def do_due(self) -> bool:
        """Check the goal, log, evaluate, save and show the progress, if due. Return whether the run is over."""
        if self._checks_goal:
            self._checks_goal = False
            self._check_goal()
        if self.counters.env_steps >= self._next_due:
            self._run_intervals()
        is_over = self._is_over()
        if is_over and self.limits.evaluates:
            self._evaluate()
        if self._pending_best is not None:
            self._save()
        self.show_progress()
        return is_over

    def show_progress(self) -> None:
        """Show the progress, unless it was shown less than `DISPLAY_INTERVAL` ago."""
        if self.timer.last_lap >= self._next_display:
            self._next_display = self.timer.last_lap + DISPLAY_INTERVAL
            self.reporter.show_progress()

    @property
    def confirmed(self) -> bool:
        """Return whether the goal was reached and confirmed."""
        return self.confirmed_by is not None

    @property
    def mean_returns(self) -> dict[str, float]:
        """Return the mean return of the last training episodes of every role or team; NaN before the first ended."""
        return {name: recent.mean for name, recent in self.history.collect_recent().items()}

    def finish(self) -> None:
        """Save a final checkpoint, and log the last metrics even if it could not be saved."""
        try:
            self._save()
        finally:
            self.reporter.close()

    def abort(self) -> None:
        """Log the last metrics without saving."""
        self.reporter.close()

    def _check_goal(self) -> None:
        """Check the goal after episodes have ended."""
        if self._trial_counts is not None:
            self._confirm_by_training(self._trial_counts)
        elif self._is_goal_met():
            self._confirm()

    def _run_intervals(self) -> None:
        """Run the actions whose intervals have ended."""
        for every, action in self._intervals:
            if self.counters.env_steps // every > self._last_checked // every:
                action()
        self._last_checked = self.counters.env_steps
        self._next_due = self._find_next_due()

    def _find_next_due(self) -> int:
        """Return the env steps at which the next interval ends."""
        return min((self._last_checked // every + 1) * every for every, _ in self._intervals)

    def _is_over(self) -> bool:
        if self.confirmed_by is not None or self.limits.are_reached(self.counters):
            return True
        self.stopped = self.callbacks.stop_requested
        return self.stopped

    def _is_goal_met(self) -> bool:
        """Return whether the last training episodes of every role or team reach the goal."""
        goal = self.limits.goal
        if goal is None or self.history.episodes_until_check > 0:
            return False
        return all(recent.is_full and recent.mean >= goal for recent in self.history.collect_recent().values())

    def _confirm(self) -> None:
        """Check whether evaluation episodes reach the goal, too; weights that do are then the best."""
        evaluation = self._evaluate()
        if evaluation is None:
            self._trial_counts = {name: recent.count for name, recent in self.history.collect_recent().items()}
            return
        self.history.episodes_until_check = WINDOW
        goal = self.limits.goal
        if goal is not None and all(result.mean >= goal for result in evaluation.values()):
            self._set_confirmed("evaluation", evaluation.values())

    def _confirm_by_training(self, trial_counts: Mapping[str, int]) -> None:
        """Check whether the next episodes reach the goal, too, once every role or team has played `WINDOW` of them."""
        recent = self.history.collect_recent()
        if all(recent[name].count - start >= WINDOW for name, start in trial_counts.items()):
            self._trial_counts = None
            if self._is_goal_met():
                self._set_confirmed("training", recent.values())

    def _set_confirmed(
        self, confirmed_by: ConfirmedBy, episodes: Collection[EvaluationResult | RecentEpisodes]
    ) -> None:
        self.confirmed_by = confirmed_by
        self._mark_best(_mean(episodes))

    def _mark_best(self, mean: float) -> None:
        """Make the next checkpoint the best.

        Not if teams share an agent: a higher return of one team is a lower one of another, so that returns do not
        measure weights, and the newest weights are played.
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
            except SimulatorError as error:
                self.evaluate = None
                self.reporter.report_evaluation_error(error)
                return None
            finally:
                self.timer.lap("evaluation")
            self._evaluated_at = self.counters.env_steps
            mean = _mean(self.evaluation.values())
            self._pending_best = None
            if mean >= self.best.mean:  # of equally good weights the newest are the best
                self._mark_best(mean)
            self.reporter.report_evaluation(self.evaluation)
            self.reporter.show_progress()  # callbacks receive the env steps of an evaluation before its result
            self.callbacks.on_evaluation(self.evaluation)
        return self.evaluation

    def _save(self) -> None:
        self.timer.lap("acting")
        self.history.update_seconds()
        self.history.update_cpu_seconds()
        checkpoint = self.save(self.counters)
        if self.training.has_teams:  # they may have appeared after a checkpoint became the best
            self.best.clear()
        elif checkpoint and self._pending_best is not None:
            self.best.set_best(checkpoint, self._pending_best)
            self._pending_best = None
        self.timer.lap("saving")


def _mean(episodes: Collection[EvaluationResult | RecentEpisodes]) -> float:
    """Return the mean over roles of the mean return."""
    return sum(each.mean for each in episodes) / len(episodes)
