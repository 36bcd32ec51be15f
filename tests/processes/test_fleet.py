"""The end of a run, and a run that is resumed there."""

from __future__ import annotations

import itertools
import signal

import pytest

from algorithm.config.loader import resolve
from algorithm.config.yaml_layers import merge
from algorithm.errors import UserError
from algorithm.parts.run_folder import RunFolder
from algorithm.processes.cluster import ClusterFleet
from algorithm.processes.workers import WorkersFleet
from algorithm.runs.build import train
from algorithm.runs.faults import describe_end
from algorithm.training.evaluator import Evaluator
from algorithm.training.invalid_values import InvalidEpisodes
from algorithm.training.metrics import mean_evaluations, read_table
from algorithm.training.signals import Terminated
from tests.checkpointing.test_resume import SETTINGS, assert_equal, new_run, train_run
from tests.processes.test_cluster_runtime import on_ray

NATURAL = {"acer_config": {"trust_region": "full"}}
pytestmark = pytest.mark.usefixtures("prepared_workers")
MAX_STEP = SETTINGS["base_config"]["max_step"]


@pytest.mark.parametrize(
    "kind", ["noisy layers", "gru, last action and episodic bonus", "batch statistics, frame stack, gru and curiosity"]
)
def test_a_run_that_is_interrupted_in_its_last_evaluation_ends_as_an_uninterrupted_one(kind, tmp_path, monkeypatch):
    limits = {"evaluate_every": MAX_STEP * 2, "save_every": 10}
    end = train_run(new_run(tmp_path, "straight", kind, **limits))
    resumed = new_run(tmp_path, "resumed", kind, **limits)

    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Evaluator, "play", interrupt)
        train_run(resumed)
    assert_equal(train_run(resumed), end)


@pytest.mark.parametrize("call", [1, 2], ids=["confirmation", "reported episodes"])
def test_a_signal_in_the_evaluation_that_confirms_the_goal(call, tmp_path, monkeypatch):
    goal = {"goal": {"return": -1000.0}, "base_config": {"max_step": 10_000, "save_every": None}}

    def make_run(name: str) -> RunFolder:
        folder = new_run(tmp_path, name, "noisy layers")
        folder.record_settings(merge(folder.load_settings().tree, goal), 0)
        return folder

    end, interrupted = train_run(make_run("straight")), make_run("resumed")
    play, calls = Evaluator.play, itertools.count(1)

    def stop(*args):
        if next(calls) == call:
            signal.raise_signal(signal.SIGTERM)
        return play(*args)

    with monkeypatch.context() as patch, pytest.raises(Terminated):
        patch.setattr(Evaluator, "play", stop)
        train_run(interrupted)
    result = train(interrupted.load_settings(), interrupted, print)
    assert result.goal_reached and result.counters.env_steps == end.counters.env_steps < 10_000
    assert_equal(interrupted.find_latest(), end)


def test_a_signal_in_an_evaluation_interrupts_it_and_the_resumed_run_repeats_it(tmp_path, monkeypatch):
    limits = {"evaluate_every": 50, "save_every": 10, "log_every": 10}
    end, interrupted = train_run(new_run(tmp_path, "straight", "noisy layers", **limits)), []
    resumed = new_run(tmp_path, "resumed", "noisy layers", **limits)
    play = Evaluator.play

    def stop(evaluator, *args):
        signal.raise_signal(signal.SIGTERM)
        interrupted.append(True)
        play(evaluator, *args)
        pytest.fail("the evaluation has ended")

    with monkeypatch.context() as patch, pytest.raises(Terminated):
        patch.setattr(Evaluator, "play", stop)
        train_run(resumed)
    assert interrupted and resumed.find_latest().counters.env_steps < MAX_STEP
    assert_equal(train_run(resumed), end)
    straight = RunFolder(resumed.path.with_name("straight"))
    evaluations = [mean_evaluations(read_table(run.path / "metrics.csv")) for run in (straight, resumed)]
    assert evaluations[0] == evaluations[1] and len(evaluations[0]) > 3


@pytest.mark.parametrize("runtime", ["LOCAL", "WORKERS", "RAY"])
@pytest.mark.parametrize("evaluate_every", [None, 10], ids=["training", "evaluation"])
def test_a_run_whose_episodes_are_all_invalid_fails(runtime, evaluate_every, hosts, tmp_path):
    env = {"env_type": "GYM", "env_name": "tests.adapters.spaced:Invalid-v0", "max_step": 10_000}
    folder = new_run(tmp_path, "run", "probe", runtime=runtime, evaluate_every=evaluate_every, **env)
    with pytest.raises(InvalidEpisodes, match="the observation 'obs' of lane .* of role 'agent' is NaN") as raised:
        train_run(folder)
    assert describe_end(raised.value) == (1, str(raised.value))
    assert folder.find_latest().counters.env_steps < 1_000


@pytest.mark.parametrize("runtime", ["LOCAL", "WORKERS", "RAY"])
def test_a_run_that_has_ended_does_not_train_again_when_it_is_resumed(runtime, hosts, tmp_path):
    limits = {"max_step": 60, "max_iter": None, "evaluate_every": 40}
    folder = new_run(tmp_path, "run", "gru, last action and episodic bonus", runtime=runtime, **limits)
    end = train_run(folder).counters
    evaluations = mean_evaluations(read_table(folder.path / "metrics.csv"))
    logged: list[str] = []
    again = train(folder.load_settings(), folder, logged.append).counters
    assert (again.env_steps, again.updates) == (end.env_steps, end.updates)
    table = read_table(folder.path / "metrics.csv")
    assert mean_evaluations(table) == evaluations and len(table.rows) == len({*map(str, table.rows)})
    line = f"the run has ended already, after {end.env_steps} env steps: base_config.max_step above 60 "
    assert f"{line}continues it" in logged


GPU_LEARNER = on_ray(learners=2) | {"base_config": {"runtime": "RAY", "device": "cuda"}}
LAGGING = on_ray(rollouts_in_flight=2, max_lag=0) | {"base_config": {"runtime": "RAY", "algorithm": "PPO"}}


@pytest.mark.parametrize(
    ("fleet", "layer", "message"),
    [
        (ClusterFleet, LAGGING, "set max_lag to at least 1"),
        (ClusterFleet, on_ray(learners=2, actors=3), "cluster_config.actors is 3, .* set actors to 4"),
        (ClusterFleet, on_ray(learners=2) | {"acer_config": {"batch_size": 5}}, "acer_config.batch_size is 5, .* to 6"),
        (ClusterFleet, on_ray(learners=2) | NATURAL, "acer_config.trust_region full is not for several learners"),
        (ClusterFleet, on_ray(learners=2, gpus_per_learner=1), "but base_config.device is auto: set device to cuda"),
        (ClusterFleet, GPU_LEARNER, "base_config.device is cuda, but the other learners learn on CPUs"),
        (WorkersFleet, NATURAL, "acer_config.trust_region full is not for runtime WORKERS: use efficient or off"),
        (WorkersFleet, {"base_config": {"device": "cuda"}}, "device is cuda, but the workers .* learn on the CPU"),
        (WorkersFleet, {"base_config": {"env_type": "UNITY"}}, "is not for env_type UNITY, whose environments are"),
    ],
)
def test_what_a_runtime_does_not_support_is_refused(fleet, layer, message):
    with pytest.raises(UserError, match=message):
        fleet.check(resolve([("test", layer)]))
