from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithm.returns import n_step_return, vtrace
from tests.builders import random_estimator_inputs
from tests.oracles import vtrace_by_definition

GAMMA = 0.9


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


# Three steps of an episode that continues after them.
REWARD, V, RHO = tensor(1, 0, 2), tensor(0.4, 1, 0.8, 3), tensor(1, 2, 0.5)
ONE = torch.ones(3).double()


def estimate(rho, trace=None, trace_lambda=1.0, reward=REWARD, v=V, gamma=GAMMA, horizon=None):
    valid = torch.ones(len(reward), dtype=torch.bool)
    return vtrace(
        reward, torch.full_like(reward, gamma), valid, v, rho, rho if trace is None else trace, trace_lambda, horizon
    )


def close(actual, *expected):
    torch.testing.assert_close(actual, tensor(*expected), rtol=0, atol=1e-10)


def test_known_answers():
    v, q = estimate(RHO.clamp(max=1))
    close(v, 3.2275, 2.475, 2.75)
    close(q, 3.2275, 2.475, 4.7)
    close(RHO.clamp(max=1) * (q - V[:-1]), 2.8275, 1.475, 1.95)


def test_on_policy_both_targets_are_the_n_step_return():
    v, q = estimate(ONE)
    close(v, 4.807, 4.23, 4.7)
    close(q, 4.807, 4.23, 4.7)


def test_lambda_and_not_the_rows_own_ratio_scales_the_correction_of_q():
    close(estimate(RHO.clamp(max=1), trace_lambda=0.9)[1], 2.952595, 2.2995, 4.7)


@pytest.mark.parametrize("horizon", [None, 3, 4])
def test_the_target_of_v_contains_the_ratio_of_its_row_and_the_target_of_q_does_not(horizon):
    v, q = estimate(tensor(0.2, 1, 0.5), horizon=horizon)
    close(v[:1], 0.9655)
    close(q[:1], 3.2275)


def test_known_answers_of_a_horizon():
    v, q = estimate(RHO.clamp(max=1), horizon=2)
    close(v, 0.4 + 1.5 - 0.9 * 0.28, 2.475, 2.75)
    close(q, 1.9 - 0.9 * 0.28, 2.475, 4.7)


# A termination, then a truncation with its last observation in row 4, then an episode that continues after the record.
FIRST, ALIVE = torch.tensor([0, 0, 1, 0, 0, 1, 0]).bool(), torch.tensor([1, 0, 1, 1, 1, 1]).bool()
BOUNDARY_V, BOUNDARY_RHO = tensor(0.3, 0.6, 0.4, 0.2, 4, 0.8, 2), tensor(2, 0.5, 0.8, 0.25, 7, 1)
BOUNDARY_REWARD = tensor(1, 1, 1, 1, 0, 1)
REAL = [0, 1, 2, 3, 5]


def boundary(v=BOUNDARY_V):
    rho = BOUNDARY_RHO.clamp(max=1)
    return vtrace(BOUNDARY_REWARD, GAMMA * ALIVE.double(), ~(FIRST[1:] & ALIVE), v, rho, rho)


def test_termination_ends_the_return_and_truncation_bootstraps_from_the_last_observation():
    v, q = boundary()
    close(v[REAL], 1.72, 0.8, 1.816, 1.3, 2.8)
    close(q[REAL], 1.72, 1, 2.17, 4.6, 2.8)


def test_an_invalid_row_keeps_its_own_value():
    for estimated in boundary():
        close(estimated[4:5], 4)


def test_the_value_after_a_termination_has_no_effect():
    v = BOUNDARY_V.clone()
    v[2] = 1e6
    for actual, expected in zip(boundary(v=v), boundary(), strict=True):
        torch.testing.assert_close(actual[:2], expected[:2], rtol=0, atol=0)


def test_with_a_finite_rho_clip_the_fixed_point_is_the_value_of_another_policy():
    # One state, pi = (.9, .1), mu = (.5, .5), reward (1, 0), rho-bar 1: min(rho-bar mu, pi) = (.5, .1) / .6.
    pi, mu, reward, v = tensor(0.9, 0.1), tensor(0.5, 0.5), tensor(1, 0), 0.0
    none, ever = torch.zeros(1).double(), torch.ones(1, dtype=torch.bool)
    for _ in range(200):
        ahead = tensor(v, 0)
        targets = [
            vtrace(reward[a : a + 1], none, ever, ahead, rho := (pi / mu)[a : a + 1].clamp(max=1), rho)[0]
            for a in range(2)
        ]
        v = float(mu @ torch.cat(targets))
    assert v == pytest.approx(0.5 / 0.6, abs=1e-6)


random_record = partial(random_estimator_inputs, ("v", "rho", "trace", "trace_lambda"))


def run(reward, alive, first, gamma, v, rho, trace, trace_lambda, horizon=None):
    reward, alive, first, v, rho, trace = map(torch.from_numpy, (reward, alive, first, v, rho, trace))
    valid = ~(first[1:] & alive)
    targets = vtrace(reward, gamma * alive.to(reward.dtype), valid, v, rho, trace, trace_lambda, horizon)
    return *(target.numpy() for target in targets), valid.numpy()


