"""Oracles of the tests of distributions: autograd, and the sampling error of a mean."""

import numpy as np
import torch

DRAWS = 20000


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradient(function, at):
    """Return the gradient of a sum over rows, by autograd."""
    at = at.clone().requires_grad_()
    return torch.autograd.grad(function(at).sum(), at)[0]


def one_hot(sample, actions):
    return torch.eye(actions, dtype=torch.float64)[sample.squeeze(-1).long()]


def within_noise(mean, expected, std):
    """Assert that a mean of DRAWS numbers is within four of its standard errors."""
    assert (np.abs(mean - expected) <= 4 * std / np.sqrt(DRAWS) + 1e-12).all(), (mean, expected)


def fisher_product(family, statistics, vector):
    """Return the product of a vector with the second derivative of KL[fixed || policy], where both are equal."""
    at, fixed = statistics.clone().requires_grad_(), family(statistics)
    (first,) = torch.autograd.grad(family(at).kl(fixed).sum(), at, create_graph=True)
    return torch.autograd.grad((first * vector).sum(), at)[0]
