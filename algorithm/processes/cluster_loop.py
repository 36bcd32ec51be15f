"""The learner's side of a run on a cluster: it receives rollouts and learns from them."""

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
from algorithm.processes.collect import Experience, Request
from algorithm.processes.collectors import Collector, Collectors
from algorithm.processes.fleet import RemoteLanes
from algorithm.processes.learners import LearnerPeers
from algorithm.processes.weights import pack_all_weights
from algorithm.rollout import Rollout
from algorithm.training.components import TrainingComponents
from algorithm.training.monitor import DISPLAY_INTERVAL, Monitor
from algorithm.training.run_end import DivergenceDetector
from algorithm.training.signals import DeferredSignals
from algorithm.training.updates import run_updates

LOG = logging.getLogger(__name__)
SERVICE_SHARE = 0.05  # largest fraction of the time of updates in which the learner serves actors


class ClusterLoop:
    """The learner's side of a run on a cluster.

    A *version* of the weights is the state after the updates that follow one rollout, or one rollout of each actor if
    an agent has no replay. The *lag* of a rollout is the number of versions between the weights that acted and those
    that learn.

    Between the updates, the learner serves actors: it receives their rollouts, and requests others with the newest
    version, so that they do not wait for the rest of the updates. Several learners wait for each other and do not.
    """

    def __init__(
        self,
        training: TrainingComponents,
        collectors: Collectors,
        peers: LearnerPeers | None,
        statistics: ClusterStatistics,
        monitor: Monitor,
        divergence: DivergenceDetector,
    ):
        self.training, self.collectors, self.peers = training, collectors, peers
        self.statistics, self.monitor, self.divergence = statistics, monitor, divergence
        # Rollouts of agents without a replay are joined, so that one update follows a rollout of every actor.
        self._joins = not all(each.agent.schedule.uses_replay for each in training.by_role.values())
        self._serves = not self._joins and not peers
        self._next_service = 0.0  # time
        self._version = 0
        self._published: tuple[int, Any] = (-1, None)  # the newest version that was published, and its reference
        for name, role in training.adapter.roles.items():
            if role.lanes > training.by_role[name].role.lanes:  # more actors than the checkpoint has lanes for
                training.grow(name)
        if collectors.n_ready < collectors.count:
            LOG.warning(f"{collectors.describe_missing()}: the run starts without them")
        self._lanes = RemoteLanes(collectors.count, collectors.roles)
        # By role and actor: lanes whose last rollout was dropped.
        self._broken = {name: np.zeros((collectors.count, role.lanes), bool) for name, role in collectors.roles.items()}

    def advance(self, signals: DeferredSignals) -> bool:
        """Receive experience, and learn from some. Return whether the run is over."""
        self._receive()
        self._learn()
        return self.monitor.do_due()

    def _receive(self) -> None:
        """Count the experience that has arrived; wait for some if there is nothing to learn from."""
        self.collectors.request(self._publish, self._make_request)
        is_idle = not self.collectors.find_next(self._joins)
        for actor, experience in self.collectors.receive(DISPLAY_INTERVAL if is_idle else 0.0):
            self._count(actor, experience)
        self.training.timer.lap("environment")
        self.collectors.request(self._publish, self._make_request)

    def _learn(self) -> None:
        """Make the updates that follow the next experience, if it has been received."""
        by_role: dict[str, list[list[Rollout]]] = {}  # by role, the rollouts of each learner
        actors = self.collectors.find_next(self._joins)
        n_waiting = self.collectors.n_waiting - len(actors)
        for actor in actors:
            experience = actor.waiting[0]
            lag = self._version - experience.version
            is_usable = self.collectors.max_lag is None or lag <= self.collectors.max_lag
            self.statistics.add_experience(lag, experience, is_usable, n_waiting)
            for role, rollout in experience.rollouts:
                placed = self._place(actor.index, role, rollout, is_usable)
                if is_usable:
                    by_learner = by_role.setdefault(role, [[] for _ in range(self.collectors.n_learners)])
                    by_learner[actor.index % self.collectors.n_learners].append(placed)
        for role, by_learner in by_role.items():
            if self._joins:
                by_learner = [[Rollout.join_columns(rollouts)] if rollouts else [] for rollouts in by_learner]
            for rollouts in zip_longest(*by_learner):
                self._learn_from(role, rollouts)
        self._version += bool(by_role)
        for actor in actors:  # until now they count as rollouts in flight
            actor.waiting.popleft()
        if actors:
            self.training.timer.lap("learning")

    def _learn_from(self, role: str, rollouts: Sequence[Rollout | None]) -> None:
        """Make the updates that follow a rollout of each learner; None for a learner without one."""
        record_update, counters = partial(self._record_update, role), self.monitor.counters
        if self.peers:
            before = counters.updates
            counters.updates = before + self.peers.learn(self.training, role, rollouts, record_update)
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
        first_lane = index // self.collectors.n_learners * self.collectors.roles[role].lanes
        return replace(rollout, lane=first_lane + lane, continues_previous=continues_previous)

    def _record_update(self, role: str, report: LossResult) -> None:
        self.monitor.record_update(role, report)
        self.divergence.count_update()
        if self._serves and (now := monotonic()) >= self._next_service:
            self._serve()
            end = monotonic()
            self._next_service = end + (end - now) / SERVICE_SHARE

    def _serve(self) -> None:
        """Count the experience that has arrived, and request more with the weights that are published."""
        for actor, experience in self.collectors.receive(0.0):
            self._count(actor, experience)
        self.collectors.request(lambda: self._published[1], self._make_request)

    def _count(self, actor: Collector, experience: Experience) -> None:
        """Count the env steps and the episodes in the experience of an actor."""
        self.monitor.count_steps(experience.env_steps)
        self.training.timer.add_cpu_seconds(experience.cpu_seconds)
        self._lanes.count_episodes(self.monitor, actor.index, experience.episodes, experience.active_lanes)

    def _publish(self) -> Any:
        """Return the reference to the weights, which are published once per version."""
        version, reference = self._published
        if version != self._version:
            reference = self.collectors.supervisor.host.put(pack_all_weights(self.training.by_role))
            self._published = self._version, reference
        return reference

    def _make_request(self) -> Request:
        counters = self.monitor.counters
        by_role = self.training.by_role
        return Request(
            version=self._published[0],
            updates={role: each.learner.updates for role, each in by_role.items()},
            rows_seen={role: each.learner.rows_seen for role, each in by_role.items()},
            iterations=counters.iterations,
            fraction_done=self.monitor.limits.fraction_done(counters) or 0.0,
        )