many = settings(max_examples=60, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


@many
@given(seeds)
def test_sequences_with_several_episodes_equal_each_episode_alone(seed):
    record = random_record(seed)
    *actual, valid = run(**record)
    for estimated, expected in zip(actual, vtrace_by_definition(**record), strict=True):
        np.testing.assert_array_equal(valid, ~np.isnan(expected))
        np.testing.assert_allclose(estimated, np.where(valid, expected, record["v"][:-1]), rtol=0, atol=1e-10)


@many
@given(seeds)
def test_values_of_invalid_rows_have_no_effect_on_other_rows(seed):
    record = random_record(seed)
    *actual, valid = run(**record)
    for name in ("reward", "rho", "trace"):
        record[name] = np.where(valid, record[name], 1e6)
    for changed, before in zip(run(**record), actual, strict=False):
        np.testing.assert_array_equal(changed[valid], before[valid])


@pytest.mark.parametrize("horizon", [1, 2, 3, 5, 13, 14, 100])  # of at most 13 rows
@many
@given(seeds)
def test_a_horizon_is_the_number_of_rewards_of_each_target(horizon, seed):
    record = random_record(seed)
    *actual, valid = run(**record, horizon=horizon)
    for estimated, expected in zip(actual, vtrace_by_definition(**record, horizon=horizon), strict=True):
        np.testing.assert_allclose(estimated, np.where(valid, expected, record["v"][:-1]), rtol=0, atol=1e-10)
    if horizon >= len(valid):
        for estimated, whole in zip(actual, run(**record)[:2], strict=True):
            np.testing.assert_allclose(estimated, whole, rtol=0, atol=1e-12)


@many
@given(seeds)
def test_with_a_horizon_of_one_the_estimate_of_q_is_the_one_step_target(seed):
    record = random_record(seed)
    v, q, valid = run(**record, horizon=1)
    one_step, kept = record["reward"] + record["gamma"] * record["alive"] * record["v"][1:], record["v"][:-1]
    np.testing.assert_allclose(q, np.where(valid, one_step, kept), rtol=0, atol=1e-12)
    np.testing.assert_allclose(v, np.where(valid, kept + record["rho"] * (one_step - kept), kept), rtol=0, atol=1e-12)


@pytest.mark.parametrize("horizon", [None, 1, 2, 4])
@many
@given(seeds)
def test_the_estimate_of_q_depends_on_the_ratios_of_later_rows_only(horizon, seed):
    """The ratios of all later rows within the horizon have an effect."""
    record = random_record(seed, rows=6)
    _, before, valid = run(**record, horizon=horizon)
    for row in range(6):
        other = {name: record[name].copy() for name in ("rho", "trace")}
        for ratio in other.values():
            ratio[row] *= 0.2
        v, q, _ = run(**{**record, **other}, horizon=horizon)
        np.testing.assert_array_equal(q[row:], before[row:])
        if row and horizon != 1:
            reached = valid[row - 1] & valid[row] & record["alive"][row - 1] & (record["rho"][row] > 0.1)
            moved = np.abs(q - before)[row - 1] > 1e-9 * record["gamma"] * record["trace_lambda"]
            np.testing.assert_array_equal(moved[reached], True)


@many
@given(seeds)
def test_the_targets_of_the_last_rows_do_not_depend_on_earlier_rows(seed):
    record = random_record(seed, rows=9)
    whole = run(**record)
    for start in range(1, 9):
        tail = {name: value if np.isscalar(value) else value[start:] for name, value in record.items()}
        for part, all_of_it in zip(run(**tail), whole, strict=True):
            np.testing.assert_allclose(part, all_of_it[start:], rtol=0, atol=1e-10)


def test_permuting_columns_permutes_targets():
    record = random_record(3, rows=8, columns=5)
    order = np.array([3, 0, 4, 1, 2])
    permuted = {name: value if np.isscalar(value) else value[:, order] for name, value in record.items()}
    for actual, expected in zip(run(**permuted), run(**record), strict=True):
        np.testing.assert_array_equal(actual, expected[:, order])


@many
@given(seeds)
def test_without_truncation_and_ratios_it_is_the_n_step_return(seed):
    record = random_record(seed)
    ones = np.ones_like(record["rho"])
    v, q, valid = run(**{**record, "rho": ones, "trace": ones})
    reward, alive = torch.from_numpy(record["reward"]), torch.from_numpy(record["alive"])
    n_step = n_step_return(
        reward,
        record["gamma"] * alive.double(),
        torch.from_numpy(valid),
        torch.from_numpy(record["v"]),
        record["trace_lambda"],
    )
    np.testing.assert_allclose(v, n_step.numpy(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(q, n_step.numpy(), rtol=0, atol=1e-12)


def test_without_discount_or_trace_targets_have_one_step():
    reward = tensor(1.5)
    for estimated in estimate(tensor(0.3), reward=reward, v=tensor(7.0, 2.0), gamma=0.0)[1:]:
        close(estimated, 1.5)
    v, q = estimate(RHO, trace=torch.zeros(3).double())
    torch.testing.assert_close(v, V[:-1] + RHO * (REWARD + GAMMA * V[1:] - V[:-1]), rtol=0, atol=1e-12)
