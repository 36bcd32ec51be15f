import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from algorithm.tools.reports.statistics import (
    compute_improvement,
    compute_iqm,
    compute_mean,
    compute_profile,
    estimate,
    widen_level,
)

ONE_TASK = [np.array([4.0, 1, 8, 2, 100, 6, 3, 5])]
TWO_TASKS = [np.array([1.0, 2, 3, 4]), np.array([10.0, 20, 30, 40])]

# Integers, so that shifted and scaled scores have the same ties.
RUNS = st.lists(st.integers(-50, 50), min_size=2, max_size=9).map(lambda runs: np.array(runs, float))
TASKS = st.lists(RUNS, min_size=1, max_size=3)


def test_known_answers_of_mean_and_interquartile_mean():
    assert compute_mean(ONE_TASK) == 129 / 8
    assert compute_iqm(ONE_TASK) == (3 + 4 + 5 + 6) / 4
    assert compute_mean(TWO_TASKS) == (2.5 + 25) / 2
    assert compute_iqm(TWO_TASKS) == (3 + 4 + 10 + 20) / 4
    # Every task counts the same in the mean, every run in the interquartile mean.
    assert compute_mean([np.array([1.0]), np.array([2.0, 4, 6])]) == (1 + 4) / 2
    assert compute_iqm([np.array([1.0]), np.array([2.0, 4, 6])]) == (2 + 4) / 2


@pytest.mark.parametrize("runs", range(1, 14))
def test_interquartile_mean_equals_that_of_scipy(runs):
    scores = np.random.default_rng(runs).normal(size=runs)
    assert compute_iqm([scores]) == pytest.approx(scipy_stats.trim_mean(scores, 0.25), abs=1e-12)


def test_profile_counts_the_runs_above_each_threshold():
    thresholds = np.array([0.0, 1, 3.5, 40, 41])
    assert compute_profile(TWO_TASKS, thresholds).tolist() == [1, (3 / 4 + 1) / 2, (1 / 4 + 1) / 2, 0, 0]


def test_known_answers_of_the_probability_of_improvement():
    assert compute_improvement([np.array([1.0, 2, 3])], [np.array([2.0, 0])]) == (1 + 1.5 + 2) / 6
    assert compute_improvement([np.array([1.0, 2])], [np.array([3.0])]) == 0
    assert compute_improvement(TWO_TASKS, [np.array([2.5]), np.array([30.0])]) == (2 / 4 + 1.5 / 4) / 2


@given(RUNS, RUNS)
def test_the_probability_of_improvement_is_the_mann_whitney_statistic(runs, others):
    u = scipy_stats.mannwhitneyu(runs, others).statistic
    assert compute_improvement([runs], [others]) == pytest.approx(u / (len(runs) * len(others)))
    assert compute_improvement([runs], [others]) == pytest.approx(1 - compute_improvement([others], [runs]))


@given(TASKS, st.randoms(use_true_random=False), st.integers(-20, 20), st.sampled_from([0.25, 2.0, 8.0]))
def test_statistics_do_not_depend_on_order_and_follow_shift_and_scale(tasks, random, shift, scale):
    shuffled = [np.array(random.sample(list(task), len(task))) for task in tasks]
    moved = [scale * task + shift for task in tasks]
    others = [task[::-1] + 1 for task in tasks]
    moved_others = [scale * task + shift for task in others]
    for statistic in (compute_mean, compute_iqm):
        assert statistic(shuffled) == pytest.approx(statistic(tasks))
        assert statistic(moved) == pytest.approx(scale * statistic(tasks) + shift)
    thresholds = np.array([-10.0, 0, 3])
    np.testing.assert_allclose(compute_profile(shuffled, thresholds), compute_profile(tasks, thresholds))
    np.testing.assert_allclose(compute_profile(moved, scale * thresholds + shift), compute_profile(tasks, thresholds))
    assert compute_improvement(shuffled, others) == pytest.approx(compute_improvement(tasks, others))
    assert compute_improvement(moved, moved_others) == pytest.approx(compute_improvement(tasks, others))


