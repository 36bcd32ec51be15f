"""A search for settings: its space, the number by which trials are compared, and the pruning of runs."""

from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
import yaml

from algorithm.config.loader import resolve
from algorithm.config.yaml_layers import merge
from algorithm.errors import UserError
from algorithm.tools.tune.search import Objective, Pruner, SearchSpace
from algorithm.training.evaluator import EvaluationResult
from algorithm.training.progress import Counters
from tests.config.test_search import make_trial

GAMMA = {"acer_config.gamma": {"low": 0, "high": 1}}
OPTIMIZER = {"acer_config.optimizer": {"choices": ["adam", "adamw"]}}
DECAY = {"acer_config.weight_decay": {"low": 1e-4, "high": 1e-1, "log": True}}
# Spaces that cannot be searched, with the start of the error.
INVALID = """
{} | is empty; name settings there
acer_config.gama: {low: 0, high: 1} | unknown setting acer_config.gama; did you mean acer_config.gamma
acer_config.gamma: {low: 0.5, high: 1.5} | acer_config.gamma is 1.5; it must be from 0 to 1
acer_config.batch_size: {low: 1.5, high: 4} | acer_config.batch_size is 1.5; input should be a valid int
acer_config.optimizer: {choices: [adam, sgd]} | acer_config.optimizer is 'sgd'; input should be
acer_config.weight_decay: {low: 0.0001, high: 0.1} | acer_config.weight_decay is for optimizer adamw, not for adam, and
sac_config.tau: {low: 0.1, high: 1} | sac_config.tau is for algorithm SAC, not for ACER
acer_config.critic: {choices: [q, v]} | acer_config: estimator retrace needs action values
base_config.seed: {low: 1, high: 2} | base_config.seed cannot be searched: tune.seeds is
goal.return: {low: 1, high: 2} | goal.return cannot be searched: a search compares trials by
tune.seeds: {low: 1, high: 2} | tune.seeds cannot be searched: it describes the search
auxiliaries.rnd.strenth: {low: 0.1, high: 1} | unknown setting auxiliaries.rnd.strenth; did you mean auxiliaries.rnd.str
"""


def open_(space, own=True, **sections):
    """Return a space in a file with further sections."""
    layer = ("file", {**sections, "tune": {"space": space}})
    return SearchSpace([layer], [layer] if own else [])


def paths(space):
    """Return the paths of a space."""
    return [dimension.path for dimension in space.dimensions]


@pytest.mark.parametrize(("space", "error"), [row.split(" | ") for row in INVALID.strip().splitlines()])
def test_a_space_that_cannot_be_searched_is_an_error_of_one_line(space, error):
    with pytest.raises(UserError, match=f"^file: tune.space:? {error}") as raised:
        open_(yaml.safe_load(space))
    assert "\n" not in str(raised.value)


def test_an_inherited_setting_without_effect_is_left_out():
    assert paths(open_({**DECAY, **GAMMA}, own=False)) == ["acer_config.gamma"]


def test_a_variant_may_change_one_limit_of_an_inherited_range():
    own = ("file", {"tune": {"space": {"acer_config.gamma": {"high": 0.9}}}})
    inherited = ("file", merge({"tune": {"space": GAMMA}}, own[1]))
    (dimension,) = SearchSpace([inherited], [own]).dimensions
    assert (dimension.low, dimension.high) == (0.0, 0.9)


def test_limits_have_the_type_of_the_setting():
    space = {
        **GAMMA,
        "acer_config.batch_size": {"low": 1.0, "high": 8.0},
        "nn_config.units": {"low": 8, "high": 64},
        "nn_config.scale": {"low": 1, "high": 2.5},
    }
    limits = {dimension.path: (dimension.low, dimension.high) for dimension in open_(space).dimensions}
    expected = {"acer_config.gamma": (0, 1), "acer_config.batch_size": (1, 8), "nn_config.units": (8, 64)}
    assert limits == {**expected, "nn_config.scale": (1, 2.5)}
    assert [type(low) for low, _ in limits.values()] == [float, int, int, float]


def test_a_setting_is_sampled_if_it_has_an_effect_with_the_choices_before_it():
    space = open_({**DECAY, **OPTIMIZER})
    assert space.sample(make_trial(0.01)) == {"acer_config.optimizer": "adamw", "acer_config.weight_decay": 0.01}
    reversed_choices = {"acer_config.optimizer": {"choices": ["adamw", "adam"]}}
    assert open_({**DECAY, **reversed_choices}).sample(make_trial(0.01)) == {"acer_config.optimizer": "adam"}


def test_choices_that_need_each_other_are_accepted():
    space = {
        "acer_config.critic": {"choices": ["action_value", "state_value"]},
        "acer_config.estimator": {"choices": ["retrace", "vtrace"]},
    }
    sampled = open_(space).sample(make_trial())
    assert sampled == {"acer_config.critic": "state_value", "acer_config.estimator": "vtrace"}


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
