"""Exported and acting policies agree: modes are equal, samples have the same distribution, masks are respected."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from algorithm.distributions import ClippedGaussianFamily, Gaussian, TanhGaussianFamily, make_family

ROWS = 4000


def statistics(family, rows: int = 50) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, family.statistics_size)).astype(np.float32)


def columns(executed) -> np.ndarray:
    return torch.cat([part.float() for part in (*executed.continuous, *executed.indices)], -1).numpy()


@pytest.mark.parametrize("bounded", [ClippedGaussianFamily, TanhGaussianFamily])
@pytest.mark.parametrize(("continuous", "branches"), [(2, ()), (0, (3,)), (0, (3, 2)), (2, (3, 2))])
def test_exported_actions_equal_the_actions_of_the_family(bounded, continuous, branches):
    family = make_family(continuous, branches, bounded, Gaussian)
    assert family.branches == branches
    many = statistics(family)
    allowed = torch.ones(len(many), sum(branches))
    found = columns(family.mode_for_export(torch.from_numpy(many), allowed))
    np.testing.assert_allclose(found, family.to_action(family.mode(many)), atol=1e-6)

    one = np.tile(many[:1], (ROWS, 1))
    torch.manual_seed(0)
    sample = columns(family.sample_for_export(torch.from_numpy(one), torch.ones(ROWS, sum(branches))))
    expected = family.to_action(family.sample(one, np.random.default_rng(1)))
    error = 5 * np.sqrt(2 / ROWS) * np.maximum(expected.std(0), 0.05)
    assert (np.abs(sample.mean(0) - expected.mean(0)) < error).all()
    assert (np.abs(sample.std(0) - expected.std(0)) < error).all()


def test_forbidden_actions_are_never_executed_and_results_are_finite():
    family = make_family(1, (3, 2), ClippedGaussianFamily, Gaussian)
    many = torch.from_numpy(50 * statistics(family, ROWS))  # large logits of forbidden actions
    allowed = torch.ones(ROWS, 5)
    allowed[:, [0, 2, 4]] = 0
    for execute in (family.sample_for_export, family.mode_for_export):
        indices = torch.cat(execute(many, allowed).indices, -1)
        assert indices.dtype == torch.int64
        assert (indices == torch.tensor([1, 0])).all()
        indices = torch.cat(execute(many, torch.zeros(ROWS, 5)).indices, -1)
        assert (indices < torch.tensor([3, 2])).all()
