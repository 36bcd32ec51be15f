"""The monitor of a run: when it is logged, evaluated and saved, which weights are the best, its goal, and its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

import numpy as np

from algorithm.adapters.adapter import SimulatorError
from algorithm.agents.agent import LossResult
from algorithm.training.actor import Actor
from algorithm.training.evaluator import EvaluationResult, Evaluations, Outcome, Results
from algorithm.training.invalid_values import Episode
from algorithm.training.progress import WINDOW, Counters, History, Limits, RecentEpisodes, compute_mean
from algorithm.training.reporter import Reporter

ConfirmedBy = Literal["evaluation", "training"]  # the kind of episodes that confirmed a goal
DISPLAY_INTERVAL = 0.25  # seconds between two calls of the display


class GoalCheck:
    """A check whether the last training episodes of every role or team reach the goal, and others confirm it.

    A confirmation that fails makes the next one longer by the length of the first. If all had the same length, one of
    them would confirm a policy that is worse than the goal, sooner or later. The probability that any of these
    confirmations does is bounded, since it decreases exponentially from one to the next.

    Args:
        history: the recent episodes.
        goal: the mean return to reach; None: it is never reached.
        episodes: the number of evaluation episodes of the first confirmation.

    Attributes:
        is_in_trial: whether the goal was reached, and the next training episodes confirm it.
    """

    def __init__(self, history: History, goal: float | None, episodes: int):
        self.history, self.goal, self.episodes = history, goal, episodes
        self.is_in_trial = False

    @property
    def confirmation_episodes(self) -> int:
        """Return the number of evaluation episodes of each role that the next confirmation needs."""
        return self.episodes * self._length

    def is_met(self) -> bool:
        """Return whether the last training episodes reach the goal, and no confirmation waits for more of them."""
        recent = self.history.collect_recent().values()
        is_complete = bool(recent) and all(each.is_full and each.awaited <= 0 for each in recent)
        return is_complete and self._is_reached_by(recent)

    def confirm(self, results: Results) -> bool:
        """Return whether the evaluation episodes of a confirmation reach the goal.

        If not, the next one waits until every role or team has ended as many new training episodes.
        """
        if self._is_reached_by(results.values()):
            return True
        for each in self.history.collect_recent().values():
            each.awaited = self.confirmation_episodes
        self.history.failed_confirmations += 1
        return False

    def start_trial(self) -> None:
        """Let the next training episodes confirm the goal."""
        self.is_in_trial = True
        for each in self.history.collect_recent().values():
            each.trial = []

    def confirm_by_trial(self) -> bool:
        """Return whether the training episodes of the trial reach the goal, once every role or team has ended enough.

        The trial then ends.
        """
        recent = self.history.collect_recent().values()
        trials = []
        for each in recent:
            each.trial = each.trial or []  # a role may have appeared since
            trials.append(each.trial)
        if any(len(trial) < WINDOW * self._length for trial in trials):
            return False
        self.is_in_trial = False
        for each in recent:
            each.trial = None
        is_confirmed = self.goal is not None and all(compute_mean(trial) >= self.goal for trial in trials)
        self.history.failed_confirmations += not is_confirmed
        return is_confirmed

    @property
    def _length(self) -> int:
        """Return the length of the next confirmation, in lengths of the first."""
        return 1 + self.history.failed_confirmations

    def _is_reached_by(self, episodes: Iterable[EvaluationResult | RecentEpisodes]) -> bool:
        """Return whether the mean returns of the episodes of every role or team reach the goal."""
        return self.goal is not None and all(each.mean >= self.goal for each in episodes)


@dataclass(eq=False)
class Monitor:
    """A monitor, which is called after each tick; it logs, evaluates and saves when that is due.

    There is one evaluation at a time. If another one becomes due meanwhile, it starts later, with the weights of that
    time. If evaluation is not possible (`evaluations` is None, or raises SimulatorError), the run continues without it.
    A goal that was reached is then confirmed by the next training episodes of every role.

    Args:
        history: the counters and the recent episodes.
        limits: the limits, intervals and goal of the run.
        reporter: writes metrics, and shows the progress.
        evaluations: the evaluations; None if evaluation is not possible.
        save: writes a checkpoint and returns it; None if it could not be written.
        best: the record of the best checkpoint, a `BestCheckpoint` of `checkpointing.store`.
        callbacks: the callbacks of the run: `on_evaluation` receives results, a true `stop_requested` ends the run.

    Attributes:
        evaluation: the results of the last evaluation.
        confirmed_by: the kind of episodes that confirmed the goal; None if it is not confirmed.
        stopped: whether a callback has stopped the run.
    """

    history: History
    limits: Limits
    reporter: Reporter
    evaluations: Evaluations | None
    save: Callable[[Counters], Any]
    best: Any
    callbacks: Any

    def __post_init__(self) -> None:
        history, limits = self.history, self.limits
        self.training, self.counters, self.timer = history.training, history.counters, history.training.timer
        self.evaluation: Results | None = None
        self.confirmed_by: ConfirmedBy | None = None
        self.stopped = False
        self._goal = GoalCheck(history, limits.goal, limits.evaluation_episodes)
        self._confirms: bool | None = None  # whether the evaluation that has not ended confirms the goal; None: none
        self._due_confirmation: int | None = None  # of the evaluation that is due: its episodes that confirm the goal
        self._last_start = -1  # env steps at which the last evaluation started
        self._pending_best: float | None = None  # mean return of the best weights, which are not saved yet
        # Saving is last, so that a resumed run does not repeat the other actions.
        actions: list[tuple[int | None, Callable[[], object]]] = [
            (limits.log_every, self.reporter.log_metrics),
            (limits.evaluate_every, self._request_evaluation),
            (limits.save_every, self._save),
        ]
        self._actions = [(every, action) for every, action in actions if every]
        self._set_next_action()
        self._next_display = -inf
        self._checks_goal = True  # episodes have ended since the goal was last checked, perhaps before a resume

    def record_update(self, role: str, result: LossResult) -> None:
        """Count an update, and record its metrics."""
        self.counters.updates += 1
        self.reporter.record_update(role, result)

    def tick(self, actor: Actor) -> bool:
        """Count what `actor` has collected in a tick, and do what is due. Return whether the run is over."""
        self.counters.env_steps += actor.env_steps
        actor.env_steps = 0
        if actor.episodes:
            self.count_episodes(actor.episodes, actor.active_lanes)
            actor.episodes.clear()
        return self.do_due()

    def count_episodes(self, episodes: Iterable[Episode], active_lanes: Mapping[str, np.ndarray]) -> None:
        """Count the episodes that ended, with the arguments of `History.add_episodes`."""
        self.history.add_episodes(episodes, active_lanes)
        self._checks_goal = True

    @property
    def next_due(self) -> int | float:
        """Return the env steps at which an interval or the run ends."""
        return min(self._next_action, self.limits.last_step)

    @property
    def is_due(self) -> bool:
        """Return whether `do_due` would do more than to show the progress."""
        return (
            self.counters.env_steps >= self._next_action
            or self._is_over()
            or (self._checks_goal and (self._goal.is_in_trial or self._is_goal_met()))
        )

    def do_due(self) -> bool:
        """Check the goal, log, evaluate, save and show the progress, if due. Return whether the run is over.

        At the end of the run it waits for the results of all evaluations.
        """
        if self.history.evaluation_is_due:
            self._request_evaluation()
        self._advance_evaluations()
        if self._checks_goal:
            self._checks_goal = False
            self._check_goal()
        self._run_actions()
        is_over = self._is_over()
        if is_over:
            self._finish_evaluations()
        if self._pending_best is not None:
            self._save()
        self.show_progress()
        return is_over

    def show_progress(self) -> None:
        """Show the progress, unless it was shown less than `DISPLAY_INTERVAL` ago."""
        if self.timer.last_lap >= self._next_display:
            self._next_display = self.timer.last_lap + DISPLAY_INTERVAL
            self.reporter.show_progress()

    def finish(self) -> None:
        """Save a final checkpoint, and log the last metrics even if it could not be saved."""
        self.history.evaluation_is_due = self._due_confirmation == 0
        if self._confirms is not None:
            self.reporter.log(f"the evaluation at {self._last_start:,} env steps is lost, since the run ends")
        try:
            self._save()
        finally:
            self.reporter.close()

    def _run_actions(self) -> None:
        """Run each action of which an interval, a multiple of its env steps, has ended since the last call."""
        env_steps = self.counters.env_steps
        if env_steps < self._next_action:
            return
        for every, action in self._actions:
            if env_steps // every > self._last_action // every:
                action()
        self._set_next_action()

    def _set_next_action(self) -> None:
        self._last_action = env_steps = self.counters.env_steps
        self._next_action = min((env_steps // every + 1) * every for every, _ in self._actions)

    def _check_goal(self) -> None:
        """Check the goal after episodes have ended; evaluation episodes confirm it if they are possible."""
        if self._goal.is_in_trial:
            if self._goal.confirm_by_trial():
                self.confirmed_by = "training"
                self._mark_best(compute_mean([recent.mean for recent in self.history.collect_recent().values()]))
        elif self._is_goal_met():
            if self.evaluations:
                self._request_evaluation(self._goal.confirmation_episodes)
            else:
                self._goal.start_trial()

    def _is_over(self) -> bool:
        if self.confirmed_by is not None or self.limits.are_reached(self.counters):
            return True
        self.stopped = self.callbacks.stop_requested
        return self.stopped

    def _is_goal_met(self) -> bool:
        """Return whether training episodes reach the goal, and no evaluation is about to confirm it."""
        return not (self._due_confirmation or self._confirms) and self._goal.is_met()

    def _mark_best(self, mean: float, checkpoint: Any = None) -> None:
        """Make a checkpoint the best; None: the next one, since it has the present weights.

        Not if teams share an agent: a higher return of one team is a lower one of another, so that returns do not
        measure weights, and the newest weights are played.
        """
        if self.training.has_teams:
            return
        if checkpoint:
            self.best.set_best(checkpoint, mean)
        else:
            self._pending_best = mean

    def _request_evaluation(self, confirmation_episodes: int = 0) -> None:
        """Evaluate the present weights, once at the same number of env steps, or confirm the goal with them."""
        self.history.evaluation_is_due = False
        if self.evaluations and (confirmation_episodes or self.counters.env_steps != self._last_start):
            self._due_confirmation = max(self._due_confirmation or 0, confirmation_episodes)
        self._advance_evaluations()

    def _advance_evaluations(self, timeout: float = 0.0) -> None:
        """Start the evaluation that is due, unless another one has not ended, and record the one that has ended."""
        if not self.evaluations or not self._is_evaluating:
            return
        self.timer.lap("acting")
        try:
            if self._confirms is None:
                self.best.candidate = self._save() if self.evaluations.is_concurrent else None
                episodes, self._last_start = self._due_confirmation or 0, self.counters.env_steps
                self.evaluations.start(episodes)
                self._due_confirmation, self._confirms = None, episodes > 0
            outcome = self.evaluations.receive(timeout)
        except SimulatorError as error:
            self._stop_evaluating(error)
            return
        finally:
            self.timer.lap("evaluation")
        if outcome:
            self._record_evaluation(self.evaluations, outcome)

    @property
    def _is_evaluating(self) -> bool:
        """Return whether an evaluation has started or is due."""
        return self._confirms is not None or self._due_confirmation is not None

    def _record_evaluation(self, evaluations: Evaluations, outcome: Outcome) -> None:
        """Record the outcome of an evaluation, after which its weights may be the best, and the goal confirmed."""
        # The checkpoint with its weights; None if they are the present ones, or if it could not be written.
        checkpoint, self._confirms, self.best.candidate = self.best.candidate, None, None
        is_kept, started = checkpoint is not None or not evaluations.is_concurrent, self._last_start
        results = {name: replace(result, env_steps=started) for name, result in outcome.results.items()}
        self.evaluation = results
        is_confirmed = outcome.confirmation is not None and self._goal.confirm(outcome.confirmation)
        mean = compute_mean([result.mean for result in results.values()])
        self._pending_best = None
        if is_kept and (mean >= self.best.mean or is_confirmed):  # of equally good weights the newest are the best
            self._mark_best(mean, checkpoint)
        if outcome.confirmation is not None:
            self.reporter.report_confirmation(started, outcome.confirmation, is_confirmed)
        self.reporter.report_evaluation(started, results)
        self.reporter.show_progress()
        self.callbacks.on_evaluation(results)
        if is_confirmed:
            self.confirmed_by = "evaluation"

    def _stop_evaluating(self, error: SimulatorError) -> None:
        """Continue the run without evaluations."""
        env_steps = self.counters.env_steps if self._confirms is None else self._last_start
        if self._due_confirmation or self._confirms:
            self._goal.start_trial()
        self.evaluations = self._confirms = self._due_confirmation = self.best.candidate = None
        self.reporter.report_evaluation_error(env_steps, error)

    def _finish_evaluations(self) -> None:
        """Evaluate the last weights, unless the goal is confirmed, and wait for the results of all evaluations."""
        if self.confirmed_by:
            self._due_confirmation = None
        elif self.limits.evaluates:
            self._request_evaluation()
        while self._is_evaluating:
            self._advance_evaluations(DISPLAY_INTERVAL)
            self.show_progress()

    def _save(self) -> Any:
        """Save a checkpoint and return it; None if it could not be written."""
        self.timer.lap("acting")
        self.history.update_seconds(with_cpu=True)
        checkpoint = self.save(self.counters)
        if self.training.has_teams:  # they may have appeared after a checkpoint became the best
            self.best.clear()
        elif checkpoint and self._pending_best is not None:
            self.best.set_best(checkpoint, self._pending_best)
            self._pending_best = None
        self.timer.lap("saving")
        return checkpoint
