"""Estimators agree with one another in special cases, and differ otherwise."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithm.returns import ESTIMATORS, EstimatorInputs, TraceClipping, rescale, unscale
from tests.builders import random_boundaries
from tests.oracles import close, tensor

equal = partial(close, atol=1e-12)
FULL = TraceClipping(trace_clip=1.0, rho_clip=1.0, trace_lambda=1.0)


def rows(seed, on_policy=False):
    """Return random rows with three actions and ends of episodes, with V = sum pi Q."""
    rng = np.random.default_rng(seed)
    first, alive, final = random_boundaries(rng, 8, 4)
    q, pi, mu = rng.normal(size=(9, 4, 3)), rng.dirichlet(np.ones(3), (9, 4)), rng.dirichlet(np.ones(3), (9, 4))
    action = rng.integers(3, size=(8, 4, 1))
    prob = np.take_along_axis(pi[:-1], action, -1)[..., 0]
    rho = np.ones((8, 4)) if on_policy else prob / np.take_along_axis(mu[:-1], action, -1)[..., 0]
    arrays = {
        "reward": np.where(final, 0, rng.normal(size=(8, 4))),
        "discount": 0.9 * alive,
        "valid": ~(first[1:] & alive),
        "v": (pi * q).sum(-1),
        "q_taken": np.take_along_axis(q[:-1], action, -1)[..., 0],
        "rho": rho,
        "rho_per_dimension": rho,
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return EstimatorInputs(**tensors, prob_taken=lambda: torch.from_numpy(prob))


def q_target(name, batch, truncation=FULL):
    return ESTIMATORS[name].estimate(batch, truncation).q_target[batch.valid]


def different(actual, expected):
    assert not torch.allclose(actual, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_with_lambda_0_all_are_the_one_step_target(seed):
    batch = rows(seed)
    one_step = (batch.reward + batch.discount * batch.v[1:])[batch.valid]
    for name in ESTIMATORS:
        equal(q_target(name, batch, replace(FULL, trace_lambda=0.0)), one_step)


@pytest.mark.parametrize("seed", range(5))
def test_on_policy_retrace_is_q_lambda_and_vtrace_is_the_n_step_return(seed):
    batch = rows(seed, on_policy=True)
    equal(q_target("retrace", batch), q_target("q_lambda", batch))
    equal(q_target("vtrace", batch), q_target("n_step", batch))
    different(q_target("retrace", batch), q_target("n_step", batch))


@pytest.mark.parametrize("seed", range(5))
def test_if_q_equals_v_the_control_variates_are_equal(seed):
    batch = rows(seed)
    batch = replace(batch, q_taken=batch.v[:-1])
    equal(q_target("q_lambda", batch), q_target("n_step", batch))
    # Retrace has the ratio of row t + 1 where V-trace of the next row has its own.
    equal(q_target("retrace", batch), q_target("vtrace", batch))


@pytest.mark.parametrize("seed", range(5))
def test_off_policy_they_differ(seed):
    batch = rows(seed)
    targets = [q_target(name, batch) for name in ESTIMATORS]
    for i, target in enumerate(targets):
        for other in targets[:i]:
            different(target, other)


@pytest.mark.parametrize("seed", range(5))
def test_only_value_targets_depend_on_the_ratio_of_the_same_row(seed):
    batch = rows(seed)
    other = batch.rho.clone()
    other[0] *= 3
    changed = replace(batch, rho=other, rho_per_dimension=other)
    for name in ESTIMATORS:
        equal(ESTIMATORS[name].estimate(changed, FULL).q_target[0], ESTIMATORS[name].estimate(batch, FULL).q_target[0])
    free = replace(FULL, rho_clip=10.0)
    different(
        ESTIMATORS["vtrace"].estimate(changed, free).value_target()[0],
        ESTIMATORS["vtrace"].estimate(batch, free).value_target()[0],
    )


def test_each_estimator_reads_the_clips_that_it_declares():
    batch = rows(1)
    for name, reads in {"retrace": "trace_clip", "vtrace": "trace_clip"}.items():
        different(q_target(name, batch, replace(FULL, **{reads: 0.3})), q_target(name, batch))
    different(q_target("vtrace", batch, replace(FULL, rho_clip=5.0)), q_target("vtrace", batch))
    equal(q_target("retrace", batch, replace(FULL, rho_clip=5.0)), q_target("retrace", batch))
    for name in ("n_step", "tree_backup", "q_lambda"):
        equal(q_target(name, batch, replace(FULL, trace_clip=0.3, rho_clip=5.0)), q_target(name, batch))


def test_known_answers():
    close(rescale(tensor(1000, -1000, 0)), tensor(31.638584, -31.638584, 0), atol=1e-6)
    behind_five_rewards = rescale(1 + 0.99**5 * unscale(tensor(5)))
    close(behind_five_rewards, tensor(4.940760), atol=1e-6)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.floats(-1e6, 1e6))
def test_each_is_the_inverse_of_the_other(x):
    number = tensor(x)
    assert unscale(rescale(number)).item() == pytest.approx(x, rel=1e-6, abs=1e-6)
    assert rescale(unscale(number)).item() == pytest.approx(x, rel=1e-6, abs=1e-6)


def test_each_is_increasing_and_odd():
    x = torch.linspace(-1000, 1000, 999, dtype=torch.float64)
    for function in (rescale, unscale):
        y = function(x)
        assert (y.diff() > 0).all()
        torch.testing.assert_close(function(-x), -y)
    assert rescale(x).abs().max() < 40 < 1e5 < unscale(x).abs().max()


@pytest.mark.parametrize("x", [0.0, 1e-3, 0.1, 1.0, 30.0, 1e4])
def test_float32_is_precise_enough(x):
    for sign in (1, -1):
        y = rescale(torch.tensor([sign * x]))
        assert unscale(y).item() == pytest.approx(sign * x, rel=2e-6, abs=1e-6)


def test_gradients_are_finite_at_0():
    for function in (rescale, unscale):
        x = torch.tensor([0.0, 1e-8, -3.0], dtype=torch.float64, requires_grad=True)
        (found,) = torch.autograd.grad(function(x).sum(), x)
        assert found.isfinite().all()
