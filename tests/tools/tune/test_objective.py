"""The number by which trials are compared, and the pruning of runs."""

from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest

from algorithm.config.loader import resolve
from algorithm.errors import UserError
from algorithm.tools.tune.search import Objective, Pruner
from algorithm.training.evaluator import EvaluationResult
from algorithm.training.progress import Counters


def objective(**sections):
    """Return the objective of settings."""
    return Objective(resolve([("file", sections)]), "file")


GOAL = {"goal": {"return": 5.0}, "tune": {"objective": "env_steps"}}


def result(env_steps, reached=None, returns=None):
    """Return the result of a run."""
    evaluation = returns and {"a": EvaluationResult(returns, [1] * len(returns)), "b": EvaluationResult([0.0], [1])}
    return SimpleNamespace(counters=Counters(env_steps=env_steps), goal_reached=reached, evaluation=evaluation)


def test_the_return_is_the_mean_over_the_roles_without_a_stop_rule():
    found = objective(goal={"return": 5.0}, base_config={"max_step": 300})
    assert found.maximize and found.measure(result(300, returns=[2.0, 4.0])) == 1.5
    assert (found.evaluations, found.warmup) == (10, 3)
    settings = found.make_run_settings(7)
    assert settings["goal"] is None
    assert settings["base_config"] == {"seed": 7, "evaluate_every": 30, "save_every": None, "export": "never"}


def test_env_steps_count_until_the_goal_and_twice_without_it():
    found = objective(**GOAL, base_config={"max_step": 300, "evaluate_every": 7})
    assert not found.maximize
    assert found.measure(result(120, reached=True)) == 120
    assert found.measure(result(300, reached=False)) == 600
    assert [found.is_goal_missed(value) for value in (120.0, 599.0, 600.0, None)] == [False, False, True, False]
    assert "goal" not in found.make_run_settings(0)
    assert found.make_run_settings(0)["base_config"]["evaluate_every"] == 7


@pytest.mark.parametrize(
    ("sections", "error"),
    [
        ({"base_config": {"max_step": None}}, "file: tune needs base_config.max_step"),
        ({"tune": {"objective": "env_steps"}}, "file: tune.objective: env_steps needs goal.return"),
        ({"tune": {"objective": "env_steps"}, "goal": None}, "file: tune.objective: env_steps needs goal.return"),
    ],
)
def test_an_objective_without_its_settings_is_an_error(sections, error):
    with pytest.raises(UserError, match=error):
        objective(**sections)


def test_a_run_that_could_not_be_evaluated_has_no_return():
    with pytest.raises(UserError, match="tune.objective return needs evaluation"):
        objective().measure(result(10))


@pytest.mark.parametrize(("sections", "sign"), [({}, 1), (GOAL, -1)])
def test_evaluations_are_reported_in_the_direction_of_the_objective(sections, sign):
    trial = Mock(should_prune=lambda: False)
    pruner = Pruner(trial, 11, objective(**sections, base_config={"max_step": 300}))
    for env_steps, mean in [(30, 1.0), (61, 2.0)]:
        assert not pruner.on_evaluation({"agent": EvaluationResult([mean], [1], env_steps=env_steps)})
    assert trial.report.mock_calls == [call(sign * 1.0, 12), call(sign * 2.0, 13)]
    assert not pruner.pruned


@pytest.mark.parametrize(("env_steps", "pruned"), [(30, True), (300, False), (301, False)])
def test_a_run_is_pruned_before_its_end_only(env_steps, pruned):
    pruner = Pruner(Mock(should_prune=lambda: True), 0, objective(base_config={"max_step": 300}))
    results = {"agent": EvaluationResult([1.0], [1], env_steps=env_steps)}
    assert pruner.on_evaluation(results) == pruner.pruned == pruned
