"""Groups of environments that take turns: the same episodes as undivided environments, order of steps, faults."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from algorithm.adapters.adapter import EnvConfig, EnvironmentStartError, UnsupportedEnvironment
from algorithm.adapters.gym import GymAdapter
from algorithm.adapters.probe import ProbeAdapter
from algorithm.adapters.wrappers import EnvGroups, RestartOnFailure
from tests.adapters.configs import config, every_mode, opened, vectorized
from tests.adapters.contract import assert_groups_play_the_same, drive, make_contract, play_lanes
from tests.adapters.counted import CountedEpisodes, NowAndThenRaising, Raising, Slow

SEED = 5
ACTIONS, BOTH = ({"agent": np.zeros((rows, 1), np.float32)} for rows in (1, 2))  # of one group, of two


class Grouped(GymAdapter):
    """An adapter in this process whose environments may be grouped; it records its calls in `calls`."""

    calls: list[tuple[str, int]] = []

    def __init__(self, config: EnvConfig):
        super().__init__(config)
        self.supports_groups, self.first_env = True, config.first_env

    def send(self, actions):
        self.calls.append(("send", self.first_env))
        super().send(actions)

    def receive(self):
        self.calls.append(("receive", self.first_env))
        return super().receive()

    def close(self):
        self.calls.append(("close", self.first_env))
        super().close()


CARTPOLE = config("CartPole-v1", 5, vectorized("sync", AutoresetMode.SAME_STEP), max_episode_steps=20)
TestGroups = make_contract(lambda: EnvGroups(Grouped, CARTPOLE, 3))
TestGroupsOfRaising = make_contract(lambda: EnvGroups(Grouped, config(NowAndThenRaising, 3, vectorized("sync")), 2))
TestGroupsOfWorkerProcesses = make_contract(
    lambda: EnvGroups(GymAdapter, config("CartPole-v1", 3, vectorized("async"), max_episode_steps=20), 2), ticks=120
)


@every_mode
@pytest.mark.parametrize("n_groups", [2, 3, 5])
def test_groups_have_the_episodes_of_undivided_environments(mode, n_groups):
    assert_groups_play_the_same(Grouped, config(CountedEpisodes, 5, vectorized("sync", mode)), n_groups)


def test_groups_of_worker_processes_have_the_episodes_of_undivided_environments():
    assert_groups_play_the_same(GymAdapter, config("CartPole-v1", 2, vectorized("async"), max_episode_steps=20), 2)


def test_groups_take_turns():
    Grouped.calls = calls = []
    steps = drive(EnvGroups(Grouped, config(CountedEpisodes, 3), 2), 4, SEED)
    assert [step.lane.tolist() for step in steps] == [[0, 1, 2], [0], [1, 2], [0], [1, 2]]
    # A group receives only after the actions of all other groups have been sent.
    assert calls[:3] == [("send", 0), ("send", 1), ("receive", 0)]
    assert calls[3:] == [("send", 0), ("receive", 1), ("send", 1), ("receive", 0), ("send", 0), ("receive", 1)]


def test_a_reset_discards_the_steps_of_all_groups():
    adapter = EnvGroups(Grouped, config(CountedEpisodes, 4), 2)
    first = play_lanes(adapter, 7)
    assert play_lanes(adapter, 7) == first
    assert adapter.reset(SEED)["agent"].lane.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("make", [GymAdapter, lambda config: ProbeAdapter(replace(config, name="chain"))])
def test_environments_that_cannot_step_in_the_background_have_no_groups(make):
    with pytest.raises(UnsupportedEnvironment, match="^env_groups is 2, .*vectorization_mode to async") as error:
        EnvGroups(make, config("CartPole-v1", 4), 2)
    assert "\n" not in str(error.value)


def test_a_group_that_does_not_start_closes_the_others():
    Grouped.calls = calls = []

    def make(config):
        if config.first_env:
            raise EnvironmentStartError("no licence")
        return Grouped(config)

    with pytest.raises(EnvironmentStartError, match="no licence"):
        EnvGroups(make, config(CountedEpisodes, 2), 2)
    assert calls == [("close", 0)]


def test_restarts_of_all_groups_are_counted_and_name_the_environment(caplog):
    args = vectorized("sync", culprit=SEED + 2)
    adapter = EnvGroups(Grouped, config(Raising, 3, args), 3)
    with caplog.at_level(logging.WARNING):
        play_lanes(adapter, 6)
    assert adapter.restarts == 1
    assert [record.getMessage()[:20] for record in caplog.records] == ["environment 2 raised"]


def open_processes(name=Raising, timeout: float | None = None, **args) -> tuple[RestartOnFailure, list]:
    """Return two groups of one worker process each, and the processes."""
    env_config = config(name, 2, vectorized("async", **args), timeout=timeout)
    adapter = opened(RestartOnFailure(lambda: EnvGroups(GymAdapter, env_config, 2), 1))
    return adapter, [group.env.processes[0] for group in adapter._inner._groups]


@pytest.mark.parametrize("group", [0, 1], ids=["that steps", "that waits"])
def test_a_killed_worker_of_a_group_restarts_all_groups(group, caplog):
    adapter, processes = open_processes(Slow, seconds=0.2)
    drive(adapter, 1, SEED)
    assert adapter.step(ACTIONS)["agent"].lane.tolist() == [1]  # now the first group steps
    os.kill(processes[group].pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    processes[group].join()
    adapter.send(ACTIONS)
    step = adapter.receive()["agent"]
    assert step.lane.tolist() == [0, 1]
    assert step.first.all() and step.alive.all() and not step.reward.any()
    assert adapter.restarts == 1 and not any(process.is_alive() for process in processes)
    assert f"the worker process of environment {group} (exit code -9) has exited" in caplog.text
    step = adapter.step(BOTH)["agent"]
    assert step.lane.tolist() == [0] and not step.first.any()


def test_a_group_that_does_not_respond_restarts_all_groups(caplog, tmp_path):
    mark = str(tmp_path / "mark")
    adapter, processes = open_processes(timeout=1.0, how="hang", culprit=SEED + 1, at=1, mark=mark)
    assert [step.lane.tolist() for step in drive(adapter, 2, SEED)] == [[0, 1], [0], [0, 1]]
    assert "environment 1 did not respond within 1 s" in caplog.text
    assert not any(process.is_alive() for process in processes)


def test_groups_are_closed_while_they_step():
    adapter, processes = open_processes(Slow, seconds=0.2)
    adapter.reset(SEED)
    adapter.send(BOTH)
    adapter.close()
    assert [process.exitcode for process in processes] == [0, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="reads the files and mapped memory of this process")
def test_starts_and_stops_leave_no_process_and_no_shared_memory():
    children, held = multiprocessing.active_children(), []
    for number in range(4):
        args = {"vectorization_mode": "async", "vector_kwargs": {"context": "fork"}}
        adapter = EnvGroups(GymAdapter, config("CartPole-v1", 2, args), 2)
        processes = [group.env.processes[0] for group in adapter._groups]
        adapter.reset(number)
        adapter.send(BOTH)
        if number % 2:
            adapter.receive()
        adapter.close()
        assert not any(process.is_alive() for process in processes)
        del adapter, processes
        gc.collect()
        maps = Path("/proc/self/maps").read_text().splitlines()
        held.append((len(list(Path("/proc/self/fd").iterdir())), sum("/pym-" in line for line in maps)))
    assert multiprocessing.active_children() == children
    assert held[-1] == held[0]
