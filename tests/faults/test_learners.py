"""Runs on Ray with two learners: equal parameters, a learning run, and learners that are killed or hang."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest
import yaml

from algorithm.training.metrics import read_table
from tests.faults.namespaces import MAIN, ROOT, start_run  # noqa: F401
from tests.faults.runs import BASE, SLOW_CARTPOLE, assert_playable, run_folder, saved_steps, write_task
from tests.faults.test_cluster import ENDLESS, RUN, SETTINGS, wait_for_steps

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs network namespaces"),
    pytest.mark.usefixtures("start_run"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
LEARNERS = [*SETTINGS, "cluster_config.learners=2"]
LEARNER = "ray::Learner"
COMPARING = ["env", f"PYTHONPATH={ROOT}", sys.executable, str(ROOT / "tests/faults/equal_learners.py")]
EASY = ["goal.return=100", "base_config.max_step=20000", "base_config.save_every=1000"]


def read_comparisons(run) -> list[tuple[bool, int]]:
    """Return for each checkpoint whether the learners were equal, and the number of their updates."""
    lines = re.findall(r"equal (True|False) after (\d+) updates", run.out.read_text())
    return [(result == "True", int(updates)) for result, updates in lines]


def test_two_learners_learn_and_are_equal_after_every_update(start_run):  # noqa: F811
    arguments = [str(ROOT / "envs/gym/cartpole"), "-n", "a", "--ray", "local", *LEARNERS]
    run = start_run(*COMPARING, *arguments, "cluster_config.evaluation_actor=false", *EASY)
    assert run.wait(800) == 0, run.out.read_text()
    assert "goal reached" in run.out.read_text()
    compared = read_comparisons(run)
    assert len(compared) >= 3 and all(equal for equal, _ in compared)
    assert compared[-1][1] >= 50


def test_learners_without_a_replay_are_equal_after_every_update(start_run):  # noqa: F811
    write_task()
    agent = {"rollout_length": 16, "epochs": 2, "minibatches": 2}
    tree = {"base_config": {**BASE, "algorithm": "PPO", "max_step": 1000}, "ppo_config": agent}
    Path("envs/own/task/config.yaml").write_text(yaml.safe_dump({"default": tree}))
    run = start_run(*COMPARING, "own/task", "-n", "a", "--ray", "local", *LEARNERS)
    assert run.wait(400) == 0, run.out.read_text()
    compared = read_comparisons(run)
    assert len(compared) >= 2 and all(equal for equal, _ in compared)
    assert compared[-1][1] >= 50


def test_a_run_that_loses_a_learner_ends_and_resumes(start_run):  # noqa: F811
    write_task(SLOW_CARTPOLE)
    run = start_run(*ENDLESS, *LEARNERS[1:], "cluster_config.timeout=20")
    lose_learner(run, signal.SIGKILL)
    assert "learner 1 ended" in run.out.read_text()
    saved = saved_steps()[-1]
    resumed = start_run(*RUN, "--resume")
    resumed.wait_until(lambda: saved_steps()[-1] > saved)
    lose_learner(resumed, signal.SIGSTOP)
    assert "did not answer within 20 s" in resumed.out.read_text()
    assert len(read_table(run_folder().path / "metrics.csv").rows) > 3
    assert_playable()


def lose_learner(run, number: int) -> None:
    """Send a signal to learner 1 when the run has learned for some time, and wait for the end of the run."""
    run.wait_for("steps/s")
    wait_for_steps(run, 500)
    (learner,) = run.find(LEARNER)
    os.kill(learner, number)
    assert run.wait() == 1, run.out.read_text()
