"""The cluster runtime: one learner with the replay, and many rollout actors in other processes or on other machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from algorithm.adapters.adapter import Adapter
from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.checkpointing.manifest import Manifest
from algorithm.checkpointing.writer import write_all
from algorithm.config.loader import Settings
from algorithm.config.yaml_layers import Tree
from algorithm.errors import UserError
from algorithm.parts.make_env import check_several_processes
from algorithm.processes.averaging_learner import make_learner_sharing
from algorithm.processes.chosen_host import open_host
from algorithm.processes.cluster_loop import ClusterLoop, ClusterStatistics
from algorithm.processes.collect import CollectorService
from algorithm.processes.collectors import Collectors
from algorithm.processes.evaluate import EvaluatorService, RemoteEvaluations
from algorithm.processes.fleet import Fleet, RemoteEnvironments, uses_replay
from algorithm.processes.host import Host, ServiceSpec
from algorithm.processes.learners import LearnerPeers, LearnerService, NoEnvironments
from algorithm.processes.service import RunTask, allow_read_only_arrays, start_service
from algorithm.processes.supervisor import Supervisor
from algorithm.processes.weights import pack_all_weights
from algorithm.specs import Role
from algorithm.training.evaluator import EpisodePlan, Evaluations
from algorithm.training.monitor import Monitor
from algorithm.training.run_end import DivergenceDetector
from algorithm.training.signals import DeferredSignals


class ClusterFleet(Fleet):
    """The actors, the evaluation actor and the other learners of a run, which a host runs."""

    _host: Host | None = None
    _peers: LearnerPeers | None = None
    _evaluator: Supervisor | None = None

    @classmethod
    def check(cls, settings: Settings) -> None:
        check_cluster(settings)

    def open(self, evaluates: bool) -> None:
        cluster = self.settings.cluster
        evaluates = evaluates and not self.environments.find_evaluation_obstacle()
        task = RunTask.pack(self.settings, self.folder, self.counters.env_steps)
        cpus = cluster.actors * cluster.cpus_per_actor + (cluster.learners - 1) * cluster.cpus_per_learner
        self._host = host = open_host(self.settings, cpus)
        if cluster.learners > 1:
            self._peers = _make_peers(host, task)
            self._peers.open()
            self.sharing = make_learner_sharing(self._peers.group)
        self.collectors = _make_collectors(host, task)
        self.collectors.start()
        if evaluates and cluster.evaluation_actor:
            self._evaluator = Supervisor(
                host,
                ServiceSpec(kind="Evaluator", make=partial(start_service, EvaluatorService, task)),
                name=lambda _: "the evaluation actor",
                time_limit="cluster_config.evaluation_timeout",
            )
            self._evaluator.ensure(1)
        self.collectors.wait_for_start()
        count = cluster.actors // cluster.learners  # of the actors of one learner
        self.adapter = RemoteEnvironments(
            {
                name: replace(role, lanes=role.lanes * count, teams=role.teams * count)
                for name, role in self.collectors.roles.items()
            }
        )
        self._statistics = ClusterStatistics(self.collectors, self._peers)

    def build(self, roles: Mapping[str, Role], checkpoint: Checkpoint | None) -> AbstractContextManager[None]:
        return self._peers.build(roles, checkpoint) if self._peers else nullcontext()

    def make_evaluations(self, adapter: Adapter, make_plan: Callable[[int], EpisodePlan]) -> Evaluations | None:
        if self._evaluator is None:
            return super().make_evaluations(adapter, make_plan)
        host = self._evaluator.host
        return RemoteEvaluations(
            self._evaluator,
            publish=lambda: host.put(pack_all_weights(self.training.by_role)),
            make_plan=make_plan,
            parameters=self.parameters,
            timeout=self.settings.cluster.evaluation_timeout,
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        checkpoint.restore_process(NoEnvironments())

    def save(self, manifest: Manifest) -> dict[str, Any]:
        save = self._peers.save if self._peers else write_all
        return save(self.training, NoEnvironments(), manifest)

    def collect_metrics(self) -> Mapping[str, float]:
        return self._statistics.collect()

    def begin(self, monitor: Monitor, divergence: DivergenceDetector) -> Callable[[DeferredSignals], bool]:
        allow_read_only_arrays()
        return ClusterLoop(self.training, self.collectors, self._peers, self._statistics, monitor, divergence).advance

    def close(self) -> None:
        if self._host:
            self._host.close()
        if self._peers:
            self._peers.close()


def _make_peers(host: Host, task: RunTask) -> LearnerPeers:
    """Return the other learners of a run, which `host` runs."""
    cluster, base = task.settings.cluster, task.settings.base
    if cluster.gpus_per_learner:  # Ray shows each process its own GPU only, as the first one
        task = replace(task, settings=replace(task.settings, base=base.model_copy(update={"device": "cuda"})))
    spec = ServiceSpec(
        kind="Learner",
        make=partial(start_service, LearnerService, task),
        cpus=cluster.cpus_per_learner,
        gpus=cluster.gpus_per_learner,
    )
    supervisor = Supervisor(host, spec, name=lambda index: f"learner {index + 1}")
    return LearnerPeers(supervisor, size=cluster.learners, timeout=cluster.timeout, start_timeout=cluster.start_timeout)


def _make_collectors(host: Host, task: RunTask) -> Collectors:
    """Return the rollout actors of a run, which `host` runs."""
    cluster = task.settings.cluster
    spec = ServiceSpec(
        kind="Actor",
        make=partial(start_service, CollectorService, task),
        cpus=cluster.cpus_per_actor,
        gpus=cluster.gpus_per_actor,
    )
    max_replacements = task.settings.base.max_env_restarts
    return Collectors(
        Supervisor(host, spec, name="actor {}".format, max_replacements=max_replacements),
        count=cluster.actors,
        in_flight=get_rollouts_in_flight(task.settings),
        timeout=cluster.timeout,
        start_timeout=cluster.start_timeout,
        max_lag=cluster.max_lag,
        n_learners=cluster.learners,
    )


def check_cluster(settings: Settings) -> None:
    """Raise UserError if the settings of a run on a cluster do not fit together."""
    check_several_processes(settings.base, "base_config.runtime CLUSTER", "use LOCAL")
    cluster, in_flight = settings.cluster, get_rollouts_in_flight(settings)
    if cluster.learners > 1:
        _check_learners(settings)
    if cluster.max_lag is not None and not uses_replay(settings) and cluster.max_lag < in_flight - 1:
        raise UserError(
            f"cluster_config.max_lag is {cluster.max_lag}, but rollouts have a lag of {in_flight - 1} with "
            f"cluster_config.rollouts_in_flight {in_flight}: set max_lag to at least {in_flight - 1}"
        )


def _check_learners(settings: Settings) -> None:
    """Raise UserError for settings that do not fit several learners."""
    cluster, device = settings.cluster, settings.base.device
    if cluster.actors % cluster.learners:
        raise UserError(
            f"cluster_config.actors is {cluster.actors}, which cannot be divided among cluster_config.learners "
            f"{cluster.learners}: set actors to {-(-cluster.actors // cluster.learners) * cluster.learners}"
        )
    for each in (settings, *settings.roles.values()):
        section, batch_size = each.agent_section, getattr(each.agent, "batch_size", 0)
        if getattr(each.agent, "trust_region", None) == "full":
            raise UserError(f"{section}.trust_region full is not for several learners: use efficient or off")
        if batch_size % cluster.learners:
            raise UserError(
                f"{section}.batch_size is {batch_size}, which cannot be divided among cluster_config.learners "
                f"{cluster.learners}: set batch_size to {-(-batch_size // cluster.learners) * cluster.learners}"
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
