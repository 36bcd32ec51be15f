"""Every environment's folder fits: its variants resolve, its network is a blueprint, its goal can be reached."""

import pytest

from algorithm.config.effects import check_effects
from algorithm.config.loader import read_own_variant, read_variant, read_yaml, resolve
from algorithm.networks import Blueprint
from algorithm.runs.env_folder import PROJECT_ENVS
from tests.envs.folders import FOLDERS, OWN, load


@pytest.mark.parametrize("name", FOLDERS)
def test_every_variant_resolves(name):
    path = PROJECT_ENVS / name / "config.yaml"
    for variant in read_yaml(path):
        settings = resolve([(str(path), read_variant(path, variant))])
        check_effects(settings, [(str(path), read_own_variant(path, variant))])
        # A scene of Unity cannot be had where this is tested, so that nothing is claimed of it.
        # A variant that is measured after so many steps stops at none.
        goal = settings.goal
        assert settings.base.env_type == "UNITY" or goal is None or goal.step_budget <= settings.base.max_step


@pytest.mark.parametrize("name", FOLDERS)
def test_every_network_is_a_blueprint(name):
    blueprint = load(name, "nn.py").blueprint
    assert isinstance(blueprint() if callable(blueprint) else blueprint, Blueprint)


@pytest.mark.parametrize("name", OWN)
def test_goals_are_within_5_percent_of_the_optimum(name):
    goal = read_variant(PROJECT_ENVS / name / "config.yaml", "default")["goal"]["return"]
    optimum = load(name).mean_optimum()
    assert optimum - 0.05 * abs(optimum) <= goal <= optimum
