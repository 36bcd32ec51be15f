"""Actors, members of a population and the main process on one machine, which are killed, hang or are stopped."""

import os
import signal
import sys
from pathlib import Path

import pytest

from algorithm.cli import main
from tests.faults.runs import (
    ARGUMENTS,
    SLOW_CARTPOLE,
    Run,
    assert_playable,
    list_workers,
    read_last_metric,
    saved_steps,
    start_training,
    wait_until,
    wait_until_dead,
    write_task,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks processes and sends them signals")
ON_CLUSTER = ["--set", "base_config.runtime=CLUSTER", "cluster_config.timeout=5"]


def test_actors_that_are_killed_or_hang_are_replaced_and_end_with_the_main_process():
    run = start_training(*ON_CLUSTER, env=SLOW_CARTPOLE, max_step=None, save_every=200)
    first, second = list_workers(run.pid)
    os.kill(first, signal.SIGKILL)
    run.wait_for("crashed with signal SIGKILL: about")
    os.kill(second, signal.SIGSTOP)
    run.wait_for("has not replied for 5 s (cluster_config.timeout): about")
    wait_until(lambda: read_last_metric("cluster/restarts") == 2 and read_last_metric("cluster/actors") == 2)
    assert read_last_metric("cluster/lost_env_steps") > 0
    wait_until_dead([first, second], 1)
    actors, saved = list_workers(run.pid), saved_steps()[-1]
    assert len(actors) == 2
    assert run.stop(signal.SIGKILL) == -signal.SIGKILL
    wait_until_dead(actors, 20)
    assert main.main([*ARGUMENTS, "--resume", "--max_step", str(saved + 100)]) == 0
    assert_playable()


MEMBERS = ["own/task", "-n", "a", "--population", "2", "--set", "population_config.interval=100000"]


def list_checkpoints() -> list[list[str]]:
    """Return the names of the checkpoints of both members."""
    return [sorted(path.name for path in Path(f"runs/own/task/a-{k}/checkpoints").glob("[0-9]*")) for k in (1, 2)]


def start_members(*settings: str) -> tuple[Run, list[int]]:
    """Start a population of two. Return it with the processes of its members, which train."""
    write_task(SLOW_CARTPOLE, max_step=100_000, save_every=None)
    run = Run(*MEMBERS, "population_config.processes=2", *settings)
    wait_until(lambda: all(Path(f"runs/own/task/a-{k}/metrics.csv").exists() for k in (1, 2)), 90)
    return run, list_workers(run.pid)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_members_of_a_population_that_is_stopped_save_a_checkpoint(number, status):
    run, members = start_members()
    assert len(members) == 2
    assert run.stop(number, group=True) == status, run.err.read_text()
    assert "Checkpoints saved" in run.err.read_text()
    wait_until_dead(members, 5)
    assert [len(names) for names in list_checkpoints()] == [1, 1]


def test_members_end_with_the_main_process_and_the_population_is_resumed():
    run, members = start_members("base_config.save_every=200")
    wait_until(lambda: all(list_checkpoints()))
    assert run.stop(signal.SIGKILL) == -signal.SIGKILL
    wait_until_dead(members, 20)
    last = max(int(name) for names in list_checkpoints() for name in names)
    limits = ["--max_step", str(last + 50), "--set", "population_config.processes=1"]
    assert main.main([*MEMBERS[:3], "--resume", *limits]) == 0
    assert all(int(names[-1]) >= last + 50 for names in list_checkpoints())
