"""Callbacks: functions of the caller that run at the events of a training run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.errors import UserError
from algorithm.training.evaluator import EvaluationResult
from algorithm.training.monitor import ConfirmedBy
from algorithm.training.progress import Counters, Progress

if TYPE_CHECKING:
    from algorithm.runs.trained_agent import TrainedAgent

MakeAgent = Callable[["str | None", "bool | None"], "TrainedAgent"]  # of a role, greedy or sampled


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The state in which a training run ended.

    Attributes:
        folder: the run folder.
        goal_reached: whether the goal was reached and confirmed; None without a goal.
        counters: env steps, updates, episodes, iterations and seconds of the run.
        returns: {role or team: mean return of its last training episodes}; NaN before the first has ended.
        evaluation: {role or team: result of the last evaluation}; None if there was no evaluation.
        best: the checkpoint with the best evaluation; None if no checkpoint was evaluated.
        confirmed_by: the kind of episodes that confirmed the goal; None if it was not confirmed.
        stopped: whether a callback stopped the run, such as a time limit.
        status: the exit status of the run.
        failure: the message of the exception or the signal that ended it; None without.
    """

    folder: Path
    goal_reached: bool | None
    counters: Counters
    returns: Mapping[str, float]
    evaluation: Mapping[str, EvaluationResult] | None
    best: Checkpoint | None
    confirmed_by: ConfirmedBy | None = None
    stopped: bool = False
    status: int = 0
    failure: str | None = None


class Callback:
    """A base class with methods that are called at the events of a training run; a subclass overrides some of them.

    A method that returns True, except `on_end`, stops the run: it ends at the next env step as it does at `max_step`,
    with an evaluation if the run has evaluations, and with a final checkpoint. `RunResult.stopped` is then True. An
    exception ends the run as well: a final checkpoint is saved, and the exception is raised by `train`.
    """

    _make_agent: MakeAgent | None = None  # of the run in training

    def load_agent(self, role: str | None = None, disable_sample: bool | None = None) -> TrainedAgent:
        """Return a copy of an agent with the weights of this moment, with the arguments of `algorithm.load`.

        It is for the methods below, except `on_end`, after which `algorithm.load` returns the best weights. Acting
        with the copy does not change training.

        Raises:
            UserError: no run is in training, or it has no such role.
        """
        if self._make_agent is None:
            raise UserError("load_agent is for a run in training; algorithm.load returns the agent of a run folder")
        return self._make_agent(role, disable_sample)

    def on_progress(self, progress: Progress) -> bool | None:
        """Receive the state of the run.

        That is four times a second, after each row of metrics, before the result of each evaluation, and once when
        the run ends.
        """

    def on_evaluation(self, results: Mapping[str, EvaluationResult]) -> bool | None:
        """Receive the result of an evaluation, by role or team; `env_steps` of each is the time when it started."""

    def on_checkpoint(self, checkpoint: Checkpoint) -> bool | None:
        """Receive a checkpoint that has been saved."""

    def on_end(self, result: RunResult) -> None:
        """Receive the result of the run, also if an exception or a signal has ended it."""


class CallbackList(Callback):
    """The callbacks of one run, called in order; `stop_requested` is True once one of them has returned True."""

    def __init__(self, callbacks: Sequence[Callback]):
        self.callbacks = list(callbacks)
        self.stop_requested = False

    def set_agents(self, make_agent: MakeAgent | None) -> None:
        """Set the function that returns copies of the agents in training; None when the run ends."""
        for callback in self.callbacks:
            callback._make_agent = make_agent

    def on_progress(self, progress: Progress) -> None:
        self._call(lambda callback: callback.on_progress(progress))

    def on_evaluation(self, results: Mapping[str, EvaluationResult]) -> None:
        self._call(lambda callback: callback.on_evaluation(results))

    def on_checkpoint(self, checkpoint: Checkpoint) -> None:
        self._call(lambda callback: callback.on_checkpoint(checkpoint))

    def on_end(self, result: RunResult) -> None:
        self.set_agents(None)
        self._call(lambda callback: callback.on_end(result))

    def _call(self, event: Callable[[Callback], bool | None]) -> None:
        for callback in self.callbacks:
            if event(callback):
                self.stop_requested = True


class TimeLimit(Callback):
    """A callback that stops a run; the time starts with this object.

    Args:
        seconds: the time after which the run is stopped.
    """

    def __init__(self, seconds: float):
        self._end = monotonic() + seconds

    def on_progress(self, progress: Progress) -> bool:
        return monotonic() >= self._end


class ResultRecorder(Callback):
    """A callback that keeps the result of the run, also if an exception has ended it; None before its end."""

    def __init__(self) -> None:
        self.result: RunResult | None = None

    def on_end(self, result: RunResult) -> None:
        self.result = result
