"""The cluster runtime: one learner with the replay, and many rollout actors in other processes or on other machines."""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from algorithm.adapters.adapter import Adapter, EnvironmentCrashed
from algorithm.agents.agent import LossResult
from algorithm.checkpointing.checkpoint import Checkpoint, Manifest, write_all
from algorithm.config.loader import Settings
from algorithm.config.yaml_layers import Tree
from algorithm.errors import UserError
from algorithm.parts.components_builder import Sharing
from algorithm.parts.make_env import check_several_processes
from algorithm.processes.averaging_learner import close_connection
from algorithm.processes.fleet import Fleet, RemoteEnvironments, RemoteLanes, forbid_natural_steps, uses_replay
from algorithm.processes.host import Failure, Host, ServiceLost, ServiceSpec
from algorithm.processes.learners import LearnerPeers
from algorithm.processes.services import (
    CollectorService,
    EvaluatorService,
    Experience,
    RunTask,
    allow_read_only_arrays,
    pack_weights,
    start_service,
)
from algorithm.processes.supervisor import Supervisor, open_host
from algorithm.rollout import Rollout
from algorithm.specs import Role
from algorithm.training.components import TrainingComponents, run_updates
from algorithm.training.evaluator import EpisodePlan, Evaluations, Outcome
from algorithm.training.monitor import DISPLAY_INTERVAL
from algorithm.training.signals import DeferredSignals, raise_deferred

LOG = logging.getLogger(__name__)
SERVICE_SHARE = 0.05  # largest fraction of the time of updates in which the learner serves actors


class ClusterFleet(Fleet):
    """The actors, the evaluation actor and the other learners of a run, which a host runs.

    A *version* of the weights is the state after the updates that follow one rollout, or one rollout of each actor if
    an agent has no replay. The *lag* of a rollout is the number of versions between the weights that acted and those
    that learn.

    Between the updates, the learner serves actors: it receives their rollouts, and requests others with the newest
    version, so that they do not wait for the rest of the updates. Several learners wait for each other and do not.
    """

    _host: Host | None = None
    _peers: LearnerPeers | None = None
    _evaluator: Supervisor | None = None

    @classmethod
    def check(cls, settings: Settings) -> None:
        check_several_processes(settings.base, "base_config.runtime CLUSTER", "use LOCAL")
        cluster, in_flight = settings.cluster, get_rollouts_in_flight(settings)
        if cluster.learners > 1:
            _check_learners(settings)
        if cluster.max_lag is not None and not uses_replay(settings) and cluster.max_lag < in_flight - 1:
            raise UserError(
                f"cluster_config.max_lag is {cluster.max_lag}, but rollouts have a lag of {in_flight - 1} with "
                f"cluster_config.rollouts_in_flight {in_flight}: set max_lag to at least {in_flight - 1}"
            )

    def open(self, evaluates: bool) -> None:
        settings, cluster = self.settings, self.settings.cluster
        task = RunTask.pack(settings, self.folder, self.counters.env_steps)
        cpus = cluster.actors * cluster.cpus_per_actor + (cluster.learners - 1) * cluster.cpus_per_learner
        self._host = host = open_host(settings, cpus)
        if cluster.learners > 1:
            self._peers = LearnerPeers(host, task)
            self.sharing = Sharing(make_learner=self._peers.make_learner, is_main=True)
        self._actors = Supervisor(
            host,
            ServiceSpec(
                kind="Actor",
                make=partial(start_service, CollectorService, task),
                cpus=cluster.cpus_per_actor,
                gpus=cluster.gpus_per_actor,
            ),
            name="actor {}".format,
            start_timeout=cluster.start_timeout,
            max_replacements=settings.base.max_env_restarts,
        )
        self._actors.ensure(cluster.actors)
        if evaluates and cluster.evaluation_actor and not self.environments.find_evaluation_obstacle():
            self._evaluator = Supervisor(
                host,
                ServiceSpec(kind="Evaluator", make=partial(start_service, EvaluatorService, task)),
                name=lambda _: "the evaluation actor",
                time_limit="cluster_config.evaluation_timeout",
            )
            self._evaluator.ensure(1)
        self._actors.wait_for_start()
        count = cluster.actors // cluster.learners  # of the actors of one learner
        self.adapter = RemoteEnvironments(
            {
                name: replace(role, lanes=role.lanes * count, teams=role.teams * count)
                for name, role in self._actors.opened.items()
            }
        )

    def build(self, roles: Mapping[str, Role], checkpoint: Checkpoint | None) -> AbstractContextManager[None]:
        return self._peers.build(roles, checkpoint) if self._peers else nullcontext()

    def start(self, training: TrainingComponents, checkpoint: Checkpoint | None) -> None:
        allow_read_only_arrays()
        self.training, roles, count = training, self._actors.opened, len(self._actors.services)
        if self._actors.n_open < count:
            LOG.warning(f"{self._actors.describe_missing()}: the run starts without them")
        # By actor: its experience that has not been learned from, oldest first, and the env steps of its last one.
        self._waiting: list[deque[Experience]] = [deque() for _ in range(count)]
        self._env_steps = [0] * count
        # Rollouts of agents without a replay are joined, so that one update follows a rollout of every actor.
        self._joins = not all(each.agent.schedule.uses_replay for each in training.by_role.values())
        self._serves = not self._joins and not self._peers
        self._next_service = 0.0  # time
        self._version = 0
        self._published: tuple[Any, int] = (None, -1)  # the weights that were published last, and their version
        self._lanes = RemoteLanes(count, roles)
        # By role and actor: lanes whose last rollout was dropped.
        self._broken = {name: np.zeros((count, role.lanes), bool) for name, role in roles.items()}
        self._dropped_env_steps = 0  # of rollouts whose lag was above `max_lag`
        self._lost_env_steps = 0  # estimated, of rollouts that were requested from actors that ended
        # Since the last row of metrics, of each experience: lag, replies that wait, seconds of waiting, of collecting.
        self._experiences: list[tuple[float, float, float, float]] = []
        self._scene: dict[str, list[float]] = defaultdict(list)

    def make_evaluations(self, adapter: Adapter, make_plan: Callable[[int], EpisodePlan]) -> Evaluations | None:
        if self._evaluator is None:
            return super().make_evaluations(adapter, make_plan)
        return RemoteEvaluations(self, self._evaluator, make_plan)

    def restore(self, checkpoint: Checkpoint) -> None:
        checkpoint.restore_process(self.adapter)
        for name, role in self.adapter.roles.items():
            if role.lanes > self.training.by_role[name].role.lanes:  # more actors than the checkpoint has lanes for
                self.training.grow(name)

    def save(self, manifest: Manifest) -> dict[str, Any]:
        save = self._peers.save if self._peers else write_all
        return save(self.training, self.adapter, manifest)

    def collect_metrics(self) -> Mapping[str, float]:
        values: dict[str, float] = {
            "cluster/actors": self._actors.n_open,
            "cluster/restarts": self._actors.replaced,
            "cluster/lost_env_steps": self._lost_env_steps,
            "cluster/dropped_env_steps": self._dropped_env_steps,
        }
        if self._experiences:
            lags, queue, waiting_seconds, seconds = zip(*self._experiences, strict=True)
            values |= {
                "cluster/lag": float(np.mean(lags)),
                "cluster/lag_max": max(lags),
                "cluster/queue": float(np.mean(queue)),
                "cluster/actor_waiting": sum(waiting_seconds) / (sum(waiting_seconds) + sum(seconds)),
            }
        if self._peers:
            values |= self._peers.collect_metrics()
        values |= {f"scene/{name}": float(np.mean(found)) for name, found in self._scene.items()}
        self._experiences.clear()
        self._scene.clear()
        return values

    def close(self) -> None:
        if self._host:
            self._host.close()
        close_connection()

    def advance(self, signals: DeferredSignals) -> bool:
        """Receive experience, or wait for some if there is nothing to learn from, and learn from some."""
        self._request()
        self._receive(0.0 if self._find_next() else DISPLAY_INTERVAL)
        self.training.timer.lap("environment")
        self._request()
        self._learn()
        return self.monitor.do_due()

    def _request(self, publishes: bool = True) -> None:
        """Send requests to all actors that may get one, with the weights that were published last.

        All but one of the rollouts in flight may be at the actor, so that it continues while one is learned from. If
        `publishes` is True, the first request with a new version publishes its weights before.
        """
        in_flight, timeout = get_rollouts_in_flight(self.settings), self.settings.cluster.timeout
        counters = self.monitor.counters
        for service, waiting in zip(self._actors.services, self._waiting, strict=True):
            count = min(max(1, in_flight - 1), in_flight - len(waiting))
            while service.is_open and len(service.calls) < count:
                if publishes and self._published[1] != self._version:
                    self._published = self.publish(), self._version
                progress = counters.iterations, self.monitor.limits.fraction_done(counters) or 0.0
                self._actors.call(service, "collect", *self._published, *progress, timeout=timeout)

    def _receive(self, timeout: float) -> None:
        """Wait for experience, but not longer than `timeout` seconds, and replace actors that ended or hang.

        Raises:
            EnvironmentCrashed: too many actors have ended, or none is ready in time.
            Exception: an actor has raised it.
        """
        for service, reply in self._actors.poll(timeout):
            actor = service.index
            if isinstance(reply, Failure):
                reply.raise_error()
            elif isinstance(reply, ServiceLost):
                lost = reply.calls * self._env_steps[actor] if service.is_open else 0
                consequence = f"about {lost:,} env steps are lost, and another actor replaces it"
                self._actors.replace(service, reply, consequence)
                self._lost_env_steps += lost
            else:
                service.has_result, self._env_steps[actor] = True, reply.env_steps
                self._waiting[actor].append(reply)
                self.monitor.counters.env_steps += reply.env_steps
                self.training.timer.add_cpu_seconds(reply.cpu_seconds)
                self._lanes.count_episodes(self.monitor, actor, reply.episodes, reply.active_lanes)
        now, limit = time.monotonic(), self.settings.cluster.start_timeout
        if not self._actors.n_open and all(now - each.since > limit for each in self._actors.services):
            raise EnvironmentCrashed(self._actors.describe_missing())

    def _find_next(self) -> list[int]:
        """Return the actors whose oldest experience is learned from next; none if it has not been received.

        If rollouts are joined, they are all actors that are ready, once each has some; otherwise, for each learner, the
        actor whose experience was made with the oldest weights. Learner k has the actors k, k + learners, ...
        """
        filled, learners = [actor for actor, waiting in enumerate(self._waiting) if waiting], self.settings.n_learners
        if self._joins:
            missing = [each for each in self._actors.services if each.is_open and each.index not in filled]
            return [] if missing else filled
        filled.sort(key=lambda actor: self._waiting[actor][0].version)
        by_learner = {actor % learners: actor for actor in reversed(filled)}
        return list(by_learner.values()) if len(by_learner) == learners else []

    def _learn(self) -> None:
        """Make the updates that follow the next experience, if it has been received."""
        by_role: dict[str, list[list[Rollout]]] = {}  # by role, the rollouts of each learner
        learners, waiting, actors = self.settings.cluster.learners, self._waiting, self._find_next()
        n_waiting = sum(map(len, waiting)) - len(actors)
        for actor in actors:
            for role, rollout in self._place_rollouts(actor, waiting[actor][0], n_waiting):
                by_learner = by_role.setdefault(role, [[] for _ in range(learners)])
                by_learner[actor % learners].append(rollout)
        for role, by_learner in by_role.items():
            if self._joins:
                by_learner = [[Rollout.join_columns(rollouts)] if rollouts else [] for rollouts in by_learner]
            for rollouts in zip_longest(*by_learner):
                self._learn_from(role, rollouts)
        self._version += bool(by_role)
        for actor in actors:  # until now they count as rollouts in flight
            waiting[actor].popleft()
        if actors:
            self.training.timer.lap("learning")

    def _learn_from(self, role: str, rollouts: Sequence[Rollout | None]) -> None:
        """Make the updates that follow a rollout of each learner; None for a learner without one."""
        record_update, counters = partial(self.record_update, role), self.monitor.counters
        if self._peers:
            before = counters.updates
            counters.updates = before + self._peers.learn(self.training, role, rollouts, record_update)
        elif rollouts[0]:
            run_updates(self.training.get(role), rollouts[0], record_update)

    def _place_rollouts(self, actor: int, experience: Experience, n_waiting: int) -> Iterator[tuple[str, Rollout]]:
        """Yield the rollouts of an actor with the lanes of its learner, except those with a lag above `max_lag`.

        A rollout after one that was dropped does not continue it. `n_waiting` replies wait meanwhile.
        """
        lag, max_lag = self._version - experience.version, self.settings.cluster.max_lag
        is_usable = max_lag is None or lag <= max_lag
        self._experiences.append((lag, n_waiting, experience.waiting_seconds, experience.seconds))
        self._dropped_env_steps += 0 if is_usable else experience.env_steps
        for name, value in experience.statistics.items():
            self._scene[name].append(value)
        for role, rollout in experience.rollouts:
            broken, lane = self._broken[role][actor], rollout.lane
            if is_usable:
                _, first_columns = np.unique(lane, return_index=True)
                continues_previous = rollout.continues_previous.copy()
                continues_previous[first_columns] &= ~broken[lane[first_columns]]
                first_lane = actor // self.settings.cluster.learners * len(broken)
                yield role, replace(rollout, lane=first_lane + lane, continues_previous=continues_previous)
            broken[lane] = not is_usable

    def record_update(self, role: str, result: LossResult) -> None:
        super().record_update(role, result)
        if self._serves and (now := time.monotonic()) >= self._next_service:
            # Actors act with the weights that are published, until all updates are made.
            self._receive(0.0)
            self._request(publishes=False)
            end = time.monotonic()
            self._next_service = end + (end - now) / SERVICE_SHARE

    def publish(self) -> Any:
        """Publish the present weights. Return a reference, which can be an argument of calls."""
        by_role = self.training.by_role.items()
        weights = {role: pack_weights(each.learner, each.scheduler.records_td_errors) for role, each in by_role}
        return self._actors.host.put(weights)


