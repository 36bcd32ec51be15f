"""The projection equals the sum of hat functions over all pairs of a position and an atom."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithm.returns.distributional_retrace import Support
from tests.oracles import close, tensor

SUPPORT = Support(v_min=-3.0, v_max=3.0, n_atoms=7)

many = settings(max_examples=60, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


def project_by_definition(support, position, mass):
    """Return sum_j mass_j h_i(position_j) of each atom, h_i(y) = [1 - |clip(y, v_min, v_max) - z_i| / Dz]_+."""
    distance = (support.v_max - support.v_min) / (support.n_atoms - 1)
    atoms = support.v_min + distance * np.arange(support.n_atoms)
    clipped = np.clip(position, support.v_min, support.v_max)
    hats = np.maximum(0, 1 - np.abs(clipped[..., None] - atoms) / distance)  # [..., M, N]
    return (mass[..., None] * hats).sum(-2)


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
def test_known_answers(position, expected):
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
@given(
    st.floats(-1e6, 1e6, width=32),
    st.floats(2**-10, 1e6, width=32),
    st.integers(2, 300),
)
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


def test_gradients_reach_the_mass():
    # d p_i / d mass_j = h_i(position_j)
    position = tensor(0.25, 5)
    jacobian = torch.autograd.functional.jacobian(lambda mass: SUPPORT.project(position, mass), tensor(0.3, -0.7))
    close(jacobian.T, tensor((0, 0, 0, 0.75, 0.25, 0, 0), (0, 0, 0, 0, 0, 0, 1)))
