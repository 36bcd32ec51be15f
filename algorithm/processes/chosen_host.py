"""The host that the settings of a run or a population choose."""

from __future__ import annotations

from algorithm.config.loader import Settings
from algorithm.processes.host import Host
from algorithm.processes.process_host import ProcessHost


def open_host(settings: Settings, local_cpus: float) -> Host:
    """Return the system that runs the other processes of a run, or the members of a population.

    Args:
        settings: the settings of the run or the population.
        local_cpus: CPUs that a Ray cluster of this machine needs at least.

    Raises:
        UserError: Ray is not installed, or there is no cluster.
        EnvironmentStartError: a local cluster does not start in time.
    """
    cluster = settings.cluster
    if settings.base.is_on_cluster and cluster.host == "ray":
        from algorithm.processes.ray_host import RayHost

        return RayHost(address=cluster.address, local_cpus=local_cpus, uses_tokens=cluster.token_auth)
    return ProcessHost()