@settings(max_examples=20)
@given(TASKS, st.integers(-20, 20))
def test_intervals_contain_the_value_and_follow_shift_and_scale(tasks, shift):
    plain = estimate(compute_mean, tasks, resamples=500)
    moved = estimate(compute_mean, [2 * task + shift for task in tasks], resamples=500)
    assert plain.low - 1e-9 <= plain.value <= plain.high + 1e-9
    for name in ("value", "low", "high"):
        assert getattr(moved, name) == pytest.approx(2 * getattr(plain, name) + shift, abs=1e-9)


def check_with_scipy(statistic, samples, ours):
    """Check an interval with that of scipy; `statistic` is a function of samples whose last axis are the runs."""
    options = {"method": "percentile", "n_resamples": 20_000, "rng": np.random.default_rng(1)}
    low, high = scipy_stats.bootstrap(
        samples, lambda *arrays, axis: statistic(*arrays), vectorized=True, **options
    ).confidence_interval
    tolerance = 0.03 * (high - low)  # several standard errors of these quantiles
    assert ours.low == pytest.approx(low, abs=tolerance) and ours.high == pytest.approx(high, abs=tolerance)


@pytest.mark.parametrize("statistic", [compute_mean, compute_iqm])
def test_intervals_of_one_task_agree_with_scipy(statistic):
    scores = [np.random.default_rng(0).exponential(size=20)]
    ours = estimate(statistic, scores, level=0.95, resamples=20_000)
    check_with_scipy(lambda task: statistic([task]), scores, ours)


def test_intervals_over_tasks_and_of_two_groups_agree_with_scipy():
    rng = np.random.default_rng(3)
    tasks, others = [rng.normal(size=9), rng.normal(5, 3, size=14)], [rng.normal(0.5, 1, 8), rng.normal(4, 1, 11)]
    ours = estimate(compute_improvement, tasks, others, level=0.95, resamples=20_000)
    check_with_scipy(lambda a, b, c, d: compute_improvement([a, b], [c, d]), (*tasks, *others), ours)


def test_curves_have_an_interval_at_each_point():
    runs = np.random.default_rng(0).normal(size=(6, 8))
    curve = estimate(compute_mean, [runs])
    assert curve.value.shape == curve.low.shape == curve.high.shape == (6,)
    for point in range(6):
        single = estimate(compute_mean, [runs[point]])
        assert (curve.low[point], curve.high[point]) == pytest.approx((single.low, single.high))


def test_a_single_run_has_no_interval():
    interval = estimate(compute_mean, [np.array([3.0]), np.array([1.0, 2])])
    assert interval.value == 2.25 and np.isnan(interval.low) and np.isnan(interval.high)


@pytest.mark.parametrize("freedom", [3, 4, 7, 19, 60])
def test_the_widened_level_has_the_quantile_of_students_t(freedom):
    runs = freedom + 1
    quantile = scipy_stats.t.ppf(0.975, freedom) * np.sqrt(runs / freedom)
    assert scipy_stats.norm.ppf((1 + widen_level([runs])) / 2) == pytest.approx(quantile, abs=0.01)


def test_the_level_is_widened_less_for_more_runs():
    levels = [widen_level([runs]) for runs in (2, 3, 5, 10, 20, 1000)]
    assert levels == sorted(levels, reverse=True) and levels[-1] == pytest.approx(0.95, abs=1e-3)
    assert widen_level([5, 5]) < widen_level([5])


def test_an_interval_has_the_widened_level():
    runs = [np.random.default_rng(0).normal(size=5)]
    default, wide, narrow = (estimate(compute_mean, runs, level=level) for level in (None, widen_level([5]), 0.95))
    assert (default.low, default.high) == (wide.low, wide.high)
    assert default.low < narrow.low < narrow.high < default.high
