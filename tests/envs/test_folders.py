"""Tests of every environment folder: its variants resolve, its network is a blueprint, its goal is reachable."""

import pytest

from algorithm.config.loader import check_effects, resolve
from algorithm.config.yaml_layers import read_own_variant, read_variant, read_yaml
from algorithm.networks import Blueprint
from algorithm.parts.env_folder import PROJECT_ENVS
from tests.envs.folders import FOLDERS, FOLDERS_WITH_CODE, load


@pytest.mark.parametrize("name", FOLDERS)
def test_every_variant_resolves(name):
    path = PROJECT_ENVS / name / "config.yaml"
    for variant in read_yaml(path):
        settings = resolve([(str(path), read_variant(path, variant))])
        check_effects(settings, [(str(path), read_own_variant(path, variant))])
        # The scenes of Unity are not available to the tests, so their goals are not checked.
        # A variant without a goal is measured after a fixed number of steps.
        goal = settings.goal
        assert settings.base.env_type == "UNITY" or goal is None or goal.step_budget <= settings.base.max_step
        # Most processors have no instructions for bfloat16, and a run without them ends with an error.
        assert settings.base.precision == "float32" or variant == "bfloat16"


@pytest.mark.parametrize("name", FOLDERS)
def test_every_network_is_a_blueprint(name):
    blueprint = load(name, "nn.py").blueprint
    assert isinstance(blueprint() if callable(blueprint) else blueprint, Blueprint)


@pytest.mark.parametrize("name", FOLDERS_WITH_CODE)
def test_goals_are_within_5_percent_of_the_optimum(name):
    goal = (read_variant(PROJECT_ENVS / name / "config.yaml", "default")["goal"] or {}).get("return")
    if goal is None:
        pytest.skip("returns differ between the agents of a team")
    optimum = load(name).mean_optimum()
    assert optimum - 0.05 * abs(optimum) <= goal <= optimum
