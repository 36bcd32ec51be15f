"""The messages between the learner of a cluster and its actors, and the weights that they contain."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithm.networks import FlatParameters
from algorithm.processes.messages import LogRecord, WorkerTraceback
from algorithm.rollout import Rollout
from algorithm.training.components import AgentComponents
from algorithm.training.evaluator import EpisodePlan, Outcome
from algorithm.training.invalid_values import Episode
from algorithm.training.learner import Learner

Weights = Mapping[str, np.ndarray]  # by role: the array of `pack_weights`


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to an actor: act with these weights until rollouts are complete.

    Attributes:
        number: number of the request among those to this actor.
        version: version of the weights, the number of times that the learner has learned.
        updates: {role: updates of the learner}.
        rows_seen: {role: `rows_seen` of the learner}.
        iterations: completed iterations of the run; after each of them, no lane counts as active.
        fraction_done: fraction of the run that is done, for curricula.
    """

    number: int
    version: int
    updates: Mapping[str, int]
    rows_seen: Mapping[str, int]
    iterations: int
    fraction_done: float


@dataclass(frozen=True, kw_only=True)
class Collection:
    """The experience that an actor has collected for a request.

    Attributes:
        number: number of the request.
        version: version of the weights that acted.
        rollouts: rollouts that were completed, with their roles; lanes are those of the actor.
        env_steps: executed decisions since the last collection.
        episodes: episodes that ended.
        active_lanes: {role: [lanes] bool}, the lanes that had a row in this iteration.
        log: logged messages.
        waiting_seconds: seconds between the last collection and this request.
        seconds: seconds in which it was collected.
        cpu_seconds: CPU seconds of the actor and its child processes since the last collection.
        statistics: metrics that the simulator has reported.
    """

    number: int
    version: int
    rollouts: Sequence[tuple[str, Rollout]]
    env_steps: int
    episodes: Sequence[Episode]
    active_lanes: Mapping[str, np.ndarray]
    log: Sequence[LogRecord]
    waiting_seconds: float
    seconds: float
    cpu_seconds: float
    statistics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """A request to an evaluation actor.

    Attributes:
        plan: the episodes.
        parameters: the state of the environment parameters of training.
    """

    plan: EpisodePlan
    parameters: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class EvaluationReply:
    """The outcome of an evaluation, and the logged messages."""

    outcome: Outcome
    log: Sequence[LogRecord]


@dataclass(frozen=True)
class Failure:
    """An exception that has ended an actor, with its traceback as text."""

    error: BaseException
    trace: str

    def raise_error(self) -> None:
        """Raise the exception, caused by one that shows the traceback in the actor."""
        raise self.error from WorkerTraceback(f"\n{self.trace}")


def allow_read_only_arrays() -> None:
    """Suppress torch's warning about arrays that cannot be written, as all arrays of received messages are.

    Nothing writes to a weight array or to the arrays of a collected rollout.
    """
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def pack_weights(parameters: FlatParameters, with_targets: bool) -> np.ndarray:
    """Return the trained parameters and both kinds of running statistics as one flat float32 array.

    The target networks are included if `with_targets` is True: actors need them only for TD errors. The statistics of
    observations are float64: each takes two values of the array, so that no bit is lost.
    """
    statistics = parameters.statistics.double().cpu().numpy().view(np.float32)
    tensors = _list_tensors(parameters, with_targets)
    return np.concatenate([*(tensor.cpu().numpy() for tensor in tensors), statistics])


def _list_tensors(parameters: FlatParameters, with_targets: bool) -> list[Tensor]:
    return [parameters.all_parameters] if with_targets else [parameters.vector, parameters.batch_statistics]


def pack_all_weights(by_role: Mapping[str, AgentComponents]) -> Weights:
    """Return the weights of all roles."""
    return {
        role: pack_weights(components.learner.parameters, components.scheduler.records_td_errors)
        for role, components in by_role.items()
    }


class ReceivingLearner(Learner):
    """A learner in an actor, which receives its weights from the learner of the run, and never learns."""

    def receive(self, weights: np.ndarray, updates: int, rows_seen: int) -> None:
        """Load the array of `pack_weights` with the counters of the learner, and resample the noise.

        Args:
            weights: the array; it is copied, and may be read-only.
            updates: the number of updates of the weights.
            rows_seen: `rows_seen` of the learner.
        """
        self.load_weights(weights)
        self._counts[:] = updates, rows_seen
        self.noise.resample()

    def load_weights(self, weights: np.ndarray) -> None:
        """Load the array of `pack_weights`, which is copied, and may be read-only."""
        parameters = self.parameters
        has_targets = len(weights) == len(parameters.all_parameters) + 2 * len(parameters.statistics)
        tensors = _list_tensors(parameters, has_targets)
        *parts, statistics = np.split(weights, np.cumsum([len(tensor) for tensor in tensors]))
        for tensor, values in zip(
            [*tensors, parameters.statistics], [*parts, statistics.view(np.float64)], strict=True
        ):
            tensor.copy_(torch.from_numpy(values))
        self._mark_outdated()
