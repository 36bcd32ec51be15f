"""The start of a Ray cluster on a busy machine, and signals in calls of Ray; tests of faults start real clusters."""

from __future__ import annotations

import signal

import pytest

from algorithm.adapters.adapter import EnvironmentStartError
from algorithm.errors import UserError
from algorithm.processes import ray_host
from algorithm.training.signals import DeferredSignals, Terminated, raise_on_stop_signals


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
    host = ray_host.RayHost.__new__(ray_host.RayHost)
    host._ray = CompiledRay(*numbers)
    return getattr(host, method)([1], *([2.0] if method == "wait" else []))


@pytest.mark.parametrize("method", ["put", "wait", "fetch"])
def test_a_call_of_ray_raises_the_exception_of_a_signal(method):
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated), raise_on_stop_signals():
        call_ray(method, signal.SIGTERM, signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == handler
    assert call_ray(method) == [1]


def test_a_signal_that_is_deferred_does_not_end_a_call_of_ray():
    with pytest.raises(Terminated), DeferredSignals() as signals:
        assert call_ray("wait", signal.SIGTERM) == [1] and signals.is_pending
        with pytest.raises(Terminated):
            call_ray("wait", signal.SIGTERM)  # the second is raised at once