class RemoteEvaluations(Evaluations):
    """Evaluations by a service, which is replaced if it ends or hangs.

    Another process repeats the evaluation, with the same weights and seeds.

    Args:
        fleet: the fleet of the run.
        supervisor: supervises the service, which has been started.
        make_plan: as for `Fleet.make_evaluations`.
    """

    is_concurrent = True

    def __init__(self, fleet: ClusterFleet, supervisor: Supervisor, make_plan: Callable[[int], EpisodePlan]):
        self.fleet, self.supervisor, self.make_plan = fleet, supervisor, make_plan

    def start(self, confirmation_episodes: int) -> None:
        weights = self.fleet.publish()
        self._arguments = weights, self.make_plan(confirmation_episodes), self.fleet.parameters.state()
        self._send()

    def receive(self, timeout: float) -> Outcome | None:
        for service, reply in self.supervisor.poll(timeout):
            if isinstance(reply, ServiceLost):
                self.supervisor.replace(service, reply, "another actor repeats the evaluation")
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
        """Call the service. An evaluation that confirms the goal has more time, in proportion to its episodes."""
        plan, timeout = self._arguments[1], self.fleet.settings.cluster.evaluation_timeout
        limit = timeout * (1 + plan.confirmation_episodes / plan.episodes)
        self.supervisor.call(self.supervisor.services[0], "evaluate", *self._arguments, timeout=limit)


