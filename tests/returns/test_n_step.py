import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithm.returns import n_step_return, sum_rewards
from tests.oracles import vtrace_by_definition
from tests.returns.test_vtrace import ALIVE, BOUNDARY_REWARD, FIRST, REAL, REWARD, V, close, random_record, tensor

GAMMA = 0.9


def target(trace_lambda=1.0, horizon=None, v=V):
    valid = torch.ones(3, dtype=torch.bool)
    return n_step_return(REWARD, torch.full_like(REWARD, GAMMA), valid, v, trace_lambda, horizon)


def test_known_answers():
    close(target(), 4.807, 4.23, 4.7)
    close(target(horizon=1), 1.9, 0.72, 4.7)
    close(target(horizon=2), 1 + 0.81 * 0.8, 1.8 + 0.81 * 3, 4.7)
    valid = torch.ones(3, dtype=torch.bool)
    close(n_step_return(REWARD, torch.full_like(REWARD, GAMMA), valid, V), 4.807, 4.23, 4.7)  # default lambda 1


def test_known_answers_of_generalized_advantage_estimation_at_boundaries():
    v = tensor(0.3, 0.6, 0.4, 0.2, 4, 0.8, 2)
    valid = ~(FIRST[1:] & ALIVE)
    advantage = n_step_return(BOUNDARY_REWARD, GAMMA * ALIVE.double(), valid, v, 0.95) - v[:-1]
    close(advantage[REAL], 1.582, 0.4, 4.542, 4.4, 2)
    close(advantage[4:5], 0)
    v[2] = 1e6  # after a termination
    changed = n_step_return(BOUNDARY_REWARD, GAMMA * ALIVE.double(), valid, v, 0.95)
    close(changed[:2] - v[:2], 1.582, 0.4)


def test_a_horizon_longer_than_the_record_has_no_effect():
    for horizon in (3, 4, 100):
        torch.testing.assert_close(target(horizon=horizon), target(), rtol=0, atol=1e-12)


def test_with_lambda_0_it_is_the_one_step_target():
    torch.testing.assert_close(target(trace_lambda=0.0), REWARD + GAMMA * V[1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("horizon", [None, 1, 2, 5])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1))
def test_sequences_with_several_episodes_equal_each_episode_alone(horizon, seed):
    record = random_record(seed)
    ones = np.ones_like(record["reward"])
    expected, _ = vtrace_by_definition(**{**record, "rho": ones, "trace": ones}, horizon=horizon)
    reward, alive, first, v = (torch.from_numpy(record[name]) for name in ("reward", "alive", "first", "v"))
    valid = ~(first[1:] & alive)
    actual = n_step_return(reward, record["gamma"] * alive.double(), valid, v, record["trace_lambda"], horizon).numpy()
    np.testing.assert_allclose(actual, np.where(valid, expected, v[:-1]), rtol=0, atol=1e-10)


@pytest.mark.parametrize("horizon", [1, 2, 5, 99])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1))
def test_the_parts_of_a_return_make_the_return(horizon, seed):
    record = random_record(seed)
    reward, alive, first, v = (torch.from_numpy(record[name]) for name in ("reward", "alive", "first", "v"))
    valid, discount = ~(first[1:] & alive), record["gamma"] * alive.double()
    sums, products, end = sum_rewards(reward, discount, valid, horizon)
    expected = n_step_return(reward, discount, valid, v, horizon=horizon)
    torch.testing.assert_close((sums + products * v.gather(0, end))[valid], expected[valid], rtol=0, atol=1e-10)
