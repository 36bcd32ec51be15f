"""The cluster runtime: one learner with the replay, and many rollout actors in other processes or on other machines."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from time import monotonic
from typing import Any

import numpy as np

from algorithm.agents.agent import LossResult
from algorithm.processes.actor_group import ActorGroup, ActorRecord
from algorithm.processes.collection import Collection, Request, allow_read_only_arrays, pack_all_weights
from algorithm.rollout import Rollout
from algorithm.training.components import TrainingComponents
from algorithm.training.monitor import DISPLAY_INTERVAL, Monitor
from algorithm.training.run_end import DivergenceDetector, finish_at_end
from algorithm.training.updates import run_updates

LOG = logging.getLogger(__name__)
SERVICE_SHARE = 0.05  # largest fraction of the time of updates in which the learner serves actors


class ClusterRuntime:
    """A runtime whose actors collect rollouts, while the main process learns from those that it has received."""

    def run(
        self, training: TrainingComponents, actor: ActorGroup, monitor: Monitor, divergence: DivergenceDetector
    ) -> None:
        """Train until the run is over. The monitor saves a final checkpoint, unless the run diverged.

        Raises:
            Diverged: too many successive updates were skipped.
            KeyboardInterrupt, Terminated: a signal has ended the run, after a complete update.
            EnvironmentCrashed: too many actors have ended.
            Exception: an actor has raised it.
        """
        allow_read_only_arrays()
        session = _Session(training, actor, monitor, divergence)
        monitor.reporter.runtime_metrics = session.statistics.collect
        with finish_at_end(monitor) as signals:
            is_over = monitor.do_due()  # a run that was stopped while its last weights were evaluated has ended
            while not is_over:
                session.receive()
                session.learn()
                is_over = monitor.do_due()
                signals.raise_pending()
            divergence.check()


class _Session:
    """The learner's side of a run on a cluster.

    A *version* of the weights is the state after the updates that follow one rollout, or one rollout of each actor if
    an agent has no replay. The *lag* of a rollout is the number of versions between the weights that acted and those
    that learn.

    Between the updates, the learner serves actors: it receives their collections, and requests others with the newest
    version, so that they do not wait for the rest of the updates. Several learners wait for each other and do not.
    """

    def __init__(
        self, training: TrainingComponents, group: ActorGroup, monitor: Monitor, divergence: DivergenceDetector
    ):
        self.training, self.group, self.monitor, self.divergence = training, group, monitor, divergence
        self.statistics = ClusterStatistics(group)
        # Rollouts of agents without a replay are joined, so that one update follows a rollout of every actor.
        self._joins = not all(each.agent.schedule.uses_replay for each in training.by_role.values())
        self._serves = not self._joins and not group.peers
        self._next_service = 0.0  # time
        self._version = 0
        self._published: tuple[int, Any] = (-1, None)  # the newest version that was published, and its reference
        roles = group.roles
        for name, role in roles.items():
            if role.lanes > training.by_role[name].role.lanes:  # more actors than the checkpoint has lanes for
                training.grow(name)
        if group.n_ready < group.count:
            LOG.warning(f"{group.describe_missing()}: the run starts without them")
        self._active = {name: np.zeros(group.count * role.lanes, bool) for name, role in group.actor_roles.items()}
        # By actor: lanes whose last rollout was dropped.
        self._broken = {name: np.zeros((group.count, role.lanes), bool) for name, role in group.actor_roles.items()}

    def receive(self) -> None:
        """Count the collections that have arrived; wait for one if there is nothing to learn from."""
        self.group.request(self._publish, self._make_request)
        is_idle = not self.group.find_next(self._joins)
        for actor, collection in self.group.receive(DISPLAY_INTERVAL if is_idle else 0.0):
            self._count(actor, collection)
        self.training.timer.lap("environment")
        self.group.request(self._publish, self._make_request)

    def learn(self) -> None:
        """Make the updates that follow the next collections, if they have been received."""
        by_role: dict[str, list[list[Rollout]]] = {}  # by role, the rollouts of each learner
        actors = self.group.find_next(self._joins)
        n_waiting = self.group.n_waiting - len(actors)
        for actor in actors:
            collection = actor.collections[0]
            lag = self._version - collection.version
            is_usable = self.group.max_lag is None or lag <= self.group.max_lag
            self.statistics.add_collection(lag, collection, is_usable, n_waiting)
            for role, rollout in collection.rollouts:
                placed = self._place(actor.index, role, rollout, is_usable)
                if is_usable:
                    by_learner = by_role.setdefault(role, [[] for _ in range(self.group.n_learners)])
                    by_learner[actor.index % self.group.n_learners].append(placed)
        for role, by_learner in by_role.items():
            if self._joins:
                by_learner = [[Rollout.join_columns(rollouts)] if rollouts else [] for rollouts in by_learner]
            for rollouts in zip_longest(*by_learner):
                self._learn_from(role, rollouts)
        self._version += bool(by_role)
        for actor in actors:  # until now they count as rollouts in flight
            actor.collections.popleft()
        if actors:
            self.training.timer.lap("learning")

    def _learn_from(self, role: str, rollouts: Sequence[Rollout | None]) -> None:
        """Make the updates that follow a rollout of each learner; None for a learner without one."""
        record_update, counters = partial(self._record_update, role), self.monitor.counters
        if self.group.peers:
            before = counters.updates
            counters.updates = before + self.group.peers.learn(self.training, role, rollouts, record_update)
        elif rollouts[0]:
            run_updates(self.training.get(role), rollouts[0], record_update)

    def _place(self, index: int, role: str, rollout: Rollout, is_usable: bool) -> Rollout:
        """Return a rollout with the lanes of its learner. One after a rollout that was dropped does not continue it."""
        broken, lane = self._broken[role][index], rollout.lane
        if not is_usable:
            broken[lane] = True
        _, first_columns = np.unique(lane, return_index=True)
        continues_previous = rollout.continues_previous.copy()
        if is_usable:
            continues_previous[first_columns] &= ~broken[lane[first_columns]]
            broken[lane] = False
        first_lane = index // self.group.n_learners * self.group.actor_roles[role].lanes
        return replace(rollout, lane=first_lane + lane, continues_previous=continues_previous)

    def _record_update(self, role: str, report: LossResult) -> None:
        self.monitor.record_update(role, report)
        self.divergence.count_update()
        if self._serves and (now := monotonic()) >= self._next_service:
            self._serve()
            end = monotonic()
            self._next_service = end + (end - now) / SERVICE_SHARE

    def _serve(self) -> None:
        """Count the collections that have arrived, and request others with the weights that are published."""
        for actor, collection in self.group.receive(0.0):
            self._count(actor, collection)
        self.group.request(lambda: self._published[1], self._make_request)

    def _count(self, actor: ActorRecord, collection: Collection) -> None:
        """Count the env steps and the episodes of a collection."""
        self.monitor.count_steps(collection.env_steps)
        self.training.timer.add_cpu_seconds(collection.cpu_seconds)
        first_lanes = {role: actor.index * len(active) for role, active in collection.active_lanes.items()}
        for role, active in collection.active_lanes.items():
            self._active[role][first_lanes[role] :][: len(active)] = active
        if collection.episodes:
            episodes = [replace(each, lane=first_lanes[each.role] + each.lane) for each in collection.episodes]
            self.monitor.count_episodes(episodes, self._active)

    def _publish(self) -> Any:
        """Return the reference to the weights, which are published once per version."""
        version, reference = self._published
        if version != self._version:
            reference = self.group.host.put(pack_all_weights(self.training.by_role))
            self._published = self._version, reference
        return reference

    def _make_request(self, number: int) -> Request:
        counters = self.monitor.counters
        by_role = self.training.by_role
        return Request(
            number=number,
            version=self._published[0],
            updates={role: each.learner.updates for role, each in by_role.items()},
            rows_seen={role: each.learner.rows_seen for role, each in by_role.items()},
            iterations=counters.iterations,
            fraction_done=self.monitor.limits.fraction_done(counters) or 0.0,
        )


class ClusterStatistics:
    """The metrics of a cluster since the last row of metrics, and its counts since the start of the process."""

    def __init__(self, group: ActorGroup):
        self.group = group
        self.dropped_env_steps = 0  # of rollouts whose lag was above `max_lag`
        self._clear()

    def add_collection(self, lag: int, collection: Collection, is_usable: bool, n_waiting: int) -> None:
        """Add a collection that is learned from, or dropped if it is not usable.

        Args:
            lag: its lag, in versions.
            collection: the collection.
            is_usable: whether it is learned from.
            n_waiting: the number of collections that wait meanwhile.
        """
        self._lags.append(lag)
        self._queue.append(n_waiting)
        self._waiting_seconds += collection.waiting_seconds
        self._seconds += collection.seconds
        if not is_usable:
            self.dropped_env_steps += collection.env_steps
        for name, value in collection.statistics.items():
            self._scene.setdefault(name, []).append(value)

    def collect(self) -> Mapping[str, float]:
        """Return the metrics, and start those of the next row."""
        group = self.group
        values: dict[str, float] = {
            "cluster/actors": group.n_ready,
            "cluster/restarts": group.restarts,
            "cluster/lost_env_steps": group.lost_env_steps,
            "cluster/dropped_env_steps": self.dropped_env_steps,
        }
        if self._lags:
            values |= {
                "cluster/lag": float(np.mean(self._lags)),
                "cluster/lag_max": max(self._lags),
                "cluster/queue": float(np.mean(self._queue)),
                "cluster/actor_waiting": self._waiting_seconds / (self._waiting_seconds + self._seconds),
            }
        if group.peers:
            values |= group.peers.collect_metrics()
        values |= {f"scene/{name}": float(np.mean(found)) for name, found in self._scene.items()}
        self._clear()
        return values

    def _clear(self) -> None:
        self._lags: list[int] = []
        self._queue: list[int] = []  # collections that wait to be learned from
        self._waiting_seconds = self._seconds = 0.0
        self._scene: dict[str, list[float]] = {}
