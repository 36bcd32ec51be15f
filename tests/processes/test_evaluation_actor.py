"""Evaluation on an actor, in this process: whose weights are evaluated, and what follows from the end of an actor."""

from __future__ import annotations

import pytest

from algorithm.processes.host import Failure
from algorithm.training.metrics import mean_evaluations, read_table
from tests.checkpointing.test_resume import SETTINGS
from tests.processes.inline_host import InlineHost, fail_calls
from tests.processes.test_cluster_runtime import CHAIN, on_ray, train

BASE = {"base_config": {"algorithm": "A2C", "max_step": 150, "evaluate_every": 40, "save_every": 20}}
SAMPLED = {"base_config": {"evaluate_greedy": False}}


def train_evaluated(tmp_path, name, *layers, lines=None, **cluster):
    """Train a new run with evaluations. Return its folder and result."""
    cluster = {"actors": 1, "max_lag": 0, **cluster}
    return train(tmp_path, name, SETTINGS, CHAIN, BASE, SAMPLED, on_ray(**cluster), *layers, lines=lines)[1:]


def read_evaluations(folder):
    return mean_evaluations(read_table(folder.path / "metrics.csv"))


@pytest.fixture
def delayed(monkeypatch):
    """Let each evaluation take 5 calls of `wait`."""
    waits, original = {}, InlineHost.wait

    def wait(self, tickets, timeout):
        for ticket in tickets:
            waits[ticket] = waits.get(ticket, 0) + 1
        return [each for each in original(self, tickets, timeout) if each[0] != "Evaluator" or waits[each] > 5]

    monkeypatch.setattr(InlineHost, "wait", wait)


def test_results_equal_those_of_the_main_process(hosts, tmp_path):
    folder, result = train_evaluated(tmp_path, "actor")
    other_folder, other = train_evaluated(tmp_path, "main", evaluation_actor=False)
    expected = read_evaluations(other_folder)
    assert read_evaluations(folder) == expected and len(set(expected.values())) > 2
    assert result.best.folder.name == other.best.folder.name
    assert [len(host.started["Evaluator"]) for host in hosts] == [1, 0]


def test_the_actor_plays_the_episodes_that_confirm_the_goal(hosts, tmp_path):
    goal = {"goal": {"return": -1000.0, "evaluation_episodes": 8}}
    ends = []
    for name, evaluation_actor in (("actor", True), ("main", False)):
        lines = []
        folder, result = train_evaluated(tmp_path, name, goal, lines=lines, evaluation_actor=evaluation_actor)
        assert result.confirmed_by == "evaluation"
        assert folder.checkpoints(keep=1).best.mean == result.evaluation["agent"].mean
        ends.append([line for line in lines if line.startswith(("goal", "evaluation"))])
    assert ends[0] == ends[1] and "confirmed at" in ends[0][-2] and "over 8 episodes" in ends[0][-1]


def test_the_actor_starts_with_the_rollout_actors(hosts, tmp_path, monkeypatch):
    calls, start, wait = [], InlineHost.start, InlineHost.wait
    monkeypatch.setattr(InlineHost, "start", lambda *each: calls.append(each[1].kind) or start(*each))
    monkeypatch.setattr(InlineHost, "wait", lambda *each: calls.append("wait") or wait(*each))
    train_evaluated(tmp_path, "run")
    assert "Evaluator" in calls[: calls.index("wait")] and calls.count("Evaluator") == 1


def test_without_evaluations_there_is_no_actor(hosts, tmp_path):
    never = {"base_config": {"evaluate_every": None}, "goal": None}
    _, result = train_evaluated(tmp_path, "run", never)
    assert result.evaluation is None and hosts[0].started["Evaluator"] == []


def test_results_belong_to_the_version_with_which_they_started(hosts, tmp_path, delayed):
    lines = []
    folder, result = train_evaluated(tmp_path, "delayed", {"base_config": {"keep_checkpoints": 1}}, lines=lines)
    evaluated = read_evaluations(folder)
    other_folder, _ = train_evaluated(tmp_path, "main", evaluation_actor=False)
    expected = read_evaluations(other_folder)
    shared = evaluated.keys() & expected.keys()
    assert len(shared) > 1
    assert {env_steps: evaluated[env_steps] for env_steps in shared} == {each: expected[each] for each in shared}
    best = max(evaluated, key=lambda env_steps: (evaluated[env_steps], env_steps))
    assert result.best is not None and int(result.best.folder.name) == best
    reported = [line for line in lines if line.startswith("evaluation")]
    assert reported[0].startswith(f"evaluation at {min(evaluated)} env steps")
    rows = [int(row["env_steps"]) for row in read_table(folder.path / "metrics.csv").rows]
    assert rows != sorted(rows)  # training has continued meanwhile


def test_another_actor_repeats_an_evaluation_whose_actor_has_ended(hosts, tmp_path, monkeypatch):
    monkeypatch.setattr(InlineHost, "lost", {("Evaluator", 0, 0, 2)})  # its second request
    lines = []
    folder, _ = train_evaluated(tmp_path, "lost", lines=lines)
    assert len(hosts[0].started["Evaluator"]) == 2
    assert (
        sum("the evaluation actor ended (killed): another actor repeats the evaluation" in line for line in lines) == 1
    )
    other_folder, _ = train_evaluated(tmp_path, "main", evaluation_actor=False)
    assert read_evaluations(folder) == read_evaluations(other_folder)


def test_an_actor_that_hangs_is_replaced_after_the_time_limit(hosts, tmp_path, monkeypatch):
    monkeypatch.setattr(InlineHost, "silent", {("Evaluator", 0, 0, 0)})
    lines = []
    train_evaluated(tmp_path, "run", lines=lines, evaluation_timeout=1e-6)
    message = "the evaluation actor has not replied for 1e-06 s (cluster_config.evaluation_timeout): another actor"
    assert sum(message in line for line in lines) == 1
    assert len(hosts[0].started["Evaluator"]) == 2


def test_training_continues_if_no_actor_can_evaluate(hosts, tmp_path, monkeypatch):
    monkeypatch.setattr(InlineHost, "lost", {("Evaluator", 0, replacements, 1) for replacements in range(9)})
    lines = []
    folder, result = train_evaluated(tmp_path, "run", lines=lines)
    assert len(hosts[0].started["Evaluator"]) == 3 and result.counters.env_steps >= 150
    reason = "the evaluation actor ended (killed) before its first result, as 2 before it"
    assert any(f"is not possible: {reason}; training continues without evaluation" in line for line in lines)


def test_the_exception_of_an_evaluation_ends_the_run(hosts, tmp_path, monkeypatch):
    failure = Failure(ZeroDivisionError("in forward"), "its traceback")
    fail_calls(monkeypatch, failure, lambda ticket: ticket[0] == "Evaluator")
    with pytest.raises(ZeroDivisionError, match="in forward"):
        train_evaluated(tmp_path, "run")
