"""Where estimators must agree with one another, and where they must not."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from algorithm.returns.estimators import ESTIMATORS, EstimatorInputs, TraceClipping
from tests.builders import random_boundaries

FULL = TraceClipping(trace_clip=1.0, rho_clip=1.0, trace_lambda=1.0)


def rows(seed, on_policy=False):
    """Random rows of three actions that cross episode borders, with V = sum pi Q."""
    rng = np.random.default_rng(seed)
    first, alive, final = random_boundaries(rng, 8, 4)
    q, pi, mu = rng.normal(size=(9, 4, 3)), rng.dirichlet(np.ones(3), (9, 4)), rng.dirichlet(np.ones(3), (9, 4))
    action = rng.integers(3, size=(8, 4, 1))
    prob = np.take_along_axis(pi[:-1], action, -1)[..., 0]
    rho = np.ones((8, 4)) if on_policy else prob / np.take_along_axis(mu[:-1], action, -1)[..., 0]
    arrays = (
        np.where(final, 0, rng.normal(size=(8, 4))),
        0.9 * alive,
        ~(first[1:] & alive),
        (pi * q).sum(-1),
        np.take_along_axis(q[:-1], action, -1)[..., 0],
        rho,
    )
    return EstimatorInputs(*map(torch.from_numpy, (*arrays, rho)), lambda: torch.from_numpy(prob))


def q_target(name, batch, truncation=FULL):
    return ESTIMATORS[name](batch, truncation).q_target[batch.valid]


def equal(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def different(actual, expected):
    assert not torch.allclose(actual, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_without_a_trace_all_are_the_one_step_target(seed):
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
def test_where_q_is_v_the_control_variates_agree(seed):
    batch = rows(seed)
    batch = replace(batch, q_taken=batch.v[:-1])
    equal(q_target("q_lambda", batch), q_target("n_step", batch))
    # The ratio stands at t + 1 in Retrace, and at t in the V-trace of the row behind.
    equal(q_target("retrace", batch), q_target("vtrace", batch))


@pytest.mark.parametrize("seed", range(5))
def test_off_policy_they_differ(seed):
    batch = rows(seed)
    targets = [q_target(name, batch) for name in ESTIMATORS]
    for i, target in enumerate(targets):
        for other in targets[:i]:
            different(target, other)


@pytest.mark.parametrize("seed", range(5))
def test_only_the_estimators_that_say_so_read_the_ratio_of_their_own_row(seed):
    batch = rows(seed)
    other = batch.rho.clone()
    other[0] *= 3
    changed = replace(batch, rho=other, rho_per_dimension=other)
    for name in ESTIMATORS:
        equal(ESTIMATORS[name](changed, FULL).q_target[0], ESTIMATORS[name](batch, FULL).q_target[0])
    free = replace(FULL, rho_clip=10.0)
    different(
        ESTIMATORS["vtrace"](changed, free).value_target()[0], ESTIMATORS["vtrace"](batch, free).value_target()[0]
    )


def test_each_clip_is_where_its_name_says():
    batch = rows(1)
    for name, reads in {"retrace": "trace_clip", "vtrace": "trace_clip"}.items():
        different(q_target(name, batch, replace(FULL, **{reads: 0.3})), q_target(name, batch))
    different(q_target("vtrace", batch, replace(FULL, rho_clip=5.0)), q_target("vtrace", batch))
    equal(q_target("retrace", batch, replace(FULL, rho_clip=5.0)), q_target("retrace", batch))
    for name in ("n_step", "tree_backup", "q_lambda"):
        equal(q_target(name, batch, replace(FULL, trace_clip=0.3, rho_clip=5.0)), q_target(name, batch))


def test_rows_that_are_not_learned_change_nothing_before_them():
    batch = rows(2)
    assert not batch.valid.all()
    spoilt = {
        name: torch.where(batch.valid, getattr(batch, name), 1e6)
        for name in ("reward", "q_taken", "rho", "rho_per_dimension")
    }
    for name in ESTIMATORS:
        equal(q_target(name, replace(batch, **spoilt)), q_target(name, batch))
