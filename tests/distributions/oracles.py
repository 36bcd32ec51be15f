"""Oracles of the tests of distributions: torch's distributions, autograd, and the sampling error of a mean."""

import numpy as np
import torch
from torch.distributions import Categorical, Independent, Normal

from algorithm.distributions import CategoricalFamily, FlattenedFamily, HybridFamily, JointFamily

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


def make_gaussian(statistics):
    mean, log_std = statistics.chunk(2, -1)
    return Independent(Normal(mean, log_std.exp()), 1)


def list_parts(family, statistics, sample):
    """Return torch's distribution of each independent part of a policy, with its value in a sample.

    The continuous dimensions of a hybrid policy are those of all combinations, which have no value in a sample.
    """
    if isinstance(family, JointFamily):
        pieces = zip(
            family.families,
            statistics.split(family.statistics_sizes, -1),
            sample.split(family.sample_sizes, -1),
            strict=True,
        )
        return [part for piece in pieces for part in list_parts(*piece)]
    if isinstance(family, HybridFamily):
        means, logits = statistics.tensor_split([2 * family.n_means], -1)
        indices = sample[..., family.n_continuous :].unbind(-1)
        branches = zip(logits.split(family.branches, -1) if indices else (), indices, strict=True)
        parts = [(Categorical(logits=part), index) for part, index in branches]
        return [(make_gaussian(means), None)] * bool(family.n_continuous) + parts
    if isinstance(family, FlattenedFamily):
        return [(Categorical(logits=statistics), find_place(family.branches, sample))]
    if isinstance(family, CategoricalFamily):
        return [(Categorical(logits=statistics), sample[..., 0])]
    return [(make_gaussian(statistics), sample)]


def find_place(branches, sample):
    """Return the place of a combination in nested loops over the branches, of which the last is the innermost."""
    strides = torch.tensor([int(np.prod(branches[place + 1 :])) for place in range(len(branches))])
    return (sample.long() * strides).sum(-1)


def find_allowed(mask, branches):
    """Return for each combination whether all its actions are allowed; a branch without allowed actions allows all."""
    parts = np.split(np.asarray(mask), np.cumsum(branches)[:-1])
    parts = [part if part.any() else np.ones_like(part) for part in parts]
    return np.array([all(part[i] > 0 for part, i in zip(parts, place, strict=True)) for place in np.ndindex(*branches)])
