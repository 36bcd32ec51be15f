"""The cluster of a run, as its settings describe it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from algorithm.adapters.curriculum import EnvironmentParameters
from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.config.loader import Settings
from algorithm.config.yaml_layers import Tree
from algorithm.errors import UserError
from algorithm.parts.components_builder import Sharing
from algorithm.parts.make_env import check_several_processes
from algorithm.parts.run_folder import RunFolder
from algorithm.processes.actor_group import ActorGroup
from algorithm.processes.averaging_learner import make_learner_sharing
from algorithm.processes.collect import ActorTask, CollectorService
from algorithm.processes.collection import EvaluationRequest, pack_all_weights
from algorithm.processes.evaluate import EvaluatorService
from algorithm.processes.evaluation_actor import ActorEvaluations
from algorithm.processes.host import Host, ServiceSpec
from algorithm.processes.learn import LearnerService
from algorithm.processes.learner_peers import LearnerPeers
from algorithm.processes.process_host import ProcessHost
from algorithm.specs import Role
from algorithm.training.components import TrainingComponents
from algorithm.training.evaluations import EpisodePlan


def check_cluster(settings: Settings) -> None:
    """Raise UserError if the run is on a cluster, and its settings do not fit together."""
    if not settings.base.is_on_cluster:
        return
    check_several_processes(settings.base, "base_config.runtime CLUSTER", "use LOCAL")
    cluster, in_flight = settings.cluster, get_rollouts_in_flight(settings)
    if cluster.learners > 1:
        _check_learners(settings)
    if cluster.max_lag is not None and not _uses_replay(settings) and cluster.max_lag < in_flight - 1:
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
    return settings.cluster.rollouts_in_flight or (2 if _uses_replay(settings) else 1)


def _uses_replay(settings: Settings) -> bool:
    """Return whether the agents of all roles have a replay."""
    return all(each.agent.uses_replay for each in (settings, *settings.roles.values()))


@contextmanager
def open_cluster(settings: Settings, folder: RunFolder, env_steps: int, evaluates: bool) -> Iterator[ActorGroup]:
    """Start the other processes of a run, and end them with the block.

    Args:
        settings: the settings of the run.
        folder: the run folder.
        env_steps: env steps of the run so far.
        evaluates: whether the run has evaluations.
    """
    task = make_actor_task(settings, folder, env_steps)
    host = open_host(settings)
    peers = make_peers(settings, host)
    evaluator = partial(EvaluatorService, task) if evaluates else None
    group = make_actor_group(settings, host, peers, partial(CollectorService, task), evaluator)
    try:
        if peers:
            meeting_host = host.find_meeting_host()
            # On one machine they meet in a file, so that no port is open.
            open_peers(peers, task, f"tcp://{meeting_host}:{_find_free_port()}" if meeting_host else None)
        group.open()
        yield group
    finally:
        group.close()


def open_host(settings: Settings) -> Host:
    """Return the system that runs the other processes of a run."""
    cluster = settings.cluster
    if cluster.host == "processes":
        return ProcessHost()
    from algorithm.processes.ray_host import RayHost

    local_cpus = cluster.actors * cluster.cpus_per_actor + (cluster.learners - 1) * cluster.cpus_per_learner
    return RayHost(address=cluster.address, local_cpus=local_cpus, uses_tokens=cluster.token_auth)


def open_peers(peers: LearnerPeers, task: ActorTask, address: str | None) -> None:
    """Start the other learners of a run, which meet at `address`; None: in a file."""
    cluster, base = task.settings.cluster, task.settings.base
    if cluster.gpus_per_learner:  # Ray shows each process its own GPU only, as the first one
        task = replace(task, settings=replace(task.settings, base=base.model_copy(update={"device": "cuda"})))
    make = partial(LearnerService, task)
    peers.open(
        ServiceSpec(kind="Learner", make=make, cpus=cluster.cpus_per_learner, gpus=cluster.gpus_per_learner), address
    )


def _find_free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]


def make_peers(settings: Settings, host: Host) -> LearnerPeers | None:
    """Return the other learners of a run, which `host` runs; None if it has one learner."""
    cluster = settings.cluster
    if cluster.learners == 1:
        return None
    return LearnerPeers(host, size=cluster.learners, timeout=cluster.timeout, start_timeout=cluster.start_timeout)


def make_actor_group(
    settings: Settings,
    host: Host,
    peers: LearnerPeers | None,
    make_collector: Callable[[int, int], Any],
    make_evaluator: Callable[[int], Any] | None,
) -> ActorGroup:
    """Return the actors of a run, which `host` runs, with the other learners.

    Args:
        settings: the settings of the run.
        host: the system that runs the actors.
        peers: the other learners; None without others.
        make_collector: makes the service of an actor, given its number and the number of its replacements.
        make_evaluator: makes the service of the evaluation actor, given its replacements; None without evaluations.
    """
    cluster = settings.cluster
    evaluator_spec = None
    if make_evaluator and cluster.evaluation_actor:
        evaluator_spec = ServiceSpec(kind="Evaluator", make=make_evaluator)
    return ActorGroup(
        host=host,
        spec=ServiceSpec(kind="Actor", make=make_collector, cpus=cluster.cpus_per_actor, gpus=cluster.gpus_per_actor),
        evaluator_spec=evaluator_spec,
        count=cluster.actors,
        in_flight=get_rollouts_in_flight(settings),
        timeout=cluster.timeout,
        start_timeout=cluster.start_timeout,
        max_lag=cluster.max_lag,
        max_replacements=settings.base.max_env_restarts,
        peers=peers,
    )


def get_learner_sharing(group: object) -> Sharing | None:
    """Return what this learner shares with others, given the other processes of the run; None without others."""
    return make_learner_sharing(group.peers.group) if isinstance(group, ActorGroup) and group.peers else None


def build_peers(
    group: object, roles: Mapping[str, Role], checkpoint: Checkpoint | None
) -> AbstractContextManager[None]:
    """Return a context in which the other learners of a run build their components, if `group` has any.

    Args:
        group: the other processes of the run.
        roles: the roles, in the order in which the block builds their components.
        checkpoint: the checkpoint of the run, if it has one.
    """
    if isinstance(group, ActorGroup) and group.peers:
        return group.peers.build(list(roles.items()), checkpoint)
    return nullcontext()


def describe_learners(settings: Settings, checkpoint: Checkpoint | None) -> Iterator[str]:
    """Yield a line if there are several learners, and one if their number differs from that of a checkpoint."""
    saved, learners = checkpoint.n_learners if checkpoint else settings.n_learners, settings.n_learners
    if learners > 1:
        divided = "the actors, batch_size, learning_starts and capacity" if _uses_replay(settings) else "the actors"
        yield f"learners: {learners}, each with 1/{learners} of {divided}"
    if saved == learners:
        return
    first, last = min(saved, learners), max(saved, learners) - 1
    changed = f"learner {first}" if first == last else f"learners {first} to {last}"
    change = f"that of {changed} is not used" if saved > learners else f"there is none for {changed}"
    yield f"learners: {saved} -> {learners}; networks, optimizers, counters and saved experience are kept, but {change}"


def make_actor_evaluations(
    settings: Settings,
    group: ActorGroup,
    training: TrainingComponents,
    make_plan: Callable[[int], EpisodePlan],
    parameters: EnvironmentParameters,
) -> ActorEvaluations:
    """Return evaluations on the evaluation actor of a run.

    Args:
        settings: the settings of the run.
        group: the actors of the run.
        training: the components, whose weights are evaluated.
        make_plan: returns the episodes of an evaluation that starts now, with this number that confirm the goal.
        parameters: the environment parameters of the run.
    """
    assert group.evaluator_spec
    return ActorEvaluations(
        group.host,
        group.evaluator_spec,
        group.evaluator,
        publish=lambda: group.host.put(pack_all_weights(training.by_role)),
        make_request=lambda confirmation_episodes: EvaluationRequest(
            plan=make_plan(confirmation_episodes), parameters=parameters.state()
        ),
        timeout=settings.cluster.evaluation_timeout,
    )


def make_actor_task(settings: Settings, folder: RunFolder, env_steps: int) -> ActorTask:
    """Return the data from which the actors of a run start."""
    make_env = None
    if folder.make_env is not None:
        import cloudpickle  # which Gymnasium needs

        make_env = cloudpickle.dumps(folder.make_env)
    paths = [*folder.path.glob("*.py"), folder.nn_from / settings.base.nn]
    files = {path.name: path.read_bytes() for path in paths if path.is_file()}
    return ActorTask(settings=settings, files=files, make_env=make_env, env_steps=env_steps)
