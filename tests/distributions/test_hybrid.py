"""Hybrid distributions equal torch's distributions and autograd, and samples follow them."""

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Independent, Normal, TanhTransform, TransformedDistribution

from algorithm.distributions import MASKED_LOGIT, HybridDistribution, HybridFamily
from tests.distributions.oracles import DRAWS, find_place, gradient, random, within_noise
from tests.oracles import close

SPACES = {
    "continuous": (2, ()),
    "discrete": (0, (3,)),
    "multi-discrete": (0, (2, 3)),
    "hybrid": (1, (3,)),
    "hybrid of three branches": (2, (2, 3, 2)),
}
every_space = pytest.mark.parametrize("family", [HybridFamily(*space) for space in SPACES.values()], ids=SPACES)


def theirs(family, statistics, place):
    """Return torch's distributions of a combination's continuous dimensions before tanh, and of each branch."""
    k, count = family.n_continuous, family.n_combinations
    mean, log_std = (statistics[..., : 2 * count * k].unflatten(-1, (2, count, k))[..., i, place, :] for i in (0, 1))
    branches = statistics[..., 2 * count * k :].split(family.branches, -1) if family.branches else []
    return Independent(Normal(mean, log_std.exp()), 1), [Categorical(logits=logits) for logits in branches]


def log_prob_of(family, statistics, place):
    """Return log pi(d) of one combination."""
    _, branches = theirs(family, statistics, place)
    indices = np.unravel_index(place, family.branches) if branches else ()
    terms = [b.log_prob(torch.tensor(i)) for b, i in zip(branches, indices, strict=True)]
    return sum(terms, torch.zeros(statistics.shape[:-1], dtype=statistics.dtype))


def some(family, *shape, seed=0):
    """Return statistics, and samples of them."""
    rng = np.random.default_rng(seed)
    indices = (
        rng.integers(family.branches, size=(*shape, len(family.branches))) if family.branches else np.zeros((*shape, 0))
    )
    sample = torch.cat((random(*shape, family.n_continuous, seed=seed + 1), torch.from_numpy(indices).double()), -1)
    return 0.7 * random(*shape, family.statistics_size, seed=seed), sample


@pytest.fixture
def noise(monkeypatch):
    """Return a function that sets the noise of the next samples: one number, or a tensor."""

    def draw(values):
        monkeypatch.setattr(torch.Tensor, "normal_", lambda self: self.copy_(torch.as_tensor(values)))

    return draw


def test_the_known_density_of_a_squashed_sample(noise):
    mean, std, draw = (torch.tensor(x).double() for x in ((0.1, -0.3, 0.8), (0.5, 1, 0.7), (0.4, 0.4, 4)))
    noise(((draw - mean) / std).view(1, 3))
    proposal = HybridDistribution(torch.cat((mean, std.log())), 3, ()).rsample()
    close(proposal.actions, draw.tanh().view(1, 3))
    close(proposal.mean_offset, (draw - mean).view(1, 3))
    close(proposal.log_prob, torch.tensor([-5.654783]).double(), atol=1e-6)
    correction = (1 - draw.tanh() ** 2).log().sum()
    corrected_three_times = Independent(Normal(mean, std), 1).log_prob(draw) - 3 * correction
    close(corrected_three_times, torch.tensor(8.1976).double(), atol=1e-4)  # a wrong density


@every_space
def test_the_density_of_samples_equals_torchs_squashed_gaussians(family):
    statistics, _ = some(family, 5, 4)
    proposal = family(statistics).rsample()
    assert proposal.actions.shape == (5, 4, family.n_combinations, family.n_continuous)
    assert proposal.log_prob.shape == (5, 4, family.n_combinations)
    for place in range(family.n_combinations):
        gaussian, _ = theirs(family, statistics, place)
        draw = gaussian.mean + proposal.mean_offset[..., place, :]
        close(proposal.actions[..., place, :], draw.tanh())
        tanh = TanhTransform(cache_size=1)  # inverts its own output exactly
        close(proposal.log_prob[..., place], TransformedDistribution(gaussian, tanh).log_prob(tanh(draw)))


