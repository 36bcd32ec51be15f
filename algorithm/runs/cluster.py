"""The cluster of a run, as its settings describe it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from algorithm.config.loader import Settings
from algorithm.errors import UserError
from algorithm.runs.make_env import check_several_processes
from algorithm.runs.rollout_actor import ActorServer, ActorTask
from algorithm.runs.run_folder import RunFolder
from algorithm.runtimes.actor_group import ActorGroup
from algorithm.runtimes.actor_host import ActorHost


def check_cluster(settings: Settings) -> None:
    """Raise UserError if the run is on a cluster, and its settings do not fit together."""
    if not settings.base.is_on_cluster:
        return
    check_several_processes(settings.base, "base_config.runtime RAY", "use LOCAL")
    cluster, in_flight = settings.cluster, get_rollouts_in_flight(settings)
    if cluster.max_lag is not None and not _uses_replay(settings) and cluster.max_lag < in_flight - 1:
        raise UserError(
            f"cluster_config.max_lag is {cluster.max_lag}, but rollouts have a lag of {in_flight - 1} with "
            f"cluster_config.rollouts_in_flight {in_flight}: set max_lag to at least {in_flight - 1}"
        )


def get_rollouts_in_flight(settings: Settings) -> int:
    """Return `cluster_config.rollouts_in_flight`, or its default: 2 with a replay, 1 without."""
    return settings.cluster.rollouts_in_flight or (2 if _uses_replay(settings) else 1)


def _uses_replay(settings: Settings) -> bool:
    """Return whether the agents of all roles have a replay."""
    return all(hasattr(each.agent, "replay_ratio") for each in (settings, *settings.roles.values()))


@contextmanager
def open_cluster(settings: Settings, folder: RunFolder, env_steps: int) -> Iterator[ActorGroup]:
    """Connect to the cluster of a run, start its actors, and end them with the block.

    Args:
        settings: the settings of the run.
        folder: the run folder.
        env_steps: env steps of the run so far.
    """
    from algorithm.runtimes.ray_host import RayHost

    cluster = settings.cluster
    task = make_actor_task(settings, folder, env_steps)
    host = RayHost(
        partial(ActorServer, task),
        address=cluster.address,
        cpus=cluster.cpus_per_actor,
        gpus=cluster.gpus_per_actor,
        local_cpus=cluster.actors * cluster.cpus_per_actor,
        uses_tokens=cluster.token_auth,
    )
    group = make_actor_group(settings, host)
    try:
        group.open()
        yield group
    finally:
        group.close()


def make_actor_group(settings: Settings, host: ActorHost) -> ActorGroup:
    """Return the actors of a run, which `host` runs."""
    cluster = settings.cluster
    return ActorGroup(
        host=host,
        count=cluster.actors,
        in_flight=get_rollouts_in_flight(settings),
        timeout=cluster.timeout,
        start_timeout=cluster.start_timeout,
        max_lag=cluster.max_lag,
        max_replacements=settings.base.max_env_restarts,
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
