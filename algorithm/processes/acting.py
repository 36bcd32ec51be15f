"""Services that act in their own environments, and how the learner's process uses them: rollout actors, evaluation."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from algorithm.adapters.adapter import EnvironmentCrashed
from algorithm.adapters.curriculum import EnvironmentParameters
from algorithm.agents.agent import Agent
from algorithm.config.sections import ClusterConfig
from algorithm.errors import UserError
from algorithm.parts.components_builder import get_agent_settings, make_explorer
from algorithm.parts.make_env import Environments
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.seeding import TRAINING, RunSeeds
from algorithm.processes.host import Failure
from algorithm.processes.service import Service, WeightReceiver, Weights, make_fixed_training, make_receiver
from algorithm.processes.supervisor import Lost, Supervisor
from algorithm.rollout import Rollout
from algorithm.specs import Role
from algorithm.training.actor import Actor
from algorithm.training.batch_scheduler import BatchScheduler
from algorithm.training.components import AgentComponents
from algorithm.training.evaluator import EpisodePlan, Evaluations, Evaluator, Outcome
from algorithm.training.invalid_values import Episode
from algorithm.training.signals import raise_deferred
from algorithm.training.timer import measure_cpu_seconds


@dataclass(frozen=True, kw_only=True)
class Experience:
    """The experience that an actor has collected for a request.

    Attributes:
        version: version of the weights that acted, the number of times that the learner had learned.
        rollouts: rollouts that were completed, with their roles; lanes are those of the actor.
        env_steps: executed decisions since the last request.
        episodes: episodes that ended.
        active_lanes: {role: [lanes] bool}, the lanes that had a row in this iteration.
        waiting_seconds: seconds between the end of the last request and this one.
        seconds: seconds in which it was collected.
        cpu_seconds: CPU seconds of the actor and its child processes since the last request.
        statistics: metrics that the simulator has reported.
    """

    version: int
    rollouts: Sequence[tuple[str, Rollout]]
    env_steps: int
    episodes: Sequence[Episode]
    active_lanes: Mapping[str, np.ndarray]
    waiting_seconds: float
    seconds: float
    cpu_seconds: float
    statistics: Mapping[str, float] = field(default_factory=dict)


class CollectorService(Service):
    """A rollout actor of a run, which makes ticks but no updates.

    A request begins with the decision for the last received step, so that all rows of a rollout are decided with the
    weights of one request, if all lanes act in every tick.
    """

    def open(self) -> Mapping[str, Role]:
        """Open the environments and build the agents. Return the roles of the environments."""
        settings, folder = self.task.settings, self.task.unpack()
        seeds = RunSeeds(settings.base.seed, (self.index, self.replacements))
        seeds.seed_process()
        self._fraction_done = 0.0
        parameters = EnvironmentParameters(settings.reset, lambda: self._fraction_done)
        adapter = Environments(settings, folder).open_training(parameters, self.index * settings.base.n_envs)
        self.training = make_fixed_training(adapter)
        self._actor = Actor(self.training, seeds.get_seed(TRAINING, self.task.env_steps))
        for name, role in adapter.roles.items():  # those of Unity are known after the first reset
            self.training.by_role[name] = self._build_components(seeds, folder, name, role)
        self._has_undecided_step = False
        self._last_end = perf_counter()
        self._cpu_seconds = measure_cpu_seconds()  # at the end of the last request
        return dict(adapter.roles)

    def _build_components(self, seeds: RunSeeds, folder: RunFolder, name: str, role: Role) -> AgentComponents:
        """Return the components of a role, which act and do not learn."""
        settings = get_agent_settings(self.task.settings, name)
        cluster, rng = settings.cluster, np.random.default_rng(seeds.make_component_seeds(name).spawn(1)[0])
        device = settings.base.device if cluster.gpus_per_actor else "cpu"
        learner = make_receiver(settings, folder, role, rng, device)
        agent, auxiliaries = learner.agent, learner.auxiliaries.by_name
        explorer = make_explorer(settings, role, role.lanes, agent, auxiliaries, (self.index, cluster.actors))
        records_td_errors = agent.schedule.uses_replay and settings.replay.initial_priorities is not None
        scheduler = ForwardOnly(role.lanes, records_td_errors)
        return AgentComponents(role=role, agent=agent, scheduler=scheduler, learner=learner, explorer=explorer)

    def collect(self, weights: Weights, version: int, iterations: int, fraction_done: float) -> Experience:
        """Make ticks with these weights until at least one rollout is complete. Return the new experience.

        Args:
            weights: the weights.
            version: their version.
            iterations: completed iterations of the run; after each of them, no lane counts as active.
            fraction_done: fraction of the run that is done, for curricula.
        """
        start, actor = perf_counter(), self._actor
        waiting_seconds = start - self._last_end
        for role, components in self.training.by_role.items():
            assert isinstance(components.learner, WeightReceiver)
            components.learner.load_weights(weights[role])
            components.learner.noise.resample()
        actor.set_iterations(iterations)
        self._fraction_done = fraction_done
        if self._has_undecided_step:
            self._finish_tick()
        while not (rollouts := actor.complete_rollouts()):
            self._finish_tick()
        self._has_undecided_step = True
        cpu_seconds_before, self._cpu_seconds = self._cpu_seconds, measure_cpu_seconds()
        experience = Experience(
            version=version,
            rollouts=[(role, self._record_td_errors(role, rollout)) for role, rollout in rollouts],
            env_steps=actor.env_steps,
            episodes=list(actor.episodes),
            active_lanes=dict(actor.active_lanes),
            waiting_seconds=waiting_seconds,
            seconds=perf_counter() - start,
            cpu_seconds=self._cpu_seconds - cpu_seconds_before,
            statistics=self.training.adapter.statistics(),
        )
        actor.env_steps = 0
        actor.episodes.clear()
        self._last_end = perf_counter()
        return experience

    def _record_td_errors(self, role: str, rollout: Rollout) -> Rollout:
        """Return a rollout with its TD errors, if its initial priorities follow from them.

        The learner computes them instead if rewards follow from records of auxiliaries, which only the learner has.
        """
        components = self.training.by_role[role]
        if components.scheduler.records_td_errors and not components.learner.auxiliaries.n_records:
            return components.learner.record_td_errors(rollout)
        return rollout

    def _finish_tick(self) -> None:
        self._actor.act()
        self._actor.receive()


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


class Collectors:
    """The rollout actors of a run, which are started.

    Args:
        supervisor: supervises them; the services are `CollectorService`.
        cluster: the settings of the cluster. Learner k has the rollouts of the actors k, k + learners, ...
        in_flight: the maximum number of rollouts of an actor that were requested, or wait to be learned from.

    Attributes:
        waiting: by actor, its experience that has not been learned from, oldest first.
        lost_env_steps: estimated number of env steps that were requested from actors that ended.
    """

    def __init__(self, supervisor: Supervisor, cluster: ClusterConfig, in_flight: int):
        self.supervisor, self.cluster, self.in_flight = supervisor, cluster, in_flight
        supervisor.ensure(cluster.actors)
        self.waiting: list[deque[Experience]] = [deque() for _ in supervisor.services]
        self._env_steps = [0] * cluster.actors  # of the last experience of each actor
        self.lost_env_steps = 0

    def request(self, make_arguments: Callable[[], tuple[Any, ...]]) -> None:
        """Send requests to all actors that may get one.

        All but one of the rollouts in flight may be at the actor, so that it continues while one is learned from.

        Args:
            make_arguments: returns the arguments of `CollectorService.collect`; called for each request.
        """
        for service, waiting in zip(self.supervisor.services, self.waiting, strict=True):
            count = min(max(1, self.in_flight - 1), self.in_flight - len(waiting))
            while service.is_open and len(service.calls) < count:
                self.supervisor.call(service, "collect", *make_arguments(), timeout=self.cluster.timeout)

    def receive(self, timeout: float) -> list[tuple[int, Experience]]:
        """Wait for experience, but not longer than `timeout` seconds, and replace actors that ended or hang.

        Returns:
            The new experience with the number of its actor. It is appended to `waiting`, too.

        Raises:
            EnvironmentCrashed: too many actors have ended, or none is ready in time.
            Exception: an actor has raised it.
        """
        received: list[tuple[int, Experience]] = []
        for service, reply in self.supervisor.poll(timeout):
            actor = service.index
            if isinstance(reply, Failure):
                reply.raise_error()
            elif isinstance(reply, Lost):
                lost = reply.lost_calls * self._env_steps[actor] if service.is_open else 0
                consequence = f"about {lost:,} env steps are lost, and another actor replaces it"
                self.supervisor.replace(service, reply.reason, consequence)
                self.lost_env_steps += lost
            else:
                service.has_result, self._env_steps[actor] = True, reply.env_steps
                self.waiting[actor].append(reply)
                received.append((actor, reply))
        now, limit = time.monotonic(), self.cluster.start_timeout
        if not self.supervisor.n_open and all(now - each.since > limit for each in self.supervisor.services):
            raise EnvironmentCrashed(self.supervisor.describe_missing())
        return received

    def find_next(self, joins: bool) -> list[int]:
        """Return the actors whose oldest experience is learned from next; none if it has not been received.

        Args:
            joins: whether they are all actors that are ready, once each has some; otherwise, for each learner, the
                actor whose experience was made with the oldest weights.
        """
        filled = [actor for actor, waiting in enumerate(self.waiting) if waiting]
        if joins:
            missing = [each for each in self.supervisor.services if each.is_open and each.index not in filled]
            return [] if missing else filled
        filled.sort(key=lambda actor: self.waiting[actor][0].version)
        by_learner = {actor % self.cluster.learners: actor for actor in reversed(filled)}
        return list(by_learner.values()) if len(by_learner) == self.cluster.learners else []


class EvaluatorService(Service):
    """An evaluation actor of a run, which plays episodes with the weights of each request.

    The first evaluation opens the environments.
    """

    _evaluator: Evaluator | None = None

    def evaluate(self, weights: Weights, plan: EpisodePlan, parameters: Mapping[str, Any]) -> Outcome:
        """Play the episodes of a plan with these weights. Return the outcome.

        Args:
            weights: the weights.
            plan: the episodes.
            parameters: the state of the environment parameters of training.
        """
        evaluator = self._evaluator = self._evaluator or self._open()
        self._weights = weights
        for role, learner in self._learners.items():
            learner.load_weights(weights[role])
        self._parameters.restore(parameters)
        return plan.play(evaluator)

    def _open(self) -> Evaluator:
        settings, self._folder = self.task.settings, self.task.unpack()
        n_actors = settings.cluster.actors
        RunSeeds(settings.base.seed, (n_actors, self.replacements)).seed_process()
        self._parameters = EnvironmentParameters(settings.reset)
        self._adapter = Environments(settings, self._folder).defer_evaluation(self._parameters, n_actors)
        self._learners: dict[str, WeightReceiver] = {}
        return Evaluator(self._adapter, self._get_agent, settings.base.evaluate_greedy)

    def _get_agent(self, role: str) -> Agent:
        """Return the agent of a role, which is built when the role first appears."""
        if role not in self._weights:
            raise UserError(f"role {role!r} appeared in an evaluation only, which only runtime LOCAL supports")
        if role not in self._learners:
            settings, spec = get_agent_settings(self.task.settings, role), self._adapter.roles[role]
            # An evaluation draws from a generator of its own.
            rng = np.random.default_rng(settings.base.seed)
            learner = self._learners[role] = make_receiver(settings, self._folder, spec, rng, "cpu")
            learner.load_weights(self._weights[role])
        return self._learners[role].agent


class RemoteEvaluations(Evaluations):
    """Evaluations by a service, which is replaced if it ends or hangs.

    Another process repeats the evaluation, with the same weights and seeds.

    Args:
        supervisor: supervises the service, which has been started.
        make_arguments: returns the arguments of `EvaluatorService.evaluate`, with the present weights, given the number
            of episodes that confirm the goal.
        timeout: time limit for an evaluation that confirms nothing, in seconds; others have more in proportion to their
            episodes.
    """

    is_concurrent = True

    def __init__(
        self, supervisor: Supervisor, make_arguments: Callable[[int], tuple[Any, EpisodePlan, Any]], timeout: float
    ):
        self.supervisor, self.make_arguments, self.timeout = supervisor, make_arguments, timeout

    def start(self, confirmation_episodes: int) -> None:
        self._arguments = self.make_arguments(confirmation_episodes)
        self._send()

    def receive(self, timeout: float) -> Outcome | None:
        for service, reply in self.supervisor.poll(timeout):
            if isinstance(reply, Lost):
                self.supervisor.replace(service, reply.reason, "another actor repeats the evaluation")
                self._send()
                return None
            if isinstance(reply, Failure):
                reply.raise_error()
            service.has_result = True
            return reply
        if timeout:  # a run that has ended waits for the results
            raise_deferred()
        return None

    def _send(self) -> None:
        plan = self._arguments[1]
        limit = self.timeout * (1 + plan.confirmation_episodes / plan.episodes)
        self.supervisor.call(self.supervisor.services[0], "evaluate", *self._arguments, timeout=limit)
