"""The promises of every family: independent rows, exact gradients, selected rows, exported actions like acting."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from algorithm.distributions import (
    MASKED_LOGIT,
    MODE,
    SAMPLE,
    ClippedGaussianFamily,
    ClosedFormDistribution,
    FixedStdGaussian,
    FlattenedFamily,
    Gaussian,
    HybridFamily,
    TanhGaussianFamily,
    make_family,
)
from tests.distributions.oracles import DRAWS, fisher_product, gradient, random, within_noise
from tests.oracles import close

LEADING = (2, 3)  # rows and columns; their numbers differ from the sizes of an action
FAMILIES = {
    "branch": make_family(0, (3,), ClippedGaussianFamily, Gaussian),
    "clipped": ClippedGaussianFamily(3, Gaussian),
    "tanh, fixed std": TanhGaussianFamily(2, FixedStdGaussian),
    "joint": make_family(2, (3, 2), ClippedGaussianFamily, Gaussian),
    "joint, tanh, fixed std": make_family(2, (3, 2), TanhGaussianFamily, FixedStdGaussian),
    "joint branches": make_family(0, (3, 2), ClippedGaussianFamily, Gaussian),
    "flattened": FlattenedFamily((2, 3)),
    "flattened, three branches": FlattenedFamily((2, 2, 2)),
    "hybrid": HybridFamily(2, (3, 2)),
    "hybrid of three branches": HybridFamily(2, (2, 3, 2)),
    "hybrid of branches": HybridFamily(0, (3, 2)),
    "hybrid of continuous dimensions": HybridFamily(2, ()),
}
CLOSED = [name for name in FAMILIES if not name.startswith("hybrid")]
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
every_closed_family = pytest.mark.parametrize("family", [FAMILIES[name] for name in CLOSED], ids=CLOSED)


def draw(family, *shape: int) -> list[torch.Tensor]:
    """Return statistics, those of another policy, a sample, its weight, and a vector like the statistics."""
    rng, n_continuous = np.random.default_rng(0), family.size - len(family.branches)
    statistics, average, vector = (0.7 * random(*shape, family.statistics_size, seed=seed) for seed in (1, 2, 3))
    indices = [torch.from_numpy(rng.integers(n_actions, size=(*shape, 1))) for n_actions in family.branches]
    sample = torch.cat((random(*shape, n_continuous, seed=4), *indices), -1)
    return [statistics, average, sample, random(*shape, seed=5), vector]


def compute_results(policy, average, sample, weight, vector) -> list[torch.Tensor]:
    """Return all results of a policy that have a row for each row of statistics."""
    results = [policy.log_prob(sample), policy.log_ratio(average, sample), policy.entropy]
    if isinstance(policy, ClosedFormDistribution):
        results += [policy.score(sample, weight), policy.entropy_gradient(), policy.fisher_product(vector)]
        results += [policy.kl(average), policy.kl_gradient(average)]
    return results


def assert_rows_are_independent(function, *arguments: torch.Tensor) -> None:
    """Compare the results of a function of [*LEADING, ...] with those of the same function of each row."""
    each = [function(*(argument[t, b] for argument in arguments)) for t in range(2) for b in range(3)]
    for result, *rows in zip(function(*arguments), *each, strict=True):
        torch.testing.assert_close(result, torch.stack(rows).unflatten(0, LEADING))


@every_family
def test_rows_are_independent(family):
    statistics, average, *others = draw(family, *LEADING)

    def compute(statistics, average, *others):
        return [*compute_results(family(statistics), family(average), *others), family.encode(others[0])]

    assert_rows_are_independent(compute, statistics, average, *others)
    if isinstance(family, HybridFamily):
        assert_rows_are_independent(lambda *row: family(row[0]).action_log_probs(row[1]), statistics, others[0])


@every_closed_family
def test_samples_have_the_shape_of_the_statistics(family):
    for shape in ((6, 6), (6, 1), (1,), ()):
        assert family(random(*shape, family.statistics_size)).draw_samples(4).shape == (4, *shape, family.size)


@every_family
@pytest.mark.parametrize("is_cached", [False, True])
def test_selected_rows_are_the_policy_of_these_rows(family, is_cached):
    statistics, average, *others = draw(family, *LEADING)
    policy, average = family(statistics), family(average)
    if is_cached:
        compute_results(policy, average, *others)
    rows = slice(1, None)
    part, selected = policy.select_rows(rows), [other[rows] for other in others]
    assert type(part) is type(policy) and part.statistics.equal(statistics[rows])
    found = compute_results(part, average.select_rows(rows), *selected)
    for result, expected in zip(found, compute_results(policy, average, *others), strict=True):
        close(result, expected[rows])
    if is_cached and "probs" in vars(policy):
        assert part.probs.data_ptr() == policy.probs[rows].data_ptr()


@every_closed_family
def test_gradients_equal_autograd(family):
    statistics, average, sample, weight, vector = draw(family, 5, 4)
    trained, fixed = torch.ones(family.statistics_size), family(statistics)
    if isinstance(getattr(fixed, "parts", [fixed])[0], FixedStdGaussian):
        trained[2:4] = 0
    policy, average = family(statistics), family(average)
    close(policy.score(sample, weight), trained * gradient(lambda x: weight * family(x).log_prob(sample), statistics))
    close(policy.entropy_gradient(), trained * gradient(lambda x: family(x).entropy, statistics))
    close(policy.kl_gradient(average), trained * gradient(lambda x: family(x).kl(average), statistics))
    close(policy.fisher_product(vector), trained * fisher_product(family, statistics, vector))


def columns(executed) -> np.ndarray:
    return torch.cat([part.float() for part in (*executed.continuous, *executed.indices)], -1).numpy()


@every_family
def test_exported_actions_equal_acting(family):
    many = draw(family, 50)[0].float()
    allowed = torch.ones(len(many), sum(family.branches))
    found = family.export_action(many, allowed, MODE)
    assert all(index.dtype == torch.int64 and index.shape == (50, 1) for index in found.indices)
    np.testing.assert_allclose(columns(found), family.to_action(family.mode(many.numpy())), atol=1e-6)

    one = many[:1].expand(DRAWS, -1)
    torch.manual_seed(0)
    sampled = columns(family.export_action(one, allowed[:1].expand(DRAWS, -1), SAMPLE))
    own = family.to_action(family.sample(one.numpy(), np.random.default_rng(1)))
    # The joint distribution of branches and continuous dimensions, too.
    for mine, other in ((sampled, own), (sampled[:, :1] * sampled, own[:, :1] * own)):
        mine, other = np.float64(mine), np.float64(other)
        within_noise(mine.mean(0), other.mean(0), np.sqrt(2) * np.maximum(other.std(0), 0.01))
        within_noise(mine.std(0), other.std(0), np.sqrt(2) * np.maximum(other.std(0), 0.05))


@pytest.mark.parametrize("name", ["joint", "joint branches", "hybrid", "hybrid of branches"])
def test_exported_actions_respect_masks_in_branches_and_continuous_dimensions(name):
    family = FAMILIES[name]
    many, allowed = draw(family, 500)[0].float(), torch.ones(500, 5)
    many[:, -5:] *= 50  # large logits of forbidden actions
    allowed[:, [0, 2, 4]] = 0
    masked = torch.cat((many[:, :-5], many[:, -5:].masked_fill(allowed == 0, MASKED_LOGIT)), -1).numpy()
    found = columns(family.export_action(many, allowed, MODE))
    np.testing.assert_allclose(found, family.to_action(family.mode(masked)), atol=1e-6)
    for selection in (MODE, SAMPLE):
        assert (columns(family.export_action(many, allowed, selection))[:, -2:] == [1, 0]).all()
        free = columns(family.export_action(many, torch.zeros(500, 5), selection))
        assert np.isfinite(free).all() and (free[:, -2:] < [3, 2]).all()


def test_a_critic_reads_continuous_dimensions_and_one_hot_branches_of_each_combination():
    actions = torch.arange(24.0).view(2, 6, 2)
    encoded = FAMILIES["hybrid"].encode_per_combination(actions)
    codes = [[i == 0, i == 1, i == 2, j == 0, j == 1] for i in range(3) for j in range(2)]
    torch.testing.assert_close(encoded, torch.cat((actions, torch.tensor(codes).float().expand(2, 6, 5)), -1))
    continuous = torch.randn(2, 1, 2)
    assert FAMILIES["hybrid of continuous dimensions"].encode_per_combination(continuous) is continuous
