from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithm.returns import retrace
from tests.builders import random_estimator_inputs
from tests.oracles import retrace_by_definition

GAMMA = 0.9


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


# Three steps of an episode that continues after them.
REWARD, Q, V = tensor(1, 0, 2), tensor(0.5, 1.5, 1), tensor(0.4, 1, 0.8, 3)
PI, MU = tensor(0.5, 0.6, 0.2), tensor(0.5, 0.3, 0.4)
RHO = PI / MU


def target(trace, reward=REWARD, q=Q, v=V, gamma=GAMMA):
    valid = torch.ones(len(reward), dtype=torch.bool)
    return retrace(reward, torch.full_like(reward, gamma), valid, q, v, trace)


def close(actual, *expected, atol=1e-10):
    torch.testing.assert_close(actual, tensor(*expected), rtol=0, atol=atol)


def test_known_answers_of_retrace():
    close(target(RHO.clamp(max=1)), 2.6965, 2.3850, 4.7)
    close(target(0.7 * RHO.clamp(max=1)), 2.142865, 1.8855, 4.7)


def test_known_answers_of_other_traces():
    close(target(torch.ones(3).double()), 4.195, 4.05, 4.7)  # Q(lambda), Q^opc
    close(target(PI), 1.83844, 1.386, 4.7)  # tree-backup
    close(target(RHO), 3.493, 2.385, 4.7)  # importance sampling
    close(target(torch.zeros(3).double()), 1.9, 0.72, 4.7)  # expected SARSA


def test_two_common_mistakes_give_other_targets():
    close(target(RHO.clamp(max=10))[:1], 3.493)  # the clip of the policy gradient in the trace
    close(target(RHO.clamp(max=1), v=tensor(0.4, 1, 0.8, 0.8))[:1], 1.8946)  # bootstrapping from the last row


def test_the_ratio_of_the_first_row_has_no_effect():
    trace = RHO.clamp(max=1)
    torch.testing.assert_close(target(trace), target(torch.cat((tensor(1e6), trace[1:]))), rtol=0, atol=0)


def test_on_policy_the_difference_to_the_n_step_return_is_the_control_variates():
    ones = torch.ones(3).double()
    n_step = 1 + GAMMA**2 * 2 + GAMMA**3 * 3
    assert n_step == pytest.approx(4.807, abs=1e-12)
    difference = sum(GAMMA**k * (V[k] - Q[k]) for k in (1, 2))
    torch.testing.assert_close(target(ones)[0] - n_step, difference, rtol=0, atol=1e-12)
    close(target(ones, q=V[:-1])[:1], n_step)  # no difference if Q = V


# A termination, then a truncation with its last observation in row 4, then an episode that continues after the record.
FIRST, ALIVE = torch.tensor([0, 0, 1, 0, 0, 1, 0]).bool(), torch.tensor([1, 0, 1, 1, 1, 1]).bool()
BOUNDARY_V = tensor(0.3, 0.6, 0.4, 0.2, 4, 0.8, 2)
BOUNDARY_Q = tensor(0.5, 0.2, 0.7, 0.1, 7, 0.9)
BOUNDARY_TRACE = tensor(1, 0.5, 0.8, 0.25, 5, 1)
BOUNDARY_REWARD = tensor(1, 1, 1, 1, 0, 1)
REAL = [0, 1, 2, 3, 5]


def boundary_target(rows=None, first=FIRST, alive=ALIVE, v=BOUNDARY_V):
    """Return the targets of some rows of this record, with other flags or values if given."""
    rows = rows or range(6)
    reward, q, trace = (x[list(rows)] for x in (BOUNDARY_REWARD, BOUNDARY_Q, BOUNDARY_TRACE))
    return retrace(reward, GAMMA * alive.double(), ~(first[1:] & alive), q, v, trace)


def test_termination_ends_the_return_and_truncation_bootstraps_from_the_last_observation():
    close(boundary_target()[REAL], 1.9, 1, 2.1925, 4.6, 2.8)


def test_an_invalid_row_keeps_its_own_value():
    close(boundary_target()[4:5], 7)


def test_the_value_after_a_termination_has_no_effect():
    v = BOUNDARY_V.clone()
    v[2] = 1e6
    torch.testing.assert_close(boundary_target(v=v), boundary_target(), rtol=0, atol=0)


def test_truncation_as_termination_and_a_leak_into_the_next_episode_give_other_targets():
    v = tensor(0.3, 0.6, 0.4, 0.2, 0.8, 2)
    first, alive = torch.tensor([0, 0, 1, 0, 1, 0]).bool(), torch.tensor([1, 0, 1, 0, 1]).bool()
    close(boundary_target(REAL, first, alive, v), 1.9, 1, 1.3825, 1, 2.8)
    alive = torch.tensor([1, 0, 1, 1, 1]).bool()
    close(boundary_target(REAL, torch.zeros(6).bool(), alive, v), 1.9, 1, 1.92925, 3.43, 2.8)


