"""Distributional Retrace equals a double loop over rows and horizons, and its mean is the scalar Retrace target.

The projection equals the sum of hat functions over all pairs of a position and an atom.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithm.returns.distributional_retrace import (
    DISTRIBUTIONAL_ESTIMATORS,
    RetraceInputs,
    Support,
    distributional_retrace,
    recursive_distributional_retrace,
)
from tests.builders import random_estimator_inputs
from tests.oracles import close, compute_hats, distributional_retrace_by_definition, retrace_by_definition, tensor

GAMMA = 0.9
SUPPORT = Support(v_min=-3.0, v_max=3.0, n_atoms=7)
WIDE = Support(v_min=-30.0, v_max=36.0, n_atoms=23)

both = pytest.mark.parametrize("estimate", DISTRIBUTIONAL_ESTIMATORS.values(), ids=DISTRIBUTIONAL_ESTIMATORS)
many = settings(max_examples=60, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


# Known answers: two rows of an episode that continues after them, with two actions.
#   row  r    a  c    pi            q(x, 0)    q(x, 1)
#   0    0.3  1  1    (0.5, 0.5)    uniform    all on 3
#   1    0.5  0  0.5  (0.25, 0.75)  all on -1  all on 1
#   2                 (0.5, 0.5)    all on 2   all on 0


def point_mass(atom):
    return torch.eye(7, dtype=torch.float64)[atom + 3]


def two_rows(**changes):
    inputs = RetraceInputs(
        reward=tensor(0.3, 0.5).view(2, 1),
        discount=torch.full((2, 1), GAMMA, dtype=torch.float64),
        valid=torch.ones(2, 1, dtype=torch.bool),
        trace=tensor(1, 0.5).view(2, 1),
        taken=torch.tensor([[1], [0]]),
        probs=tensor((0.5, 0.5), (0.25, 0.75), (0.5, 0.5)).view(3, 1, 2),
    )
    q = torch.stack((tensor(*[1 / 7] * 7), *map(point_mass, (3, -1, 1, 2, 0)))).view(3, 1, 2, 7)
    return replace(inputs, **changes), q


def mean(distribution, support=SUPPORT):
    return distribution @ support.make_atoms(distribution)


def test_known_answer_of_the_direct_form():
    # n = 1: weights -0.25 at 0.3 - 0.9 = -0.6 and 0.75 at 0.3 + 0.9 = 1.2
    # n = 2: weights 0.25 at 0.3 + 0.45 + 0.81 * 2 = 2.37 and 0.25 at 0.75
    target = distributional_retrace(*two_rows(), SUPPORT)[:, 0]
    close(target[0], tensor(0, 0, -0.15, -0.0375, 0.7875, 0.3075, 0.0925))
    close(target[1], tensor(0, 0, 0, 0.25, 0.25, 0.35, 0.15))  # 0.5 at 2.3 and 0.5 at 0.5
    close(mean(target), tensor(1.83, 1.4))


def test_the_recursive_form_has_the_same_mean_and_spreads_the_mass():
    # eta_1 as above, then half of it and (-0.25 on -1, 0.75 on 1) at 0.3 + 0.9 z
    target = recursive_distributional_retrace(*two_rows(), SUPPORT)[:, 0]
    close(target[0], tensor(0, 0, -0.15, -0.0125, 0.7375, 0.3325, 0.0925))
    close(target[1], tensor(0, 0, 0, 0.25, 0.25, 0.35, 0.15))
    close(mean(target), tensor(1.83, 1.4))


@both
def test_a_termination_is_one_atom_at_the_return(estimate):
    # n = 2: weight 0.5 at 0.3 + 0.45 = 0.75
    target = estimate(*two_rows(discount=tensor(GAMMA, 0).view(2, 1)), SUPPORT)[:, 0]
    close(target[1], tensor(0, 0, 0, 0.5, 0.5, 0, 0))
    close(mean(target), tensor(0.3 + 0.9 * 1 + 0.45 * 0.5, 0.5))
    if estimate is distributional_retrace:
        close(target[0], tensor(0, 0, -0.15, 0.025, 0.975, 0.15, 0))
    # The termination of row 0: everything at 0.3.
    target = estimate(*two_rows(discount=tensor(0, GAMMA).view(2, 1)), SUPPORT)[:, 0]
    close(target[0], tensor(0, 0, 0, 0.7, 0.3, 0, 0))


@both
def test_a_row_that_is_not_valid_keeps_its_distribution_and_ends_the_trace(estimate):
    target = estimate(*two_rows(valid=torch.tensor([[True], [False]])), SUPPORT)[:, 0]
    close(target[1], point_mass(-1))
    # 0.25 at 0.3 - 0.9 = -0.6 and 0.75 at 0.3 + 0.9 = 1.2
    close(target[0], tensor(0, 0, 0.15, 0.1, 0.6, 0.15, 0))
    target = estimate(*two_rows(valid=torch.tensor([[False], [True]])), SUPPORT)[:, 0]
    close(target, torch.stack((point_mass(3), tensor(0, 0, 0, 0.25, 0.25, 0.35, 0.15))))


@both
def test_the_gradient_of_the_cross_entropy_with_negative_entries_is_softmax_minus_target(estimate):
    target = estimate(*two_rows(), SUPPORT)
    assert target.min() < -0.1
    logits = torch.randn(target.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits.requires_grad_()
    (-target * logits.log_softmax(-1)).sum().backward()
    close(logits.grad, logits.detach().softmax(-1) - target)


# Random records of several columns, with terminations and truncations, each with and without the last observation.


def list_atoms(support):
    return np.linspace(support.v_min, support.v_max, support.n_atoms)


def recursion_by_definition(reward, alive, first, gamma, atoms, probs, q, taken, trace):
    """Return eta_t = Proj push[sum_a pi(a) q(x', a) - c' q(x', a') + c' eta'], row by row from the last."""
    valid, rows = ~(first[1:] & alive), len(reward)
    targets = np.full((*reward.shape, len(atoms)), np.nan)
    for t, b in np.argwhere(valid)[::-1]:
        if not alive[t, b]:
            targets[t, b] = compute_hats(reward[t, b], atoms)
            continue
        mass = probs[t + 1, b] @ q[t + 1, b]
        if t + 1 < rows and valid[t + 1, b]:
            mass = mass + trace[t + 1, b] * (targets[t + 1, b] - q[t + 1, b, taken[t + 1, b]])
        targets[t, b] = mass @ compute_hats(reward[t, b] + gamma * atoms, atoms)
    return targets


def random_record(seed, rows=None, columns=3, support=SUPPORT, inside=1.0):
    """Return a record, whose distributions have mass in the inner part of the support only, if `inside` is below 1."""
    record = random_estimator_inputs(("trace",), seed, rows, columns)
    return record | random_distributions(seed, len(record["reward"]), columns, support, inside)


def random_distributions(seed, rows, columns, support, inside):
    rng = np.random.default_rng([seed, 1])
    actions = int(rng.integers(1, 4))
    q = rng.gamma(0.3, size=(rows + 1, columns, actions, support.n_atoms)) + 1e-12
    outer = np.abs(np.linspace(-1, 1, support.n_atoms)) > inside
    q[..., outer] = 0
    probs = rng.gamma(0.5, size=(rows + 1, columns, actions)) + 1e-12
    return {
        "taken": rng.integers(actions, size=(rows, columns)),
        "probs": probs / probs.sum(-1, keepdims=True),
        "q": q / q.sum(-1, keepdims=True),
    }


def make_inputs(record, dtype=torch.float64):
    """Return the inputs of Retrace, and the distributions of the target network."""
    float_of = {name: torch.from_numpy(record[name]).to(dtype) for name in ("reward", "trace", "probs")}
    alive = torch.from_numpy(record["alive"])
    inputs = RetraceInputs(
        **float_of,
        discount=record["gamma"] * alive.to(dtype),
        valid=~(torch.from_numpy(record["first"])[1:] & alive),
        taken=torch.from_numpy(record["taken"]),
    )
    return inputs, torch.from_numpy(record["q"]).to(dtype)


@pytest.mark.parametrize(
    ("estimate", "definition"),
    [
        (DISTRIBUTIONAL_ESTIMATORS["direct"], distributional_retrace_by_definition),
        (DISTRIBUTIONAL_ESTIMATORS["recursive"], recursion_by_definition),
    ],
)
@many
@given(seeds)
def test_each_form_equals_its_definition(estimate, definition, seed):
    record = random_record(seed)
    inputs, q = make_inputs(record)
    expected, valid = definition(**record, atoms=list_atoms(SUPPORT)), inputs.valid.numpy()
    np.testing.assert_array_equal(valid, ~np.isnan(expected[..., 0]))
    target = estimate(inputs, q, SUPPORT).numpy()
    np.testing.assert_allclose(target[valid], expected[valid], rtol=0, atol=1e-10)
    np.testing.assert_array_equal(target[~valid], inputs.select_taken(q).numpy()[~valid])


@both
@many
@given(seeds)
def test_the_sum_is_1_and_the_mean_is_the_scalar_target_of_retrace(estimate, seed):
    record = random_record(seed, support=WIDE, inside=0.5)
    (inputs, q), atoms = make_inputs(record), list_atoms(WIDE)
    target, valid = estimate(inputs, q, WIDE).numpy(), inputs.valid.numpy()
    np.testing.assert_allclose(target.sum(-1), 1, rtol=0, atol=1e-10)
    action_values = record["q"] @ atoms
    taken = np.take_along_axis(action_values[:-1], record["taken"][..., None], -1)[..., 0]
    v = (record["probs"] * action_values).sum(-1)
    scalar = (record[name] for name in ("reward", "alive", "first", "gamma"))
    expected = np.where(valid, retrace_by_definition(*scalar, taken, v, record["trace"]), taken)
    np.testing.assert_allclose(target @ atoms, expected, rtol=0, atol=1e-9)


@both
def test_inputs_are_not_changed(estimate):
    inputs, q = make_inputs(random_record(3, rows=8))
    values = [*vars(inputs).values(), q]
    copies = [value.clone() for value in values]
    estimate(inputs, q, SUPPORT)
    assert all(map(torch.equal, values, copies))


@both
def test_float32_is_precise_enough_for_long_records(estimate):
    support = Support(v_min=-10.0, v_max=10.0, n_atoms=51)
    for seed in range(5):
        record = random_record(seed, rows=32, columns=4, support=support)
        exact, single = (estimate(*make_inputs(record, dtype), support) for dtype in (torch.float64, torch.float32))
        assert single.dtype == torch.float32
        np.testing.assert_allclose(single, exact, rtol=0, atol=2e-5)


# The projection.


def project_by_definition(support, position, mass):
    """Return sum_j mass_j h_i(position_j) of each atom."""
    return (mass[..., None] * compute_hats(position, list_atoms(support))).sum(-2)


def random_projection(seed):
    """Return a support, and positions inside and outside of it with mass of both signs [3, 2, M]."""
    rng = np.random.default_rng(seed)
    v_min = float(rng.normal(scale=5))
    support = Support(v_min=v_min, v_max=v_min + float(rng.uniform(0.1, 20)), n_atoms=int(rng.integers(2, 12)))
    shape = (3, 2, int(rng.integers(1, 9)))
    center, width = (support.v_min + support.v_max) / 2, support.v_max - support.v_min
    return support, rng.uniform(center - width, center + width, shape), rng.normal(size=shape)


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (0.25, (0, 0, 0, 0.75, 0.25, 0, 0)),
        (-2.9, (0.9, 0.1, 0, 0, 0, 0, 0)),
        (5.0, (0, 0, 0, 0, 0, 0, 1)),
        (-3.5, (1, 0, 0, 0, 0, 0, 0)),
        (math.inf, (0, 0, 0, 0, 0, 0, 1)),
        (-math.inf, (1, 0, 0, 0, 0, 0, 0)),
        (2.0, (0, 0, 0, 0, 0, 1, 0)),
        (-1.0, (0, 0, 1, 0, 0, 0, 0)),
        (-3.0, (1, 0, 0, 0, 0, 0, 0)),
        (3.0, (0, 0, 0, 0, 0, 0, 1)),
    ],
)
def test_known_answers_of_the_projection(position, expected):
    close(SUPPORT.project(tensor(position), tensor(1)), tensor(*expected))
    close(SUPPORT.project(tensor(position), tensor(-0.5)), -0.5 * tensor(*expected))


def test_several_positions_add_up_at_their_atoms():
    position, mass = tensor(0.25, 5, 0.5, 3), tensor(1, 0.5, -2, 0.25)
    close(SUPPORT.project(position, mass), tensor(0, 0, 0, -0.25, -0.75, 0, 0.75))


def test_the_atoms_are_evenly_spaced_and_have_the_dtype_of_a_tensor():
    assert SUPPORT.distance == 1
    for dtype in (torch.float32, torch.float64):
        like = torch.zeros(1, dtype=dtype)
        close(SUPPORT.make_atoms(like), torch.tensor([-3, -2, -1, 0, 1, 2, 3], dtype=dtype))
        assert SUPPORT.project(like, like).dtype == dtype
    close(Support(v_min=-1.0, v_max=0.5, n_atoms=4).make_atoms(tensor(0)), tensor(-1, -0.5, 0, 0.5))
    close(Support(v_min=2.0, v_max=9.0, n_atoms=2).make_atoms(tensor(0)), tensor(2, 9))


@many
@given(seeds)
def test_the_projection_equals_the_sum_of_hat_functions(seed):
    support, position, mass = random_projection(seed)
    projected = support.project(torch.from_numpy(position), torch.from_numpy(mass))
    assert projected.shape == (3, 2, support.n_atoms)
    np.testing.assert_allclose(projected, project_by_definition(support, position, mass), rtol=0, atol=1e-10)


@many
@given(st.floats(-1e6, 1e6, width=32), st.floats(2**-10, 1e6, width=32), st.integers(2, 300))
def test_in_float32_positions_at_the_ends_of_any_support_keep_their_mass(v_min, width, n_atoms):
    support = Support(v_min=v_min, v_max=v_min + width, n_atoms=n_atoms)
    ends = torch.tensor([support.v_max, support.v_min])
    beyond = torch.nextafter(ends, torch.tensor([math.inf, -math.inf]))
    before = torch.nextafter(ends, torch.tensor([-math.inf, math.inf]))
    atoms = support.make_atoms(ends)
    for position in (ends, beyond, before, atoms[[-1, 0]]):
        each = support.project(position.unsqueeze(-1), torch.ones(2, 1))
        assert each.shape == (2, n_atoms) and (each >= 0).all()
        torch.testing.assert_close(each.sum(-1), torch.ones(2), rtol=0, atol=1e-6)
    # The rounding of Dz has no effect on clipped positions.
    outside = support.project(torch.tensor([[math.inf], [-math.inf]]), torch.ones(2, 1))
    assert outside[0, -1] == 1 and outside[1, 0] == 1


def test_in_float32_the_whole_mass_of_v_max_is_on_the_last_atom():
    for n_atoms in range(2, 302):
        for v_min, v_max in ((-10.0, 10.0), (-1.0, 1.0), (0.0, 0.3), (-0.7, 21.1)):
            support = Support(v_min=v_min, v_max=v_max, n_atoms=n_atoms)
            projected = support.project(torch.tensor([v_max]), torch.ones(1))
            assert projected.sum() == 1 and projected[-1] == pytest.approx(1, abs=1e-3)


def test_nan_gives_nan_in_its_row_only_and_no_error():
    nan = math.nan
    position = tensor((0.25, nan), (0.25, 1), (5, 1), (nan, nan))
    mass = tensor((0.5, 0.5), (0.5, nan), (0.5, 0.5), (0.5, nan))
    projected = SUPPORT.project(position, mass)
    assert projected.isnan().any(-1).tolist() == [True, True, False, True]
    close(projected[2], tensor(0, 0, 0, 0, 0.5, 0, 0.5))
    assert projected.sum(-1).isnan().tolist() == [True, True, False, True]


def test_no_mass_gives_no_mass():
    assert SUPPORT.project(torch.zeros(2, 0), torch.zeros(2, 0)).tolist() == [[0] * 7] * 2