class ClusterStatistics:
    """The metrics of a cluster since the last row of metrics, and its counts since the start of the process."""

    def __init__(self, collectors: Collectors, peers: LearnerPeers | None):
        self.collectors, self.peers = collectors, peers
        self.dropped_env_steps = 0  # of rollouts whose lag was above `max_lag`
        self._clear()

    def add_experience(self, lag: int, experience: Experience, is_usable: bool, n_waiting: int) -> None:
        """Add experience that is learned from, or dropped if it is not usable.

        Args:
            lag: its lag, in versions.
            experience: the experience.
            is_usable: whether it is learned from.
            n_waiting: the number of replies that wait meanwhile.
        """
        self._lags.append(lag)
        self._queue.append(n_waiting)
        self._waiting_seconds += experience.waiting_seconds
        self._seconds += experience.seconds
        if not is_usable:
            self.dropped_env_steps += experience.env_steps
        for name, value in experience.statistics.items():
            self._scene.setdefault(name, []).append(value)

    def collect(self) -> Mapping[str, float]:
        """Return the metrics, and start those of the next row."""
        values: dict[str, float] = {
            "cluster/actors": self.collectors.n_ready,
            "cluster/restarts": self.collectors.supervisor.replaced,
            "cluster/lost_env_steps": self.collectors.lost_env_steps,
            "cluster/dropped_env_steps": self.dropped_env_steps,
        }
        if self._lags:
            values |= {
                "cluster/lag": float(np.mean(self._lags)),
                "cluster/lag_max": max(self._lags),
                "cluster/queue": float(np.mean(self._queue)),
                "cluster/actor_waiting": self._waiting_seconds / (self._waiting_seconds + self._seconds),
            }
        if self.peers:
            values |= self.peers.collect_metrics()
        values |= {f"scene/{name}": float(np.mean(found)) for name, found in self._scene.items()}
        self._clear()
        return values

    def _clear(self) -> None:
        self._lags: list[int] = []
        self._queue: list[int] = []  # replies that wait to be learned from
        self._waiting_seconds = self._seconds = 0.0
        self._scene: dict[str, list[float]] = {}
