"""The settings that differ between members: what is refused, and known answers of their samples and perturbations."""

from __future__ import annotations

import numpy as np
import pytest

from algorithm.config.loader import resolve
from algorithm.errors import UserError
from algorithm.population.setting_spaces import SettingSpace, SettingSpaces, make_spaces

SEEDS = range(40)


def make_rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def make_config(resample_probability: float):
    changes = {"perturb_factors": [1.2], "resample_probability": resample_probability}
    return resolve([("test", {"population_config": changes})]).population


@pytest.mark.parametrize(
    ("space", "value", "factors", "expected"),
    [
        (SettingSpace(default=0.001), 0.01, (0.8, 1.2), {0.01 * 0.8, 0.01 * 1.2}),
        (SettingSpace(default=0.5, bounds=(0.4, 0.55)), 0.5, (0.5, 1.2), {0.4, 0.55}),
        (SettingSpace(default=16, bounds=(1, 64)), 16, (0.8, 1.2), {13, 19}),
        (SettingSpace(default=1, bounds=(0.5, 2.0)), 1, (1.2,), {1.2}),  # the bounds are no integers
        (SettingSpace(default="b", choices=("a", "b", "c")), "b", (1.2,), {"a", "c"}),
        (SettingSpace(default="b", choices=("a", "b", "c")), "a", (1.2,), {"a", "b"}),
    ],
)
def test_perturbed_values(space, value, factors, expected):
    values = {space.perturb(value, factors, make_rng(seed)) for seed in SEEDS}
    assert values == expected and {type(each) for each in values} == {type(each) for each in expected}


class TestSamples:
    def test_uniform(self):
        space, rng = SettingSpace(default=0.001, bounds=(2.0, 6.0)), make_rng()
        values = [space.sample(rng) for _ in range(400)]
        assert 2.0 <= min(values) < 2.1 and 5.9 < max(values) <= 6.0 and abs(np.mean(values) - 4.0) < 0.15

    def test_uniform_integers_include_both_bounds(self):
        assert {SettingSpace(default=3, bounds=(2, 4)).sample(make_rng(seed)) for seed in SEEDS} == {2, 3, 4}

    def test_normal_samples_are_limited(self):
        values = [SettingSpace(default=1.0, std=2.0).sample(make_rng(seed)) for seed in range(2000)]
        assert abs(np.mean(values) - 1.0) < 0.15 and abs(np.std(values) - 2.0) < 0.15
        limited = [SettingSpace(default=1.0, std=2.0, bounds=(0.0, 1.5)).sample(make_rng(seed)) for seed in SEEDS]
        assert min(limited) == 0.0 and max(limited) == 1.5

    def test_choices_follow_their_counts(self):
        space = SettingSpace(default=1, choices=(1, 2, 3))
        values = [space.sample(make_rng(seed), [1000, 1, 3000]) for seed in range(1000)]
        assert abs(values.count(1) / 1000 - 0.25) < 0.05 and values.count(2) < 10
        without = [space.sample(make_rng(seed)) for seed in range(1500)]
        assert all(abs(without.count(value) / 1500 - 1 / 3) < 0.06 for value in (1, 2, 3))

    def test_without_a_distribution_samples_are_the_default(self):
        assert SettingSpace(default=7).sample(make_rng()) == 7 and not SettingSpace(default=7).has_distribution


class TestSpaces:
    def test_a_setting_is_sampled_again_with_the_probability(self):
        spaces = SettingSpaces(by_path={"a.rate": SettingSpace(default=1.0, bounds=(0.0, 100.0))})
        config = make_config(0.25)
        changed = [spaces.perturb({"a.rate": 10.0}, config, make_rng(seed))["a.rate"] for seed in range(1000)]
        assert abs(changed.count(12.0) / 1000 - 0.75) < 0.05

    def test_a_setting_without_a_distribution_is_always_perturbed(self):
        spaces = SettingSpaces(by_path={"a.rate": SettingSpace(default=1.0)})
        assert spaces.perturb({"a.rate": 10.0}, make_config(1.0), make_rng()) == {"a.rate": 12.0}

    def test_values_that_are_not_accepted(self):
        space = SettingSpace(default=0.5, std=100.0)
        spaces = SettingSpaces(by_path={"a.rate": space}, accepts=lambda path, value: 0 < value < 1)
        assert spaces.sample(make_rng()) == {"a.rate": 0.5}
        assert spaces.perturb({"a.rate": 0.9}, make_config(0.0), make_rng()) == {"a.rate": 0.9}

    def test_values_that_the_settings_do_not_allow_are_not_accepted(self):
        spaces = make_spaces(resolve_params({"acer_config": {"learning_rate": {"std": 0.1}}}))
        assert spaces.by_path["acer_config.learning_rate"].std == 0.1
        assert spaces.accepts("acer_config.learning_rate", 0.1)
        assert not spaces.accepts("acer_config.learning_rate", -0.1)


def resolve_params(random_params):
    base = {"env_type": "PROBE", "env_name": "chain"}
    return resolve([("test", {"base_config": base, "population_config": {"random_params": random_params}})])


@pytest.mark.parametrize(
    ("path", "space", "message"),
    [
        ("acer_config.learning_rat", {}, "members cannot have different values of acer_config.learning_rat"),
        ("acer_config.learning_rate", {"in": 3}, "in is 3; it must be a list of at least two values"),
        ("acer_config.learning_rate", {"in": [0.1, 0.2], "std": 1}, "truncated and std are for numbers"),
        ("acer_config.learning_rate", {"truncated": [2, 1]}, "its first number must be below its second"),
        ("acer_config.learning_rate", {"truncated": [1]}, "it must be a list of two numbers"),
        ("acer_config.learning_rate", {"truncated": [-1.0, 1.0]}, "it must be above 0"),
        ("acer_config.learning_rate", {"std": -1}, "it must be a number above 0"),
        ("acer_config.learning_rate", 3, "it must be a mapping with in, truncated or std"),
        ("acer_config.learning_rate", {"std": 1, "low": 2}, "it must be a mapping with in, truncated or std"),
        ("acer_config.optimizer", {}, "not a number; give its values with in"),
        ("acer_config.optimizer", {"in": ["adam", "sgd"]}, "acer_config.optimizer is 'sgd'"),
        ("replay_config.capacity", {"in": [100, 200]}, "the saved replay has this size"),
        ("sac_config.gamma", {}, "is for algorithm SAC, not for ACER"),
        ("base_config.seed", {}, "members cannot have different values of base_config.seed"),
        ("base_config.runtime", {"in": ["LOCAL", "RAY"]}, "different values of base_config.runtime"),
        ("population_config.interval", {}, "members cannot have different values"),
        ("cluster_config.timeout", {}, "members cannot have different values of cluster_config.timeout"),
        ("goal.return", {}, "members cannot have different values"),
    ],
)
def test_a_space_that_cannot_be_used(path, space, message):
    with pytest.raises(UserError, match=message):
        make_spaces(resolve_params({path: space}))
