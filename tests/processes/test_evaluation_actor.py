"""Evaluation on an actor, in this process: whose weights are evaluated, and what follows from the end of an actor."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from algorithm.processes.host import Failure
from algorithm.training.metrics import mean_evaluations, read_table
from tests.checkpointing.test_resume import SETTINGS
from tests.processes.inline_host import InlineHost, fail_calls
from tests.processes.test_cluster_runtime import CHAIN, on_ray, train

BASE = {"base_config": {"algorithm": "A2C", "max_step": 150, "evaluate_every": 40, "save_every": 20}}
SAMPLED = {"base_config": {"evaluate_greedy": False}}


@pytest.fixture
def train_evaluated(hosts):
    """Return a function that trains a new run with evaluations. It returns what `train` returns, and the evaluations.

    Its arguments are the name of the run, further settings, and those of the cluster.
    """

    def train_and_read(name, *layers, **cluster):
        cluster = {"actors": 1, "max_lag": 0, **cluster}
        run = train(name, SETTINGS, CHAIN, BASE, SAMPLED, on_ray(**cluster), *layers)
        return SimpleNamespace(**vars(run), evaluations=mean_evaluations(read_table(run.folder.path / "metrics.csv")))

    return train_and_read


@pytest.fixture
def delayed(monkeypatch):
    """Let each evaluation take 5 calls of `wait`."""
    waits, original = {}, InlineHost.wait

    def wait(self, tickets, timeout):
        for ticket in tickets:
            waits[ticket] = waits.get(ticket, 0) + 1
        return [each for each in original(self, tickets, timeout) if each[0] != "Evaluator" or waits[each] > 5]

    monkeypatch.setattr(InlineHost, "wait", wait)


def test_results_equal_those_of_the_main_process(hosts, train_evaluated):
    run, other = train_evaluated("actor"), train_evaluated("main", evaluation_actor=False)
    assert run.evaluations == other.evaluations and len(set(run.evaluations.values())) > 2
    assert run.result.best.folder.name == other.result.best.folder.name
    assert [len(host.started["Evaluator"]) for host in hosts] == [1, 0]


def test_the_actor_plays_the_episodes_that_confirm_the_goal(train_evaluated):
    goal = {"goal": {"return": -1000.0, "evaluation_episodes": 8}}
    ends = []
    for name, evaluation_actor in (("actor", True), ("main", False)):
        run = train_evaluated(name, goal, evaluation_actor=evaluation_actor)
        assert run.result.confirmed_by == "evaluation"
        assert run.folder.checkpoints(keep=1).best.mean == run.result.evaluation["agent"].mean
        ends.append([line for line in run.lines if line.startswith(("goal", "evaluation"))])
    assert ends[0] == ends[1] and "confirmed at" in ends[0][-2] and "over 8 episodes" in ends[0][-1]


def test_the_actor_starts_with_the_rollout_actors(train_evaluated, monkeypatch):
    calls, start, wait = [], InlineHost.start, InlineHost.wait
    monkeypatch.setattr(InlineHost, "start", lambda *each: calls.append(each[1].kind) or start(*each))
    monkeypatch.setattr(InlineHost, "wait", lambda *each: calls.append("wait") or wait(*each))
    train_evaluated("run")
    assert "Evaluator" in calls[: calls.index("wait")] and calls.count("Evaluator") == 1


def test_results_belong_to_the_version_with_which_they_started(train_evaluated, delayed):
    run = train_evaluated("delayed", {"base_config": {"keep_checkpoints": 1}})
    expected = train_evaluated("main", evaluation_actor=False).evaluations
    shared = run.evaluations.keys() & expected.keys()
    assert len(shared) > 1 and all(run.evaluations[env_steps] == expected[env_steps] for env_steps in shared)
    best = max(run.evaluations, key=lambda env_steps: (run.evaluations[env_steps], env_steps))
    assert run.result.best is not None and int(run.result.best.folder.name) == best
    reported = [line for line in run.lines if line.startswith("evaluation")]
    assert reported[0].startswith(f"evaluation at {min(run.evaluations)} env steps")
    rows = [int(row["env_steps"]) for row in run.rows]
    assert rows != sorted(rows)  # training has continued meanwhile


def test_another_actor_repeats_an_evaluation_whose_actor_has_ended(hosts, train_evaluated, monkeypatch):
    monkeypatch.setattr(InlineHost, "lost", {("Evaluator", 0, 0, 2)})  # its second request
    run = train_evaluated("lost")
    assert len(hosts[0].started["Evaluator"]) == 2
    message = "the evaluation actor ended (killed): another actor repeats the evaluation"
    assert sum(message in line for line in run.lines) == 1
    assert run.evaluations == train_evaluated("main", evaluation_actor=False).evaluations


def test_an_actor_that_hangs_is_replaced_after_the_time_limit(hosts, train_evaluated, monkeypatch):
    monkeypatch.setattr(InlineHost, "silent", {("Evaluator", 0, 0, 0)})
    run = train_evaluated("run", evaluation_timeout=1e-6)
    message = "the evaluation actor has not replied for 1e-06 s (cluster_config.evaluation_timeout): another actor"
    assert sum(message in line for line in run.lines) == 1
    assert len(hosts[0].started["Evaluator"]) == 2


def test_training_continues_if_no_actor_can_evaluate(hosts, train_evaluated, monkeypatch):
    monkeypatch.setattr(InlineHost, "lost", {("Evaluator", 0, replacements, 1) for replacements in range(9)})
    run = train_evaluated("run")
    assert len(hosts[0].started["Evaluator"]) == 3 and run.result.counters.env_steps >= 150
    reason = "the evaluation actor ended (killed) before its first result, as 2 before it"
    assert any(f"is not possible: {reason}; training continues without evaluation" in line for line in run.lines)


def test_the_exception_of_an_evaluation_ends_the_run(train_evaluated, monkeypatch):
    failure = Failure(ZeroDivisionError("in forward"), "its traceback")
    fail_calls(monkeypatch, failure, lambda ticket: ticket[0] == "Evaluator")
    with pytest.raises(ZeroDivisionError, match="in forward"):
        train_evaluated("run")
