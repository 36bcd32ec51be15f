"""Runs on Ray with two learners: a learning run, and learners that are killed or hang."""

import os
import signal
import sys

import pytest

from algorithm.parts.run_folder import RunFolder
from algorithm.training.metrics import read_table
from tests.faults.namespaces import MAIN, ROOT, start_run  # noqa: F401
from tests.faults.runs import SLOW_CARTPOLE, assert_playable, run_folder, saved_steps, write_task
from tests.faults.test_cluster import ENDLESS, RUN, SETTINGS, wait_for_steps

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs network namespaces"),
    pytest.mark.usefixtures("start_run"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
LEARNERS = [*SETTINGS, "cluster_config.learners=2"]
LEARNER = "ray::Learner"
EASY = ["goal.return=100", "base_config.max_step=20000", "base_config.save_every=1000"]


def test_two_learners_learn(start_run):  # noqa: F811
    run = start_run(*MAIN, str(ROOT / "envs/gym/cartpole"), "-n", "a", "--ray", "local", *LEARNERS, *EASY)
    assert run.wait(800) == 0, run.out.read_text()
    assert "goal reached" in run.out.read_text()
    assert RunFolder.find("gym/cartpole", "a").find_latest().counters.updates >= 50


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
