"""Actors on Ray: the only module that imports it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from collections.abc import Collection as Many
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import algorithm
from algorithm.adapters.adapter import EnvironmentStartError
from algorithm.errors import UserError, summarize_error
from algorithm.processes.actor_host import ActorHost, ActorLost
from algorithm.processes.collection import EvaluationRequest, Request, Weights
from algorithm.program import get_install_command

LOCAL = "local"
LOOPBACK = "127.0.0.1"
CONNECT_SECONDS = 10.0
START_SECONDS = 120.0  # in which a local cluster starts; Ray itself gives up after 30, however busy the machine is
NO_REPETITION = {"max_restarts": 0, "max_task_retries": 0}
MakeServer = Callable[..., Any]  # numbers of an actor -> an object with its methods


class RayHost(ActorHost):
    """A Ray cluster that runs actors, each in a process of its own.

    Ray repeats no call and restarts no actor: an actor that ends is replaced by `ActorGroup`, so that no rollout is
    learned from twice and the end of its lanes is known.

    Args:
        make_server: returns the object whose methods `open` and `collect` an actor calls, by its number and the number
            of its replacements; Ray sends it to the actors.
        make_evaluator: returns the object whose method `evaluate` an evaluation actor calls, by the number of its
            replacements; None if there is none.
        address: local (a cluster of this process, on this machine only), auto, or HOST:PORT.
        cpus: CPUs that are reserved for each actor.
        gpus: GPUs that are reserved for each actor.
        local_cpus: CPUs that a local cluster needs at least.
        uses_tokens: whether connections need Ray's token.

    Raises:
        UserError: Ray is not installed, or there is no cluster at the address.
        EnvironmentStartError: the cluster does not start in time.
    """

    def __init__(
        self,
        make_server: MakeServer,
        *,
        make_evaluator: MakeServer | None = None,
        address: str,
        cpus: float,
        gpus: float,
        local_cpus: float,
        uses_tokens: bool,
    ):
        self._ray = _import_ray(uses_tokens)
        _connect(self._ray, address, local_cpus)
        try:
            options = {"num_cpus": cpus, "num_gpus": gpus, **NO_REPETITION}
            self._actor_class = self._ray.remote(**options)(_Actor)
            self._make_server, self._make_evaluator = self._ray.put(make_server), self._ray.put(make_evaluator)
        except BaseException:
            self._ray.shutdown()
            raise

    def start(self, index: int, replacements: int) -> _Handle:
        return _start(self._actor_class, self._make_server, index, replacements)

    def start_evaluator(self, replacements: int) -> _Handle:
        return _start(self._actor_class.options(num_cpus=0, num_gpus=0), self._make_evaluator, replacements)

    def open(self, handle: _Handle) -> Hashable:
        return handle.actor.open.remote()

    def publish(self, weights: Weights) -> Any:
        return self._ray.put(weights)

    def request(self, handle: _Handle, weights: Any, request: Request) -> Hashable:
        return handle.actor.collect.remote(weights, request)

    def start_learner(self, make_server: MakeServer, rank: int, *, cpus: float, gpus: float) -> _Handle:
        """Start a process with the object of a learner, as soon as there are resources. Return a handle of it."""
        options = {"num_cpus": cpus, "num_gpus": gpus, **NO_REPETITION}
        return _start(self._ray.remote(**options)(_Learner), make_server, rank)

    def call(self, handle: _Handle, method: str, *arguments: Any) -> Hashable:
        """Call a method of the object in a process. Return the ticket of its result."""
        return handle.actor.call.remote(method, *arguments)

    @property
    def node_address(self) -> str:
        """Return the address of this machine in the cluster."""
        return self._ray.util.get_node_ip_address()

    def evaluate(self, handle: _Handle, weights: Any, request: EvaluationRequest) -> Hashable:
        return handle.actor.evaluate.remote(weights, request)

    def wait(self, tickets: Many[Hashable], timeout: float) -> Many[Hashable]:
        ready, waiting = self._ray.wait(list(tickets), timeout=timeout)
        if ready and waiting:
            ready += self._ray.wait(waiting, num_returns=len(waiting), timeout=0)[0]
        return ready

    def fetch(self, ticket: Hashable) -> Any:
        try:
            return self._ray.get(ticket)
        except self._ray.exceptions.RayTaskError as error:  # outside of the server, whose exceptions are Failures
            raise RuntimeError(f"the actor cannot run: {error.cause!r}") from error
        except self._ray.exceptions.RayError as error:
            raise ActorLost(type(error).__name__) from error

    def kill(self, handle: _Handle) -> None:
        """End an actor, also one that hangs: Ray waits for its process, which keeps its CPUs meanwhile."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray.kill(handle.actor)
        with suppress(self._ray.exceptions.RayError):  # it has not started, or has ended with its machine
            node, process = self._ray.get(handle.location, timeout=0)
            strategy = NodeAffinitySchedulingStrategy(node, soft=False)
            kill = self._ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=strategy)(_make_kill_process())
            kill.remote(process)

    def close(self) -> None:
        self._ray.shutdown()


