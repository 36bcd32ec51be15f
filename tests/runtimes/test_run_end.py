"""The end of a run, and a run that is resumed there."""

from __future__ import annotations

import pytest

from algorithm.runs.build import train
from algorithm.training.evaluator import Evaluator
from tests.checkpointing.test_resume import SETTINGS, assert_equal, train_run
from tests.checkpointing.test_resume import new_run as new_local_run
from tests.runtimes.test_cluster import hosts  # noqa: F401
from tests.runtimes.test_workers import new_run

MAX_STEP = SETTINGS["base_config"]["max_step"]


@pytest.mark.parametrize("kind", ["noisy layers", "gru and last action", "curiosity, gru and normalized"])
def test_a_run_that_is_interrupted_in_its_last_evaluation_ends_as_an_uninterrupted_one(kind, tmp_path, monkeypatch):
    limits = {"evaluate_every": MAX_STEP * 2, "save_every": 10}
    end = train_run(new_local_run(tmp_path, "straight", kind, **limits))
    resumed = new_local_run(tmp_path, "resumed", kind, **limits)

    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Evaluator, "play", interrupt)
        train_run(resumed)
    assert_equal(train_run(resumed), end)


@pytest.mark.parametrize("runtime", ["LOCAL", "WORKERS", "RAY"])
def test_a_run_that_has_ended_does_not_train_again_when_it_is_resumed(runtime, hosts, tmp_path):  # noqa: F811
    folder = new_run(tmp_path, "run", "acer, prioritized, gru, iterations", runtime=runtime, max_step=60, max_iter=None)
    end = train_run(folder).counters
    logged: list[str] = []
    again = train(folder.load_settings(), folder, logged.append).counters
    assert (again.env_steps, again.updates) == (end.env_steps, end.updates)
    line = f"the run has ended already, after {end.env_steps} env steps: base_config.max_step above 60 "
    assert f"{line}continues it" in logged