def test_without_its_last_observation_the_last_row_of_a_truncated_episode_is_invalid():
    v = tensor(0.3, 0.6, 0.4, 0.2, 0.8, 2)
    first, alive = torch.tensor([0, 0, 1, 0, 1, 0]).bool(), torch.tensor([1, 0, 1, 1, 1]).bool()
    close(boundary_target(REAL, first, alive, v), 1.9, 1, 1.18, 0.1, 2.8)
    assert (~(first[1:] & alive)).tolist() == [True, True, True, False, True]


random_record = partial(random_estimator_inputs, ("q_taken", "v", "trace"))


def run(reward, alive, first, gamma, q_taken, v, trace, horizon=None):
    reward, alive, first, q_taken, v, trace = map(torch.from_numpy, (reward, alive, first, q_taken, v, trace))
    valid = ~(first[1:] & alive)
    target = retrace(reward, gamma * alive.to(reward.dtype), valid, q_taken, v, trace, horizon)
    return target.numpy(), valid.numpy()


many = settings(max_examples=60, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


@many
@given(seeds)
def test_sequences_with_several_episodes_equal_each_episode_alone(seed):
    record = random_record(seed)
    actual, valid = run(**record)
    expected = retrace_by_definition(**record)
    np.testing.assert_array_equal(valid, ~np.isnan(expected))
    np.testing.assert_allclose(actual, np.where(valid, expected, record["q_taken"]), rtol=0, atol=1e-10)


@pytest.mark.parametrize("horizon", [1, 2, 3, 5, 13, 14, 100])  # of at most 13 rows
@many
@given(seeds)
def test_a_horizon_is_the_number_of_rewards_of_each_target(horizon, seed):
    record = random_record(seed)
    actual, valid = run(**record, horizon=horizon)
    expected = retrace_by_definition(**record, horizon=horizon)
    np.testing.assert_allclose(actual, np.where(valid, expected, record["q_taken"]), rtol=0, atol=1e-10)
    if horizon >= len(valid):
        np.testing.assert_allclose(actual, run(**record)[0], rtol=0, atol=1e-12)


@many
@given(seeds)
def test_a_horizon_of_one_is_expected_sarsa(seed):
    record = random_record(seed)
    actual, valid = run(**record, horizon=1)
    one_step = record["reward"] + record["gamma"] * record["alive"] * record["v"][1:]
    np.testing.assert_allclose(actual, np.where(valid, one_step, record["q_taken"]), rtol=0, atol=1e-12)


@many
@given(seeds)
def test_values_of_invalid_rows_have_no_effect_on_other_rows(seed):
    record = random_record(seed)
    actual, valid = run(**record)
    for name in ("reward", "q_taken", "trace"):
        record[name] = np.where(valid, record[name], 1e6)
    np.testing.assert_array_equal(run(**record)[0][valid], actual[valid])


@many
@given(seeds)
def test_the_targets_of_the_last_rows_do_not_depend_on_earlier_rows(seed):
    record = random_record(seed, rows=9)
    whole, _ = run(**record)
    for start in range(1, 9):
        tail = {name: value if name == "gamma" else value[start:] for name, value in record.items()}
        np.testing.assert_allclose(run(**tail)[0], whole[start:], rtol=0, atol=1e-10)


def test_permuting_columns_permutes_targets():
    record = random_record(3, rows=8, columns=5)
    order = np.array([3, 0, 4, 1, 2])
    permuted = {name: value if name == "gamma" else value[:, order] for name, value in record.items()}
    np.testing.assert_array_equal(run(**permuted)[0], run(**record)[0][:, order])


def test_the_on_policy_identity_holds_for_random_records():
    rng = np.random.default_rng(4)
    reward, q, v = (torch.from_numpy(rng.normal(size=n)) for n in (12, 12, 13))
    ones, powers = torch.ones(12).double(), GAMMA ** torch.arange(13).double()
    n_step = (powers[:-1] * reward).sum() + powers[-1] * v[-1]
    difference = (powers[1:-1] * (v[1:-1] - q[1:])).sum()
    torch.testing.assert_close(target(ones, reward, q, v)[0] - n_step, difference, rtol=0, atol=1e-10)


def test_a_vanishing_trace_leaves_the_one_step_target():
    one_step = REWARD + GAMMA * V[1:]
    torch.testing.assert_close(target(1e-12 * RHO), one_step, rtol=0, atol=1e-10)


def test_with_gamma_0_the_target_is_the_reward():
    torch.testing.assert_close(target(RHO, gamma=0.0), REWARD, rtol=0, atol=1e-15)


def test_a_single_row_bootstraps_once():
    close(target(tensor(0.3), tensor(1.5), tensor(-4.0), tensor(7.0, 2.0)), 1.5 + 0.9 * 2)


def test_float32_is_precise_enough_for_long_records():
    record = random_record(5, rows=200, columns=4)
    exact, _ = run(**record)
    single = {n: x.astype(np.float32) if getattr(x, "dtype", None) == np.float64 else x for n, x in record.items()}
    np.testing.assert_allclose(run(**single)[0], exact, rtol=1e-4, atol=1e-4)
