"""Services on Ray: the only module that imports it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Collection, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import algorithm
from algorithm.adapters.adapter import EnvironmentStartError
from algorithm.errors import UserError, summarize_error
from algorithm.processes.host import Host, Reply, ServiceLost, ServiceProcess, ServiceSpec
from algorithm.program import get_install_command
from algorithm.training.signals import STOP_EXCEPTIONS

LOCAL = "local"
LOOPBACK = "127.0.0.1"
CONNECT_SECONDS = 10.0
START_SECONDS = 120.0  # in which a local cluster starts; Ray itself gives up after 30, however busy the machine is


@contextmanager
def _defer_signals() -> Iterator[None]:
    """Defer SIGTERM and SIGHUP until the end of the block, which calls Ray.

    Ray's compiled code expects no other exception of a signal handler than KeyboardInterrupt: it would raise a
    SystemError instead of another one, whenever its call ends. The handlers are restored, since Ray replaces some.
    """
    received: list[int] = []
    kinds = STOP_EXCEPTIONS.items() if threading.current_thread() is threading.main_thread() else ()
    handlers = {number: signal.getsignal(number) for number, kind in kinds if kind is not KeyboardInterrupt}
    for number, handler in handlers.items():
        if callable(handler):
            signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in received:
            signal.raise_signal(number)


class RayHost(Host):
    """A Ray cluster that runs services, each in a process of its own.

    Args:
        address: local (a cluster of this process, on this machine only), auto, or HOST:PORT.
        local_cpus: CPUs that a local cluster needs at least.
        uses_tokens: whether connections need Ray's token.

    Raises:
        UserError: Ray is not installed, or there is no cluster at the address.
        EnvironmentStartError: the cluster does not start in time.
    """

    def __init__(self, *, address: str, local_cpus: float, uses_tokens: bool):
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", f"{START_SECONDS:.0f}")
        os.environ["RAY_AUTH_MODE"] = "token" if uses_tokens else "disabled"  # read when Ray is imported
        try:
            import ray
        except ModuleNotFoundError as error:
            raise UserError(f"cluster_config.host ray needs Ray: {get_install_command('ray')}") from error
        self._ray: Any = ray
        _connect(ray, address, local_cpus)
        self.meeting_host = None if address == LOCAL else ray.util.get_node_ip_address()
        self._makers: dict[ServiceSpec, Any] = {}  # references to `ServiceSpec.make`

    @_defer_signals()
    def start(self, spec: ServiceSpec, *numbers: int) -> _Handle:
        if spec not in self._makers:
            self._makers[spec] = self._ray.put(spec.make)
        options = {"num_cpus": spec.cpus, "num_gpus": spec.gpus, "max_restarts": 0, "max_task_retries": 0}
        process_class = type(spec.kind, (_Service,), {})  # Ray shows its name
        actor = self._ray.remote(**options)(process_class).remote(self._makers[spec], *numbers)
        return _Handle(actor, actor.locate.remote())

    @_defer_signals()
    def put(self, value: Any) -> Any:
        return self._ray.put(value)

    @_defer_signals()
    def call(self, handle: _Handle, method: str, *arguments: Any) -> Hashable:
        return handle.actor.call.remote(method, *arguments)

    @_defer_signals()
    def wait(self, tickets: Collection[Hashable], timeout: float) -> Collection[Hashable]:
        ready, waiting = self._ray.wait(list(tickets), timeout=timeout)
        if ready and waiting:
            ready += self._ray.wait(waiting, num_returns=len(waiting), timeout=0)[0]
        return ready

    @_defer_signals()
    def fetch(self, ticket: Hashable) -> Reply:
        try:
            return self._ray.get(ticket)
        except self._ray.exceptions.RayTaskError as error:  # outside of the service, as in a message
            raise RuntimeError(f"the service cannot run: {error.cause!r}") from error
        except self._ray.exceptions.RayError as error:
            raise ServiceLost(f"ended ({type(error).__name__})") from error

    @_defer_signals()
    def kill(self, handle: _Handle) -> None:
        """End a service, also one that hangs: Ray waits for its process, which keeps its CPUs meanwhile."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        def kill_process(process: int) -> None:  # inside of a function, since Ray sends such a function as code
            with suppress(OSError):  # it has ended
                if b"ray::" in Path(f"/proc/{process}/cmdline").read_bytes():
                    os.kill(process, signal.SIGKILL)

        self._ray.kill(handle.actor)
        with suppress(self._ray.exceptions.RayError):  # it has not started, or has ended with its machine
            node, process = self._ray.get(handle.location, timeout=0)
            strategy = NodeAffinitySchedulingStrategy(node, soft=False)
            options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": strategy}
            self._ray.remote(**options)(kill_process).remote(process)

    def close(self) -> None:
        self._ray.shutdown()


@dataclass(frozen=True)
class _Handle:
    """An actor of Ray, and the ticket of its machine and its process id."""

    actor: Any
    location: Any


class _Service(ServiceProcess):
    """The process of a service, as Ray calls it."""

    def locate(self) -> tuple[str, int]:
        """Return Ray's id of this machine, and the id of this process."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()


def _connect(ray: Any, address: str, local_cpus: float) -> None:
    """Start a local cluster, or connect to one; again and again if the machine is busy, for `START_SECONDS`.

    Raises UserError, EnvironmentStartError.
    """
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        options |= {
            "num_cpus": max(os.cpu_count() or 1, -int(-local_cpus // 1)),
            "include_dashboard": False,
            "_node_ip_address": LOOPBACK,
            # Otherwise Ray gives actors the niceness 15, with which they starve on a machine that is busy.
            "_system_config": {"worker_niceness": 0},
        }
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            if ":" in address:
                host, port = address.rsplit(":", 1)
                socket.create_connection((host, int(port)), CONNECT_SECONDS).close()  # Ray tries for minutes
            with _python_path(), _defer_signals():
                ray.init(address=address, **options)
            return
        except (OSError, OverflowError, ValueError, RuntimeError) as error:
            reason = f"there is no Ray cluster to connect to: {summarize_error(error)}"
            raise UserError(f"cluster_config.address {address}: {reason}") from error
        except Exception as error:
            if type(error) is not Exception:  # Ray raises only its time limits without a class of their own
                raise
            ray.shutdown()  # the parts that have started
            if time.monotonic() >= deadline:
                raise EnvironmentStartError(
                    f"cluster_config.address {address}: Ray has not started within {START_SECONDS:g} s; the machine is "
                    f"busy, or has too little memory: {summarize_error(error)}"
                ) from error


@contextmanager
def _python_path() -> Iterator[None]:
    """Let the processes of a local cluster import this package from where this process did."""
    old = os.environ.get("PYTHONPATH", "")  # which Python ignores if it is empty
    root = str(Path(algorithm.__file__).resolve().parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, old)))
    try:
        yield
    finally:
        os.environ["PYTHONPATH"] = old