@pytest.mark.parametrize("far", [20.0, 100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_sample_far_from_0_is_finite_and_right(dtype, far, noise):
    noise(torch.tensor([[1.0, -1.0]], dtype=dtype))
    policy = HybridDistribution(torch.tensor([far - 1, 1 - far, 0.0, 0.0], dtype=dtype), 2, ())
    proposal = policy.rsample()
    # log(1 - tanh(u)^2) = 2 (log 2 - |u|) for large |u|
    wanted = 2 * (-0.5 * np.log(2 * np.pi) - 0.5 - 2 * (np.log(2) - far))
    assert proposal.log_prob.item() == pytest.approx(wanted, rel=1e-5)
    slope = torch.ones(1, 2, dtype=dtype)
    assert policy.soft_policy_gradient(proposal, torch.ones(1, dtype=dtype), slope, 0.2).isfinite().all()


def test_the_noise_of_samples_is_standard_normal_for_every_combination():
    family = HybridFamily(1, (2,))
    torch.manual_seed(0)
    proposal = family(torch.tensor([0.3, -0.5, -1.0, 0.2, 0.0, 1.0]).expand(DRAWS, 6)).rsample()
    shift = np.float64(proposal.mean_offset[..., 0])
    for place, std in enumerate(np.exp([-1.0, 0.2])):
        within_noise(shift[:, place].mean(), 0, std)
        within_noise((shift[:, place] ** 2).mean(), std**2, np.sqrt(2) * std**2)
    within_noise((shift[:, 0] * shift[:, 1]).mean(), 0, np.exp(-0.8))


def take_parts(family, statistics, sample):
    """Return log pi(d) [...], and the Gaussian N(u|d) [...] of the combinations of samples."""
    place = find_place(family.branches, sample[..., family.n_continuous :]) if family.branches else None
    place = torch.zeros(sample.shape[:-1], dtype=torch.int64) if place is None else place
    each = [theirs(family, statistics, k)[0].base_dist for k in range(family.n_combinations)]
    columns = place[..., None, None].expand(*place.shape, 1, family.n_continuous)
    mean, std = (torch.stack([getattr(part, name) for part in each], -2) for name in ("mean", "stddev"))
    gaussian = Independent(Normal(mean.gather(-2, columns).squeeze(-2), std.gather(-2, columns).squeeze(-2)), 1)
    log_probs = torch.stack([log_prob_of(family, statistics, k) for k in range(family.n_combinations)], -1)
    return log_probs.gather(-1, place.unsqueeze(-1)).squeeze(-1), gaussian


@every_space
def test_log_probabilities_are_those_of_the_parts_also_of_executed_actions(family):
    statistics, sample = some(family, 5, 4)
    behavior, _ = some(family, 5, 4, seed=7)
    policy, u = family(statistics), sample[..., : family.n_continuous]
    (log_d, gaussian), (other_log_d, other) = (take_parts(family, each, sample) for each in (statistics, behavior))
    log_u, other_log_u = gaussian.log_prob(u), other.log_prob(u)
    close(policy.probs.sum(-1), torch.ones(5, 4).double())
    close(policy.log_prob(sample), log_d + log_u)
    close(policy.log_ratio(family(behavior), sample), log_d + log_u - other_log_d - other_log_u)
    log_branches, log_values = policy.action_log_probs(sample)
    close(log_branches, log_d)
    close(log_values, log_u - (1 - u.tanh() ** 2).log().sum(-1))


@every_space
def test_the_mode_is_the_most_probable_index_of_each_branch_and_the_mean_of_this_combination(family):
    statistics = some(family, 30)[0].float()
    mode = family.mode(statistics.numpy())
    assert mode.dtype == np.float32 and mode.shape == (30, family.size)
    _, branches = theirs(family, statistics, 0)
    continuous, *indices = torch.from_numpy(mode).tensor_split([*range(family.n_continuous, family.size)], -1)
    for branch, index in zip(branches, indices, strict=True):
        assert index[:, 0].equal(branch.probs.argmax(-1).float())
    close(continuous, take_parts(family, statistics, torch.from_numpy(mode))[1].mean)


@every_space
def test_the_gradient_of_the_soft_value_equals_autograd(family, noise):
    statistics, _ = some(family, 5, 4)
    shape = (family.n_combinations, family.n_continuous)
    eps, bend, slant, level = random(5, 4, *shape, seed=2), random(*shape), random(*shape, seed=1), random(shape[0])
    noise(eps)
    of_branches, of_numbers = 0.3, 0.2

    def q(c):
        return level + (slant * c + bend * c.square()).sum(-1)

    def value(at):
        policy, total = family(at), 0
        for place in range(family.n_combinations):
            log_d, log_c, worth = policy.log_probs[..., place], 0, level[place]
            if family.n_continuous:
                gaussian, _ = theirs(family, at, place)
                draw = gaussian.mean + gaussian.base_dist.stddev * eps[..., place, :]
                tanh = TanhTransform(cache_size=1)
                log_c = TransformedDistribution(gaussian, tanh).log_prob(c := tanh(draw))
                worth = worth + (slant[place] * c + bend[place] * c**2).sum(-1)
            total = total + log_d.exp() * (worth - of_branches * log_d - of_numbers * log_c)
        return total

    policy = family(statistics)
    proposal = policy.rsample()
    c = proposal.actions
    cost = of_branches * policy.log_probs + of_numbers * proposal.log_prob
    slope = slant + 2 * bend * c if family.n_continuous else None
    found = policy.soft_policy_gradient(proposal, q(c) - cost, slope, of_numbers)
    assert found.shape == statistics.shape and found.abs().max() > 0.1
    close(found, gradient(value, statistics), atol=1e-8)


@every_space
def test_samples_in_numpy_follow_the_branches_and_the_gaussians_of_their_combination(family):
    row = some(family, 1, seed=3)[0][0]
    sample = family.sample(np.tile(row.float().numpy(), (DRAWS, 1)), np.random.default_rng(0))
    assert sample.shape == (DRAWS, family.size) and sample.dtype == np.float32
    numbers, place = (
        np.split(np.float64(sample), [family.n_continuous], -1)[0],
        family.find_combination(torch.from_numpy(sample)),
    )
    probs = np.exp([log_prob_of(family, row, k).item() for k in range(family.n_combinations)])
    within_noise(np.bincount(place[:, 0], minlength=len(probs)) / DRAWS, probs, np.sqrt(probs * (1 - probs)))
    for k in range(family.n_combinations if family.n_continuous else 0):
        mine = numbers[(place[:, 0] == k).numpy()]
        gaussian, scale = theirs(family, row, k)[0], np.sqrt(DRAWS / len(mine))
        mean, std = gaussian.mean.numpy(), gaussian.stddev.numpy()
        within_noise(mine.mean(0), mean, scale * std)
        within_noise(((mine - mean) ** 2).mean(0), std**2, scale * np.sqrt(2) * std**2)
    np.testing.assert_array_equal(
        family.to_action(sample)[:, : family.n_continuous], np.tanh(sample[:, : family.n_continuous])
    )
    np.testing.assert_array_equal(family.to_action(sample)[:, family.n_continuous :], sample[:, family.n_continuous :])


@every_space
def test_uniform_actions_are_uniform_over_branches_and_the_range_of_every_dimension(family):
    rng, k = np.random.default_rng(0), family.n_continuous
    statistics = np.tile(np.random.default_rng(1).normal(size=family.statistics_size), (DRAWS, 1)).astype(np.float32)
    sample, behavior = family.sample_uniformly(statistics, rng)
    assert sample.dtype == behavior.dtype == np.float32 and sample.shape == (DRAWS, family.size)
    action = np.sort(family.to_action(sample)[:, :k], axis=0)
    assert np.abs(action).max(initial=0) <= 1
    distance = np.abs(action - np.linspace(-1, 1, DRAWS)[:, None]).max(initial=0) / 2  # Kolmogorov-Smirnov
    assert distance < 1.95 / DRAWS**0.5  # exceeded with probability 0.001
    for indices, n_actions in zip(sample[:, k:].T, family.branches, strict=True):
        within_noise(np.bincount(indices.astype(int)) / DRAWS, 1 / n_actions, (1 / n_actions) ** 0.5)
    np.testing.assert_array_equal(behavior[:, : 2 * family.n_means], statistics[:, : 2 * family.n_means])
    if family.branches:
        log_probs = HybridDistribution(torch.from_numpy(behavior), k, family.branches).log_probs
        np.testing.assert_allclose(log_probs, -np.log(family.n_combinations), rtol=1e-5)


def test_uniform_actions_are_allowed_ones():
    family, statistics = HybridFamily(1, (3,)), np.zeros((600, 9), np.float32)
    statistics[:, 7] = MASKED_LOGIT
    sample, behavior = family.sample_uniformly(statistics, np.random.default_rng(0))
    assert set(sample[:, 1]) == {0, 2}
    probs = HybridDistribution(torch.from_numpy(behavior), 1, (3,)).probs
    np.testing.assert_allclose(probs, np.tile([0.5, 0, 0.5], (600, 1)), atol=1e-6)


def test_forbidden_actions_have_no_effect_and_results_are_finite():
    family = HybridFamily(1, (3, 2))
    rows = some(family, 2)[0].float()
    rows[0, -4] = rows[0, -1] = MASKED_LOGIT
    rows[1, -5:] = MASKED_LOGIT  # all actions forbidden, which has the effect of none forbidden
    policy = family(rows)
    sample = torch.from_numpy(family.sample(rows.numpy(), np.random.default_rng(0)))
    proposal = policy.rsample()
    assert policy.probs[0, [1, 2, 3, 5]].eq(0).all() and policy.probs[0, [0, 4]].gt(0).all()
    close(policy.probs[1], torch.full((6,), 1 / 6), atol=1e-6)
    cost = 0.2 * policy.log_probs + 0.1 * proposal.log_prob
    found = policy.soft_policy_gradient(proposal, 1 - cost, torch.ones_like(proposal.actions), 0.1)
    for value in (policy.log_probs, policy.log_prob(sample), cost, found):
        assert value.isfinite().all()
    assert found[0, [1, 2, 3, 5]].eq(0).all() and found[0, [-4, -1]].eq(0).all()
    in_numpy = family.sample(np.tile(rows[:1].numpy(), (1000, 1)), np.random.default_rng(0))
    assert (in_numpy[:, 1] != 1).all() and (in_numpy[:, 2] == 0).all()


def test_selected_rows_of_a_sample_are_the_sample_of_these_rows():
    whole = HybridFamily(1, (2,))(random(4, 2, 6)).rsample()
    for name, value in vars(whole.select_rows(slice(1, 3))).items():
        assert torch.equal(value, getattr(whole, name)[1:3])
