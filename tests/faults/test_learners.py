"""Runs on Ray with two learners: equal parameters, a learning run, and learners that are killed or hang."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest
import yaml

from algorithm import load
from algorithm.training.metrics import read_table
from tests.faults.namespaces import MAIN, ROOT, start_run  # noqa: F401
from tests.faults.runs import AGENT, CARTPOLE, run_folder, saved_steps, write_task
from tests.faults.test_cluster import ENDLESS, RUN, SETTINGS, wait_for_steps

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs network namespaces"),
    pytest.mark.usefixtures("start_run"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
LEARNERS = [*SETTINGS, "cluster_config.learners=2"]
LEARNER = "ray::_Learner"
SECTIONS = {
    "ACER": ("acer_config", AGENT),
    "SAC": ("sac_config", AGENT | {"replay_ratio": 2}),
    "REACTOR": ("reactor_config", AGENT),
    "PPO": ("ppo_config", {"rollout_length": 16, "epochs": 2, "minibatches": 2}),
    "A2C": ("a2c_config", {"rollout_length": 5}),
}


@pytest.mark.parametrize("algorithm", SECTIONS)
def test_both_learners_are_equal_after_every_update(algorithm, start_run):  # noqa: F811
    section, settings = SECTIONS[algorithm]
    folder = Path("envs/own/task")
    folder.mkdir(parents=True)
    base = {"env_name": "env.py", "n_envs": 2, "max_step": 1500, "log_every": 500, "save_every": 500}
    tree = {"base_config": {**base, "algorithm": algorithm}, section: settings}
    (folder / "config.yaml").write_text(yaml.safe_dump({"default": tree}))
    (folder / "env.py").write_text(CARTPOLE)
    script = ["env", f"PYTHONPATH={ROOT}", sys.executable, str(ROOT / "tests/faults/equal_learners.py")]
    run = start_run(*script, "own/task", "-n", "a", "--ray", "local", *LEARNERS)
    assert run.wait(400) == 0, run.out.read_text()
    compared = re.findall(r"equal (True|False) after (\d+) updates", run.out.read_text())
    assert len(compared) >= 3 and {result for result, _ in compared} == {"True"}
    assert int(compared[-1][1]) >= 50


def test_two_learners_learn_cartpole(start_run):  # noqa: F811
    arguments = ["gym/cartpole", "-n", "a", "--ray", "local", *LEARNERS, "cluster_config.actors=2"]
    run = start_run(*MAIN, str(ROOT / "envs/gym/cartpole"), *arguments[1:], "base_config.max_step=60000")
    assert run.wait(800) == 0, run.out.read_text()
    assert "goal reached" in run.out.read_text()


@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGKILL, "learner 1 has ended"), (signal.SIGSTOP, "did not answer within 20 s")]
)
def test_a_run_that_loses_a_learner_ends_and_resumes(number, reason, start_run):  # noqa: F811
    write_task()
    run = start_run(*ENDLESS, *LEARNERS[1:], "cluster_config.timeout=20")
    run.wait_for("steps/s")
    wait_for_steps(run, 1000)
    (learner,) = run.find(LEARNER)
    os.kill(learner, number)
    assert run.wait() == 1, run.out.read_text()
    assert reason in run.out.read_text()
    saved = saved_steps()[-1]
    resumed = start_run(*RUN, "--resume", "--set", f"base_config.max_step={saved + 2000}")
    assert resumed.wait() == 0, resumed.out.read_text()
    assert saved_steps()[-1] >= saved + 2000
    assert len(read_table(run_folder().path / "metrics.csv").rows) > 3
    assert load(run_folder().path)
