"""The start of a Ray cluster on a busy machine; the tests of faults start real clusters."""

from __future__ import annotations

import pytest

from algorithm.adapters.adapter import EnvironmentStartError
from algorithm.errors import UserError
from algorithm.processes import ray_host


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