def _check_learners(settings: Settings) -> None:
    """Raise UserError for settings that do not fit several learners."""
    cluster, device = settings.cluster, settings.base.device
    forbid_natural_steps(settings, "several learners")
    divided = {"cluster_config.actors": cluster.actors}
    for each in (settings, *settings.roles.values()):
        divided[f"{each.agent_section}.batch_size"] = getattr(each.agent, "batch_size", 0)
    for path, number in divided.items():
        if number % cluster.learners:
            raise UserError(
                f"{path} is {number}, which cannot be divided among cluster_config.learners {cluster.learners}: set "
                f"{path.partition('.')[2]} to {-(-number // cluster.learners) * cluster.learners}"
            )
    if cluster.gpus_per_learner and not device.startswith("cuda"):
        raise UserError(
            f"cluster_config.gpus_per_learner is 1, but base_config.device is {device}: set device to cuda, so that "
            "the main process learns on a GPU, too"
        )
    if not cluster.gpus_per_learner and device not in ("cpu", "auto"):
        raise UserError(
            f"base_config.device is {device}, but the other learners learn on CPUs: set "
            "cluster_config.gpus_per_learner to 1, or device to cpu"
        )


def check_actors_on_resume(last: Tree, settings: Settings) -> None:
    """Raise UserError if a run that was on a cluster would continue with fewer environments.

    The replay has a lane for each environment of all actors. Lanes that get no new steps would be replayed forever, and
    rollouts, which have as many columns as there are lanes, would come less often.

    Args:
        last: the settings that the run used last; empty if they are not known.
        settings: the settings with which it continues.
    """
    base, before = last.get("base_config") or {}, (last.get("cluster_config") or {}).get("actors", 1)
    now = settings.cluster.actors if settings.base.is_on_cluster else 1
    if str(base.get("runtime")).casefold() != "cluster" or now >= before:
        return
    change = f"base_config.runtime: CLUSTER -> {settings.base.runtime.upper()}"
    if settings.base.is_on_cluster:
        change = f"cluster_config.actors: {before} -> {now}"
    raise UserError(
        f"{change} is not possible with --resume: the saved run has the environments of {before} actors; "
        f"continue with at least as many: --set base_config.runtime=CLUSTER cluster_config.actors={before}"
    )


def get_rollouts_in_flight(settings: Settings) -> int:
    """Return `cluster_config.rollouts_in_flight`, or its default: 2 with a replay, 1 without."""
    return settings.cluster.rollouts_in_flight or (2 if uses_replay(settings) else 1)