@dataclass(frozen=True)
class _Handle:
    """An actor of Ray, and the ticket of its machine and its process id."""

    actor: Any
    location: Any


class _Actor:
    """A process of an actor, as Ray calls it."""

    def __init__(self, make_server: MakeServer, *numbers: int):
        self._server = make_server(*numbers)

    def locate(self) -> tuple[str, int]:
        """Return Ray's id of this machine, and the id of this process."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def open(self) -> Any:
        return self._server.open()

    def collect(self, weights: Weights, request: Request) -> Any:
        return self._server.collect(weights, request)

    def evaluate(self, weights: Weights, request: EvaluationRequest) -> Any:
        return self._server.evaluate(weights, request)

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self._server, method)(*arguments)


class _Learner(_Actor):
    """A process of a learner, as Ray calls it; Ray shows the name of the class."""


def _start(actor_class: Any, make_server: Any, *numbers: int) -> _Handle:
    """Start an actor of Ray as soon as there are resources."""
    actor = actor_class.remote(make_server, *numbers)
    return _Handle(actor, actor.locate.remote())


def _make_kill_process() -> Callable[[int], None]:
    """Return a function that kills a process of this machine, if it is one of Ray's.

    It is a function in a function, which Ray sends as code: a process that calls it need not import this package.
    """

    def kill_process(process: int) -> None:
        import os
        import signal
        from pathlib import Path

        try:
            if b"ray::" in Path(f"/proc/{process}/cmdline").read_bytes():
                os.kill(process, signal.SIGKILL)
        except OSError:  # it has ended
            pass

    return kill_process


def _import_ray(uses_tokens: bool) -> Any:
    """Import Ray without usage statistics, and let its head start in time. Raises UserError if it is not installed."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", f"{START_SECONDS:.0f}")
    os.environ["RAY_AUTH_MODE"] = "token" if uses_tokens else "disabled"  # read when Ray is imported
    try:
        import ray
    except ModuleNotFoundError as error:
        raise UserError(f"base_config.runtime RAY needs Ray: {get_install_command('ray')}") from error
    return ray


def _connect(ray: Any, address: str, local_cpus: float) -> None:
    """Start a local cluster, or connect to one. Raises UserError, EnvironmentStartError."""
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        options |= {
            "num_cpus": max(os.cpu_count() or 1, -int(-local_cpus // 1)),
            "include_dashboard": False,
            "_node_ip_address": LOOPBACK,
            # Otherwise Ray gives actors the niceness 15, with which they starve on a machine that is busy.
            "_system_config": {"worker_niceness": 0},
        }
    try:
        if ":" in address:
            host, port = address.rsplit(":", 1)
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()  # Ray tries for minutes
        with _python_path(), _signal_handlers():
            _start_in_time(ray, address, options)
    except EnvironmentStartError:
        raise
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        reason = summarize_error(error)
        raise UserError(f"cluster_config.address {address}: there is no Ray cluster to connect to: {reason}") from error


def _start_in_time(ray: Any, address: str, options: dict[str, Any]) -> None:
    """Call `ray.init`, again and again if the machine is busy. Raises EnvironmentStartError after `START_SECONDS`."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            ray.init(address=address, **options)
            return
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
    old = os.environ.get("PYTHONPATH")
    root = str(Path(algorithm.__file__).resolve().parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *([old] if old else [])])
    try:
        yield
    finally:
        if old is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = old


@contextmanager
def _signal_handlers() -> Iterator[None]:
    """Restore the handler of SIGTERM after the block, in which Ray replaces it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
