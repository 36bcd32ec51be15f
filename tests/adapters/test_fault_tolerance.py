"""Environments that raise, exit or hang: rebuilt by FaultTolerantEnv, or restarted by RestartOnFailure."""

from __future__ import annotations

import logging
import os
import re
import signal

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorWrapper

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError
from algorithm.adapters.gym import GymAdapter
from algorithm.adapters.process_setup import PROCESSES
from algorithm.adapters.vector import STEP_ERROR, FaultTolerantEnv, make_vector
from algorithm.adapters.wrappers import RestartOnFailure
from algorithm.training.actor import Actor
from tests.adapters import counted
from tests.adapters.configs import config, every_mode, open_gym, opened, vectorized
from tests.adapters.contract import drive, make_contract
from tests.doubles import ParityAgent, collect_lanes

SEED = 5
ZEROS = {"agent": np.zeros((1, 1), np.float32)}
RAISED = r"environment 0 raised ArithmeticError: the ground gave way \(\S+counted.py, line \d+\) in a "


def raising(kind: str, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **env_args) -> dict:
    return vectorized(kind, mode, **{"culprit": SEED, **env_args})


def restarting(max_restarts: int | None, *fields, adapter=GymAdapter, **others) -> RestartOnFailure:
    """Return environments that are restarted after a crash, and closed after the test."""
    env_config = config(*fields, **others)
    return opened(RestartOnFailure(lambda: adapter(env_config), max_restarts))


TestRaisingNextStep, TestRaisingSameStep, TestRaisingDisabled = (
    make_contract(lambda mode=mode: GymAdapter(config(counted.NowAndThenRaising, 3, vectorized("sync", mode))))
    for mode in AutoresetMode
)


class Crashing(VectorWrapper):
    """A vector environment whose eighth step crashes."""

    ticks = 0

    def step(self, actions):
        self.ticks += 1
        if self.ticks == 8:
            raise ArithmeticError("the ground gave way")
        return super().step(actions)


class CrashingAdapter(GymAdapter):
    @staticmethod
    def make(env_config) -> Crashing:
        return Crashing(make_vector(env_config))


TestRestartOnFailure = make_contract(lambda: restarting(None, counted.NowAndThenRaising, 3, adapter=CrashingAdapter))


def collect(adapter, ticks: int) -> tuple[Actor, dict[int, list[tuple]]]:
    """Return the actor and (obs, next obs) of the valid rows of each lane."""
    actor, records = collect_lanes(adapter, ParityAgent(rollout_length=2), SEED, ticks)
    rows = {}
    for lane, record in records.items():
        obs, valid = record.obs["obs"][:, 0, 0], np.flatnonzero(record.valid[:, 0])
        rows[lane] = list(zip(obs[valid], obs[valid + 1], strict=True))
        # The reward shows that every action was executed in its own environment.
        np.testing.assert_allclose(record.reward[valid, 0], obs[valid] / 8 + record.raw_action[valid, 0, 0], rtol=1e-6)
        assert record.alive.all()
    return actor, rows


def assert_truncated_once(rows: list[tuple], at: int) -> None:
    """Check that the first episode ends before step `at`, and that whole episodes of another seed follow."""
    start = SEED * 1000 + 10
    assert rows[: at - 1] == [(start + t, start + t + 1) for t in range(at - 1)]
    after = rows[at - 1 :]
    assert len(after) > 5
    assert all(following == obs + 1 for obs, following in after)
    assert all(obs >= 100_000 for obs, _ in after)
    assert after[0][0] % 10 == 0


@every_mode
@pytest.mark.parametrize("n_envs", [1, 3])
def test_a_step_that_raises_truncates_its_own_episode_only(mode, n_envs, caplog):
    adapter = open_gym(counted.Raising, n_envs, raising("sync", mode))
    with caplog.at_level(logging.INFO):
        _, lanes = collect(adapter, 40)
    assert_truncated_once(lanes[0], at=3)
    for lane in range(1, n_envs):
        start = (SEED + lane) * 1000
        assert lanes[lane][:10] == [(start + 10 + t, start + 11 + t) for t in range(9)] + [(start + 20, start + 21)]
    assert adapter.restarts == 1
    line, details = [record.getMessage() for record in caplog.records]
    assert re.match(RAISED + "step", line)
    assert adapter.last_error == details.splitlines()[-1] and adapter.last_error in line
    assert details.startswith("Traceback") and "counted.py" in details


def test_a_worker_process_whose_step_raises_continues():
    adapter = open_gym(counted.Raising, 2, raising("async", AutoresetMode.SAME_STEP))
    pids = [process.pid for process in adapter.env.processes]
    _, lanes = collect(adapter, 24)
    assert_truncated_once(lanes[0], at=3)
    assert lanes[1][0] == ((SEED + 1) * 1000 + 10, (SEED + 1) * 1000 + 11)
    assert pids == [process.pid for process in adapter.env.processes]
    assert adapter.restarts == 1


