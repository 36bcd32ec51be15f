"""The contract of hosts, for processes of this machine and for Ray; the start of Ray on a busy machine, and signals."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from algorithm.adapters.adapter import EnvironmentStartError
from algorithm.errors import UserError
from algorithm.processes import ray_host
from algorithm.processes.host import Failure, ProcessHost, ServiceLost, ServiceSpec
from algorithm.processes.ray_host import RayHost
from algorithm.training.signals import DeferredSignals, Terminated, raise_on_stop_signals
from tests.faults.namespaces import ROOT, WITH_LOOPBACK, find_obstacle
from tests.faults.runs import wait_until_dead
from tests.prepared_processes import PREPARED

IN_NAMESPACE = "SAMARA_TEST_RAY"  # set in a namespace in which Ray may be started
KINDS = ["processes", "ray"] if IN_NAMESPACE in os.environ else ["processes"]
SECONDS = 60.0


class Service:
    """A service with every behavior that the contract names."""

    def __init__(self, *numbers):
        if numbers == (13,):
            raise ValueError("thirteen")
        self.numbers, self.calls, self.seen = numbers, [], []

    def get_numbers(self):
        return self.numbers

    def get_process(self):
        return os.getpid(), os.getppid()

    def record(self, number):
        self.calls.append(number)
        return list(self.calls)

    def add(self, values, number):
        self.seen.append(values["a"].sum())
        return {"a": values["a"] + number}, len(self.seen)

    def fail(self):
        raise KeyError("missing")

    def end(self):
        os._exit(3)

    def sleep(self, seconds):
        time.sleep(seconds)


SPEC = ServiceSpec(kind="Test", make=Service)


@pytest.fixture(scope="module", autouse=True)
def prepared_processes():
    with mock.patch("algorithm.processes.host.PROCESSES", PREPARED):
        yield


@pytest.fixture(scope="module", params=KINDS)
def host(request):
    is_ray = request.param == "ray"
    with closing(RayHost(address="local", local_cpus=4, uses_tokens=False) if is_ray else ProcessHost()) as host:
        yield host


@pytest.fixture
def handle(host):
    handle = host.start(SPEC, 1, 2)
    yield handle
    host.kill(handle)


def receive(host, ticket):
    assert list(host.wait([ticket], SECONDS)) == [ticket]
    result = host.fetch(ticket).result
    if isinstance(result, Failure):
        result.raise_error()
    return result


def test_calls_are_executed_in_their_order_each_once(host, handle):
    tickets = [host.call(handle, "record", number) for number in range(50)]
    waiting = set(tickets)
    while waiting:
        ready = host.wait(list(waiting), SECONDS)
        assert ready
        waiting -= set(ready)
    assert [host.fetch(ticket).result for ticket in tickets] == [list(range(number + 1)) for number in range(50)]


def test_a_value_reaches_every_call_that_refers_to_it(host, handle):
    values = [{"a": np.full(3, float(number))} for number in range(4)]
    references = [host.put(value) for value in values]
    order = [0, 1, 0, 2, 0, 3, 1, 1, 0]
    tickets = [host.call(handle, "add", references[number], 0.5) for number in order]
    for count, (number, ticket) in enumerate(zip(order, tickets, strict=True), 1):
        result, seen = receive(host, ticket)
        np.testing.assert_array_equal(result["a"], np.full(3, number + 0.5))
        assert seen == count


def test_arguments_are_those_at_the_time_of_the_call(host, handle):
    values = {"a": np.zeros(100_000)}
    ticket = host.call(handle, "add", values, 1.0)
    values["a"][:] = 5
    assert receive(host, ticket)[0]["a"].sum() == 100_000


def test_messages_larger_than_a_pipe_block_nothing(host, handle):
    large = {"a": np.ones(2_000_000)}
    tickets = [host.call(handle, "add", large, 1.0) for _ in range(6)]  # none of which has been received
    for ticket in reversed(tickets):
        assert receive(host, ticket)[0]["a"].sum() == 4_000_000


def test_an_exception_of_a_method_is_an_error_and_the_service_continues(host, handle):
    with pytest.raises(KeyError, match="missing") as error:
        receive(host, host.call(handle, "fail"))
    assert 'raise KeyError("missing")' in str(error.value.__cause__)
    assert receive(host, host.call(handle, "get_numbers")) == (1, 2)


def test_a_service_that_cannot_be_made_reports_why(host):
    handle = host.start(SPEC, 13)
    with pytest.raises(ValueError, match="thirteen"):
        receive(host, host.call(handle, "get_numbers"))
    host.kill(handle)


def test_a_service_that_ends_is_lost_and_so_are_its_calls(host):
    handle = host.start(SPEC)
    tickets = [host.call(handle, "end"), host.call(handle, "get_numbers")]
    for ticket in tickets:
        with pytest.raises(ServiceLost):
            receive(host, ticket)
    with pytest.raises(ServiceLost):
        receive(host, host.call(handle, "get_numbers"))
    host.kill(handle)


class Unreadable:
    def __reduce__(self):
        return unpickle, ()


def unpickle():
    raise ValueError("cannot be read")


def test_a_process_that_cannot_read_a_message_ends_with_an_error():
    with closing(ProcessHost()) as host:
        handle = host.start(SPEC)
        with pytest.raises(ServiceLost, match="exit code 1"):
            receive(host, host.call(handle, "record", Unreadable()))


def test_a_killed_process_is_lost(host):
    handle = host.start(SPEC)
    process, _ = receive(host, host.call(handle, "get_process"))
    ticket = host.call(handle, "sleep", 100)
    os.kill(process, signal.SIGKILL)
    with pytest.raises(ServiceLost, match="SIGKILL|ActorDiedError"):
        receive(host, ticket)
    host.kill(handle)


def test_a_service_that_hangs_delays_neither_calls_nor_others_and_can_be_killed(host, handle):
    hanging = host.start(SPEC)
    process, _ = receive(host, host.call(hanging, "get_process"))
    os.kill(process, signal.SIGSTOP)
    tickets = [host.call(hanging, "add", {"a": np.ones(1_000_000)}, 1.0) for _ in range(3)]
    assert list(host.wait(tickets, 0.05)) == []
    other = host.call(handle, "get_numbers")
    assert list(host.wait([*tickets, other], SECONDS)) == [other]
    host.kill(hanging)
    wait_until_dead([process], SECONDS)
    with pytest.raises(ServiceLost):
        receive(host, tickets[0])


def test_a_process_ends_with_the_host():
    host = ProcessHost()
    handles = [host.start(SPEC) for _ in range(2)]
    processes = [receive(host, host.call(handle, "get_process"))[0] for handle in handles]
    host.close()
    wait_until_dead(processes, SECONDS)


def test_interrupts_of_the_terminal_do_not_reach_a_service():
    with closing(ProcessHost()) as host:
        handle = host.start(SPEC)
        process, _ = receive(host, host.call(handle, "get_process"))
        assert os.getpgid(process) != os.getpgid(0)
        os.kill(process, signal.SIGINT)
        assert receive(host, host.call(handle, "get_numbers")) == ()


def test_a_signal_while_the_host_waits_is_raised_by_it(host, handle):
    ticket = host.call(handle, "sleep", 100)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
    with pytest.raises(Terminated), raise_on_stop_signals():
        timer.start()
        host.wait([ticket], 0.4)
    timer.join()


class StartingRay:
    """Ray, whose first starts raise `errors`, one each."""

    def __init__(self, *errors: Exception):
        self.errors, self.calls = list(errors), []

    def init(self, **options):
        self.calls.append("init")
        if self.errors:
            raise self.errors.pop(0)

    def shutdown(self):
        self.calls.append("shutdown")


LATE = Exception("The current node timed out during startup.")  # as Ray raises it after 30 s


def test_a_cluster_that_starts_late_is_started_again():
    ray = StartingRay(LATE, LATE)
    ray_host._connect(ray, ray_host.LOCAL, 2)
    assert ray.calls == ["init", "shutdown"] * 2 + ["init"]


def test_a_cluster_that_does_not_start_in_time_is_one_line(monkeypatch):
    monkeypatch.setattr(ray_host, "START_SECONDS", 0.0)
    ray = StartingRay(LATE, LATE)
    with pytest.raises(EnvironmentStartError, match=r"Ray has not started within 0 s; the machine is busy.*timed out"):
        ray_host._connect(ray, ray_host.LOCAL, 2)
    assert ray.calls == ["init", "shutdown"]


def test_other_errors_are_not_tried_again():
    ray = StartingRay(ConnectionError("refused"))
    with pytest.raises(UserError, match=r"there is no Ray cluster to connect to: ConnectionError: refused"):
        ray_host._connect(ray, "auto", 2)
    assert ray.calls == ["init"]


class CompiledRay:
    """Ray, whose calls receive signals, and raise a SystemError instead of the exception of a handler."""

    def __init__(self, *numbers: int):
        self.numbers = numbers

    def put(self, value):
        try:
            for number in self.numbers:
                signal.raise_signal(number)
        except BaseException as error:
            raise SystemError("returned a result with an exception set") from error
        return value

    get = put

    def wait(self, tickets, timeout):
        return self.put(tickets), []


def call_ray(method: str, *numbers: int):
    host = RayHost.__new__(RayHost)
    host._ray = CompiledRay(*numbers)
    return getattr(host, method)([1], *([2.0] if method == "wait" else []))


@pytest.mark.parametrize("method", ["put", "wait", "fetch"])
def test_a_call_of_ray_raises_the_exception_of_a_signal(method):
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated), raise_on_stop_signals():
        call_ray(method, signal.SIGTERM, signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == handler
    assert call_ray(method) == [1]


def test_a_signal_that_is_deferred_does_not_end_a_call_of_ray(monkeypatch):
    with pytest.raises(Terminated), DeferredSignals() as signals:
        assert call_ray("wait", signal.SIGTERM) == [1] and signals.is_pending
        monkeypatch.setattr("algorithm.training.signals.BURST_SECONDS", 0.0)
        with pytest.raises(Terminated):
            call_ray("wait", signal.SIGTERM)  # the second is raised at once


@pytest.mark.slow
@pytest.mark.skipif(IN_NAMESPACE in os.environ or sys.platform != "linux", reason="starts the tests in a namespace")
@pytest.mark.timeout(400)
def test_the_contract_holds_on_ray():
    if obstacle := find_obstacle():
        pytest.skip(obstacle)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-k", "ray", str(Path(__file__).resolve())]
    environ = {**os.environ, IN_NAMESPACE: "1", "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run([*WITH_LOOPBACK, *command], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout
