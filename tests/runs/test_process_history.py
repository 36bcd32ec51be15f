"""The record of the processes that have trained a run."""

from __future__ import annotations

import json
import os
import platform

import pytest

from algorithm.config.loader import resolve
from algorithm.runs.process_history import describe_machine, read_sessions, record_session


@pytest.fixture
def base():
    return resolve([("test", {"base_config": {"env_name": "CartPole-v1", "seed": 3}})]).base


def test_each_session_is_a_line(tmp_path, base):
    (tmp_path / "environment.txt").write_text("gym/cartpole\n")
    for env_steps in (0, 500):
        record_session(tmp_path, base, env_steps)
    first, second = read_sessions(tmp_path, pytest.fail)
    assert (first["env_steps"], second["env_steps"], second["seed"]) == (0, 500, 3)
    assert first["versions"]["python"] == platform.python_version()
    assert first["machine"] == describe_machine() and first["started"].endswith("+00:00")


def test_a_run_of_an_earlier_version_has_no_sessions(tmp_path):
    assert read_sessions(tmp_path, pytest.fail) == []


def test_the_name_of_the_machine_is_not_recorded():
    machine = describe_machine()
    assert machine["cores"] == os.cpu_count() and machine["processor"]
    assert platform.node() not in json.dumps(machine).split('"')
