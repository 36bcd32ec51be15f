"""The mathematics of a population, with known answers."""

from __future__ import annotations

import numpy as np
import pytest

from algorithm.population.evolution import (
    SettingSpace,
    SettingSpaces,
    choose_parents,
    draw_weights,
    find_least_selected,
    fit_weights,
    is_evolution_due,
    rank_members,
    select_elites,
)


def make_rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


class TestRanks:
    def test_the_best_is_first_and_failed_members_are_last(self):
        assert rank_members([1.0, None, 5.0, -3.0, None]) == [2, 0, 3, 1, 4]

    def test_equal_returns_keep_their_order(self):
        assert rank_members([2.0, 3.0, 2.0, 3.0]) == [1, 3, 0, 2]

    def test_a_negative_return_is_better_than_none(self):
        assert rank_members([None, -100.0]) == [1, 0]


class TestParents:
    def test_the_worst_quarter_copies_the_best_quarter(self):
        returns = [float(member) for member in range(8)]
        seen = [choose_parents(returns, 0.25, make_rng(seed)) for seed in range(40)]
        assert all(parents[2:] == [2, 3, 4, 5, 6, 7] for parents in seen)
        assert {parents[0] for parents in seen} == {parents[1] for parents in seen} == {6, 7}

    def test_one_of_two_members_copies_the_other(self):
        assert choose_parents([1.0, 2.0], 0.25, make_rng()) == [1, 1]

    def test_at_most_half_of_an_odd_number_copies(self):
        assert choose_parents([3.0, 1.0, 2.0], 0.5, make_rng()) == [0, 0, 2]

    def test_without_exchange_only_failed_members_copy(self):
        assert choose_parents([1.0, 2.0, 3.0], 0.0, make_rng()) == [0, 1, 2]
        assert choose_parents([1.0, None, 3.0], 0.0, make_rng()) == [0, 2, 2]

    def test_a_failed_member_is_never_copied(self):
        assert choose_parents([None, None, 1.0, None], 0.25, make_rng()) == [2, 2, 2, 2]

    def test_a_failed_member_copies_one_of_the_best_quarter(self):
        returns = [None, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
        parents = choose_parents(returns, 0.25, make_rng())
        assert parents[0] in (6, 7) and parents[1] in (6, 7) and parents[2:] == [2, 3, 4, 5, 6, 7]

    def test_all_failed(self):
        with pytest.raises(ValueError, match="all members have failed"):
            choose_parents([None, None], 0.25, make_rng())


class TestSpace:
    def test_perturbed_number(self):
        space = SettingSpace(default=0.001)
        values = {space.perturb(0.01, (0.8, 1.2), make_rng(seed)) for seed in range(20)}
        assert values == {0.01 * 0.8, 0.01 * 1.2}

    def test_perturbed_number_stays_within_bounds(self):
        space = SettingSpace(default=0.5, bounds=(0.4, 0.55))
        assert {space.perturb(0.5, (0.5, 1.2), make_rng(seed)) for seed in range(20)} == {0.4, 0.55}

    def test_perturbed_integer_is_an_integer(self):
        space = SettingSpace(default=16, bounds=(1, 64))
        values = {space.perturb(16, (0.8, 1.2), make_rng(seed)) for seed in range(20)}
        assert values == {13, 19} and all(isinstance(value, int) for value in values)

    def test_an_integer_with_bounds_that_are_not_is_a_number(self):
        assert SettingSpace(default=1, bounds=(0.5, 2.0)).perturb(1, (1.2,), make_rng()) == 1.2

    def test_perturbed_choice_is_a_neighbor(self):
        space = SettingSpace(default="b", choices=("a", "b", "c"))
        assert {space.perturb("b", (1.2,), make_rng(seed)) for seed in range(20)} == {"a", "c"}
        assert {space.perturb("a", (1.2,), make_rng(seed)) for seed in range(20)} == {"a", "b"}

    def test_uniform_samples(self):
        space = SettingSpace(default=0.001, bounds=(2.0, 6.0))
        rng = make_rng()
        values = [space.sample(rng) for _ in range(400)]
        assert 2.0 <= min(values) < 2.1 and 5.9 < max(values) <= 6.0 and abs(np.mean(values) - 4.0) < 0.15

    def test_uniform_integers_include_both_bounds(self):
        space = SettingSpace(default=3, bounds=(2, 4))
        assert {space.sample(make_rng(seed)) for seed in range(40)} == {2, 3, 4}

    def test_normal_samples_are_limited(self):
        values = [SettingSpace(default=1.0, std=2.0).sample(make_rng(seed)) for seed in range(2000)]
        assert abs(np.mean(values) - 1.0) < 0.15 and abs(np.std(values) - 2.0) < 0.15
        limited = [SettingSpace(default=1.0, std=2.0, bounds=(0.0, 1.5)).sample(make_rng(seed)) for seed in range(50)]
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
    SPACES = SettingSpaces(
        by_path={"a.rate": SettingSpace(default=1.0, bounds=(10.0, 20.0)), "a.kind": SettingSpace(default="x")}
    )

    def test_a_setting_is_sampled_again_with_the_probability(self):
        spaces = SettingSpaces(by_path={"a.rate": SettingSpace(default=1.0, bounds=(0.0, 100.0))})
        changed = [spaces.perturb({"a.rate": 10.0}, (1.2,), 0.25, make_rng(seed))["a.rate"] for seed in range(1000)]
        assert abs(changed.count(12.0) / 1000 - 0.75) < 0.05

    def test_a_setting_without_a_distribution_is_always_perturbed(self):
        spaces = SettingSpaces(by_path={"a.rate": SettingSpace(default=1.0)})
        assert spaces.perturb({"a.rate": 10.0}, (1.2,), 1.0, make_rng()) == {"a.rate": 12.0}

    def test_values_that_are_not_accepted(self):
        spaces = SettingSpaces(
            by_path={"a.rate": SettingSpace(default=0.5, std=100.0)}, accepts=lambda path, value: 0 < value < 1
        )
        assert spaces.sample(make_rng()) == {"a.rate": 0.5}
        assert spaces.perturb({"a.rate": 0.9}, (1.2,), 0.0, make_rng()) == {"a.rate": 0.9}


class TestCrossEntropy:
    """Known answers of the cross-entropy method."""

    RETURNS = [[1.0], [5.0], [3.0], [4.0]]

    def test_elites(self):
        assert select_elites(self.RETURNS, 0.5, 1) == [1, 3]

    def test_elites_are_ranked_by_their_mean(self):
        assert select_elites([[1.0, 9.0], [6.0], [0.0]], 0.5, 1) == [1, 0]

    def test_at_least_two_elites(self):
        assert select_elites(self.RETURNS, 0.1, 1) == [1, 3]

    def test_only_members_with_enough_returns_are_elites(self):
        assert select_elites([[1.0, 1.0], [9.0], [2.0, 2.0], []], 0.5, 2) == [2, 0]
        assert select_elites([[1.0], []], 1.0, 0) == [0]

    def test_mean_and_standard_deviation(self):
        mean, std = fit_weights([np.array([0.0, 2.0]), np.array([2.0, 2.0])], min_std=0.0)
        np.testing.assert_allclose(mean, [1.0, 2.0])
        np.testing.assert_allclose(std, [1.0, 0.0])

    def test_limits_of_the_standard_deviation(self):
        _, std = fit_weights([np.array([0.0, 2.0, 0.0]), np.array([8.0, 2.0, 1.0])])
        np.testing.assert_allclose(std, [1.0, 1e-4, 0.5])

    def test_elites_that_are_not_finite_are_skipped(self):
        bad = np.array([np.nan, 1.0])
        mean, _ = fit_weights([bad, np.array([1.0, 1.0]), np.array([3.0, 5.0])])
        np.testing.assert_allclose(mean, [2.0, 3.0])
        assert fit_weights([bad, np.array([1.0, 1.0])]) is None

    def test_a_member_without_returns_blocks_the_step(self):
        assert not is_evolution_due([50, 50, 0], 50, 2, minutes=100.0, minutes_required=3.0)
        assert not is_evolution_due([5, 0], 50, 0, minutes=100.0, minutes_required=3.0)

    def test_the_step_is_due(self):
        assert is_evolution_due([50, 51], 50, 2, minutes=0.0, minutes_required=3.0)
        assert is_evolution_due([2, 49], 50, 2, minutes=3.0, minutes_required=3.0)
        assert not is_evolution_due([2, 49], 50, 2, minutes=2.9, minutes_required=3.0)
        assert not is_evolution_due([1, 49], 50, 2, minutes=3.0, minutes_required=3.0)
        assert not is_evolution_due([50], 50, 2, minutes=0.0, minutes_required=3.0)

    def test_draws(self):
        mean, std = np.array([1.0, 2.0]), np.array([1.0, 0.0])
        one, same, other = (draw_weights(mean, std, make_rng(seed)) for seed in (3, 3, 4))
        np.testing.assert_array_equal(one, same)
        assert one[0] != other[0] and one[1] == other[1] == 2.0 and one.dtype == np.float32
        many = draw_weights(np.full(4000, 1.0), np.full(4000, 0.5), make_rng())
        assert abs(many.mean() - 1.0) < 0.05 and abs(many.std() - 0.5) < 0.05

    def test_the_least_selected_member(self):
        assert find_least_selected([6, 6, 0, 4], 4) == 2
        assert find_least_selected([6, 6, 1, 4], 4) is None  # the mean is 4.25
        assert find_least_selected([60, 60, 0, 40], -1) is None