def test_processes_end_if_the_start_of_others_is_interrupted(monkeypatch):
    started, start = [], PROCESSES.Process.start

    def interrupt(process):
        if started:
            raise KeyboardInterrupt
        start(process)
        started.append(process)

    monkeypatch.setattr(PROCESSES.Process, "start", interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_gym(counted.Raising, 2, raising("async"))
    started[0].join(10)
    assert started[0].exitcode == -signal.SIGKILL


@pytest.mark.skipif(os.name == "nt", reason="a signal of POSIX")
def test_a_worker_process_leaves_sigterm_to_the_main_process():
    adapter = open_gym(counted.Raising, 2, raising("async", culprit=-1))
    collect(adapter, 5)
    for process in adapter.env.processes:
        process.terminate()
    _, lanes = collect(adapter, 12)
    assert len(lanes[0]) > 8 and adapter.restarts == 0


@every_mode
def test_a_reset_that_raises_loses_no_row(mode, caplog):
    adapter = open_gym(counted.Raising, 2, raising("sync", mode, where="reset", at=3, ends=((3, counted.TRUNCATED),)))
    actor, lanes = collect(adapter, 24)
    start = SEED * 1000 + 10
    assert lanes[0][:3] == [(start + t, start + t + 1) for t in range(3)]
    assert all(following == obs + 1 for obs, following in lanes[0])
    assert lanes[0][3][0] >= 100_000
    assert {(episode.lane, episode.length) for episode in actor.episodes} == {(0, 3), (1, 3)}
    assert re.search(RAISED + "reset", caplog.text)


def test_a_reset_that_raises_twice_is_a_crash():
    adapter = open_gym(counted.Raising, 1, raising("sync", where="reset", ends=((1, counted.TRUNCATED),), culprit=-1))
    adapter.reset(SEED)
    inner = adapter.env.envs[0]
    inner.env.culprit, inner._make = SEED, counted.NeverResets
    with pytest.raises(EnvironmentCrashed, match="counted.py' crashed: RuntimeError: the level is missing"):
        for _ in range(3):
            adapter.step(ZEROS)


def test_a_worker_process_that_raises_an_error_of_the_system_has_not_exited():
    with pytest.raises(EnvironmentStartError, match="does not start: FileNotFoundError: the level is missing"):
        open_gym(counted.NeverResets, 1, {"error": FileNotFoundError, "vectorization_mode": "async"})


@pytest.mark.parametrize(
    ("kind", "message"), [(counted.NeverStarts, "no licence found"), (counted.NeverResets, "the level is missing")]
)
def test_an_environment_that_never_started_is_not_restarted(kind, message):
    made = []
    with pytest.raises(EnvironmentStartError, match=message) as error:
        restarting(10, lambda: made.append(1) or kind())
    assert not isinstance(error.value, EnvironmentCrashed)
    assert len(made) == 1


def test_restarts_of_environments_and_of_adapters_have_one_limit():
    adapter = restarting(6, counted.NowAndThenRaising, 2, {"ends": ((99, counted.TRUNCATED),)}, adapter=CrashingAdapter)
    adapter.reset(SEED)
    counts = []
    with pytest.raises(EnvironmentCrashed, match="crashed 9 times"):
        for _ in range(40):
            adapter.step({"agent": np.zeros((2, 1), np.float32)})
            counts.append(adapter.restarts)
    # Both environments raise in their seventh step, which leaves no row, so that the eighth step follows at once.
    assert counts == [0] * 6 + [3] * 7 + [6] * 7


@pytest.mark.parametrize("n_envs", [1, 2])
def test_an_environment_that_always_raises_is_a_crash(n_envs):
    with pytest.raises(EnvironmentCrashed, match="crashed [56] times, .* base_config.max_env_restarts"):
        drive(restarting(4, counted.AlwaysRaising, n_envs), 20)


@pytest.mark.parametrize(
    ("how", "message"), [("exit", "environment 0 (exit code 7)"), ("hang", "environment 0 did not respond within 1 s")]
)
def test_a_worker_process_that_exits_or_hangs_is_replaced_with_all_others(how, message, caplog, tmp_path):
    adapter = restarting(1, counted.Raising, 2, raising("async", how=how, mark=str(tmp_path / "mark")), timeout=1.0)
    old = adapter._inner.env.processes
    _, lanes = collect(adapter, 16)
    assert not any(process.is_alive() for process in old)
    assert_truncated_once(lanes[0], at=3)
    assert lanes[1][2][0] >= 100_000
    assert adapter.restarts == 1
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
    assert message in caplog.text


def test_an_error_without_text_is_described_by_file_and_line():
    def fail(action):
        raise AssertionError

    env = FaultTolerantEnv(counted.CountedEpisodes)
    env.reset(seed=0)
    env.env.step = fail
    last = env.step(0)[-1][STEP_ERROR].splitlines()[-1]
    assert last == f"AssertionError ({__file__}, line {fail.__code__.co_firstlineno + 1})"
