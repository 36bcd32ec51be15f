"""A rollout actor: it acts in its own environments with the weights of each request, until rollouts are complete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter

from algorithm.processes.collection import Collection, ReceivingLearner, Request, Weights
from algorithm.processes.messages import LogRecord
from algorithm.rollout import Rollout
from algorithm.specs import Role
from algorithm.training.actor import Actor
from algorithm.training.batch_scheduler import BatchScheduler
from algorithm.training.components import TrainingComponents
from algorithm.training.cpu_time import measure_cpu_seconds


@dataclass
class ReceivedProgress:
    """The progress of a run, as the last request has it."""

    fraction_done: float = 0.0
    iterations: int = 0


class RolloutActor:
    """An actor of a cluster, which makes ticks but no updates.

    A request begins with the decision for the last received step, so that all rows of a rollout are decided with the
    weights of one request, if all lanes act in every tick.

    Args:
        training: the components of the actor, whose learners receive weights.
        actor: makes the ticks.
        progress: the progress of the run, which each request updates.
        log: logged messages; each collection takes those since the last one.
    """

    def __init__(self, training: TrainingComponents, actor: Actor, progress: ReceivedProgress, log: list[LogRecord]):
        self.training, self.actor, self.progress, self.log = training, actor, progress, log
        self._has_undecided_step = False
        self._last_end = perf_counter()
        self._cpu_seconds = measure_cpu_seconds()  # at the end of the last collection

    @property
    def roles(self) -> Mapping[str, Role]:
        """Return the roles of the environments."""
        return dict(self.training.adapter.roles)

    def collect(self, weights: Weights, request: Request) -> Collection:
        """Make ticks until at least one rollout is complete. Return the experience since the last call."""
        start = perf_counter()
        waiting_seconds = start - self._last_end
        self._receive(weights, request)
        if self._has_undecided_step:
            self._finish_tick()
        while not (rollouts := self.actor.complete_rollouts()):
            self._finish_tick()
        self._has_undecided_step = True
        collection = Collection(
            number=request.number,
            version=request.version,
            rollouts=[(role, self._record_td_errors(role, rollout)) for role, rollout in rollouts],
            env_steps=self.actor.env_steps,
            episodes=list(self.actor.episodes),
            active_lanes=dict(self.actor.active_lanes),
            log=list(self.log),
            waiting_seconds=waiting_seconds,
            seconds=perf_counter() - start,
            cpu_seconds=self._count_cpu_seconds(),
            statistics=self.training.adapter.statistics(),
        )
        self.actor.env_steps = 0
        self.actor.episodes.clear()
        self.log.clear()
        self._last_end = perf_counter()
        return collection

    def _count_cpu_seconds(self) -> float:
        """Return the CPU seconds since the last call."""
        before, self._cpu_seconds = self._cpu_seconds, measure_cpu_seconds()
        return self._cpu_seconds - before

    def _receive(self, weights: Weights, request: Request) -> None:
        """Load the weights and the progress of the run."""
        for role, components in self.training.by_role.items():
            assert isinstance(components.learner, ReceivingLearner)
            components.learner.receive(weights[role], request.updates[role], request.rows_seen[role])
        if request.iterations != self.progress.iterations:
            for lanes in self.actor.active_lanes.values():
                lanes[:] = False
        self.progress.iterations, self.progress.fraction_done = request.iterations, request.fraction_done

    def _record_td_errors(self, role: str, rollout: Rollout) -> Rollout:
        """Return a rollout with its TD errors, if its initial priorities follow from them.

        The learner computes them instead if rewards follow from records of auxiliaries, which only the learner has.
        """
        components = self.training.by_role[role]
        if components.scheduler.records_td_errors and not components.learner.auxiliaries.n_records:
            return components.learner.record_td_errors(rollout)
        return rollout

    def _finish_tick(self) -> None:
        self.actor.act()
        self.actor.receive()


class ForwardOnly(BatchScheduler):
    """The scheduler of an actor, which has no replay and learns from nothing.

    Args:
        initial_lanes: the number of lanes at the start of the run.
        records_td_errors: whether the actor computes the TD errors of its rollouts.
    """

    replay = None

    def __init__(self, initial_lanes: int, records_td_errors: bool):
        self.initial_lanes, self.records_td_errors = initial_lanes, records_td_errors

    def __call__(self, rollout: Rollout) -> Iterator[Rollout]:
        return iter(())
