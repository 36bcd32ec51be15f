"""The promises of every family, against torch's distributions of its parts, autograd, and acting."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
import pytest
import torch
from torch.distributions import Categorical as TheirCategorical
from torch.distributions import kl_divergence

from algorithm.distributions import (
    MASKED_LOGIT,
    MODE,
    SAMPLE,
    Categorical,
    CategoricalFamily,
    ClippedGaussianFamily,
    ClosedFormDistribution,
    FixedStdGaussian,
    FlattenedFamily,
    Gaussian,
    HybridFamily,
    JointDistribution,
    TanhGaussianFamily,
    make_family,
    make_flattened_family,
)
from tests.distributions.oracles import DRAWS, fisher_product, gradient, list_parts, random, within_noise
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
    "flattened, a single action": FlattenedFamily((4, 1, 3)),
    "hybrid": HybridFamily(2, (3, 2)),
    "hybrid of three branches": HybridFamily(2, (2, 3, 2)),
    "hybrid of branches": HybridFamily(0, (3, 2)),
    "hybrid of continuous dimensions": HybridFamily(2, ()),
}
CLOSED = [name for name in FAMILIES if not name.startswith("hybrid")]
BOUNDS = {name: np.tanh if "tanh" in name or "hybrid" in name else lambda x: np.clip(x, -1, 1) for name in FAMILIES}
DISCRETE = [name for name, family in FAMILIES.items() if family.size == len(family.branches)]
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
every_closed_family = pytest.mark.parametrize("family", [FAMILIES[name] for name in CLOSED], ids=CLOSED)


def count_continuous(family) -> int:
    return family.size - len(family.branches)


def draw(family, *shape: int) -> list[torch.Tensor]:
    """Return statistics, those of another policy, a sample, its weight, and a vector like the statistics."""
    rng, n_continuous = np.random.default_rng(0), count_continuous(family)
    statistics, average, vector = (0.7 * random(*shape, family.statistics_size, seed=seed) for seed in (1, 2, 3))
    indices = [torch.from_numpy(rng.integers(n_actions, size=(*shape, 1))) for n_actions in family.branches]
    sample = torch.cat((random(*shape, n_continuous, seed=4), *indices), -1)
    return [statistics, average, sample, random(*shape, seed=5), vector]


def compute_results(policy, average, sample, weight, vector) -> list[torch.Tensor]:
    """Return all results of a policy that have a row for each row of statistics."""
    results = [policy.log_prob(sample), policy.log_ratio(average, sample)]
    if isinstance(policy, ClosedFormDistribution):
        results += [policy.score(sample, weight), policy.entropy_gradient(), policy.fisher_product(vector)]
        results += [policy.entropy, policy.kl(average), policy.kl_gradient(average)]
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


def forbid_actions(family, statistics: torch.Tensor) -> torch.Tensor:
    """Return statistics in float32; the first action of each branch of several, or combination, is forbidden."""
    statistics = statistics.float()
    sizes = [family.statistics_size] if isinstance(family, FlattenedFamily) else family.branches
    for start, size in zip(accumulate(reversed(sizes)), reversed(sizes), strict=True):
        if size > 2:
            statistics[..., -start] = MASKED_LOGIT
    return statistics


@every_closed_family
def test_values_are_sums_of_torchs_over_the_parts(family):
    statistics, average, sample, *_ = draw(family, 5, 4)
    policy, other = family(statistics), family(average)
    parts, others = (list_parts(family, each, sample) for each in (statistics, average))
    log_prob, other_log_prob = (sum(part.log_prob(value) for part, value in each) for each in (parts, others))
    for stored in (sample, sample.long()) if isinstance(family, CategoricalFamily) else (sample,):
        close(policy.log_prob(stored), log_prob)
        close(policy.log_ratio(other, stored), log_prob - other_log_prob)
    close(policy.entropy, sum(part.entropy() for part, _ in parts))
    close(policy.kl(other), sum(kl_divergence(one[0], part[0]) for one, part in zip(others, parts, strict=True)))
    assert policy.kl(family(statistics)).eq(0).all() and policy.kl_gradient(policy).eq(0).all()


def in_numpy(family, rows):
    return family.sample(np.tile(rows, (DRAWS, 1)), np.random.default_rng(0)).reshape(DRAWS, len(rows), -1)


def in_torch(family, rows):
    torch.manual_seed(0)
    return family(torch.from_numpy(rows)).draw_samples(DRAWS).numpy()


@every_closed_family
@pytest.mark.parametrize("take", [in_numpy, in_torch])
def test_samples_follow_each_part_of_each_row_independently(family, take):
    rows = forbid_actions(family, draw(family, 2)[0])
    sample = take(family, rows.numpy())
    assert sample.shape == (DRAWS, 2, family.size) and sample.dtype == np.float32
    columns = []
    for part, value in list_parts(family, rows, torch.from_numpy(sample)):
        value = np.float64(value)
        if isinstance(part, TheirCategorical):
            probs = part.probs.numpy()
            frequency = np.stack([(value == index).mean(0) for index in range(probs.shape[1])], -1)
            within_noise(frequency, probs, np.sqrt(probs * (1 - probs)))
            columns.append(value)
        else:
            mean, std = part.mean.numpy(), part.stddev.numpy()
            within_noise(value.mean(0), mean, std)
            within_noise(((value - mean) ** 2).mean(0), std**2, np.sqrt(2) * std**2)
            columns += np.moveaxis(value, -1, 0).tolist()
    columns = np.concatenate(columns, -1)
    standard = (columns - columns.mean(0)) / columns.std(0)
    within_noise(standard.T @ standard / DRAWS, np.eye(columns.shape[1]), 1)


@every_closed_family
def test_the_mode_has_the_mean_and_the_most_probable_index_of_each_part(family):
    statistics = draw(family, 40)[0].float()
    mode = family.mode(statistics.numpy())
    assert mode.dtype == np.float32 and not np.shares_memory(mode, statistics.numpy())
    assert (mode[:, count_continuous(family) :] < np.array(family.branches)).all()
    for part, value in list_parts(family, statistics, torch.from_numpy(mode)):
        assert value.equal(part.probs.argmax(-1).to(value) if isinstance(part, TheirCategorical) else part.mean)


@pytest.mark.parametrize("name", FAMILIES)
def test_actions_are_bounded_samples_and_critics_read_their_one_hot_indices(name):
    family, n_continuous = FAMILIES[name], count_continuous(FAMILIES[name])
    sample = (3 * draw(family, 40)[2]).float()
    sample[:, n_continuous:] /= 3
    action = family.to_action(sample.numpy())
    assert action.dtype == np.float32
    np.testing.assert_array_equal(action[:, :n_continuous], BOUNDS[name](sample[:, :n_continuous].numpy()))
    np.testing.assert_array_equal(action[:, n_continuous:], sample[:, n_continuous:])
    encoded = family.encode(sample)
    assert encoded.dtype == torch.float32 and encoded.shape == (40, family.encoded_size)
    indices = zip(family.branches, sample[:, n_continuous:].long().unbind(-1), strict=True)
    codes = [torch.eye(count)[index] for count, index in indices]
    close(encoded, torch.cat((torch.from_numpy(action[:, :n_continuous]), *codes), -1), atol=1e-6)
    assert family.dimensions == (1 if isinstance(family, FlattenedFamily) else family.size)


@every_family
def test_noise_increases_each_std_and_mixes_each_branch_with_its_allowed_actions(family):
    statistics, level = forbid_actions(family, draw(family, 3)[0]).numpy(), np.float64([0.4, 0.0, 1.0])
    before, none = statistics.copy(), torch.zeros(3, family.size)
    with np.errstate(all="raise", under="ignore"):
        noisy = family.with_noise(statistics, level)
    assert noisy.dtype == np.float32
    np.testing.assert_array_equal(statistics, before)
    np.testing.assert_array_equal(noisy == MASKED_LOGIT, statistics == MASKED_LOGIT)
    parts, level = (list_parts(family, torch.from_numpy(each), none) for each in (noisy, statistics)), level[:, None]
    for (mixed, _), (part, _) in zip(*parts, strict=True):
        if isinstance(part, TheirCategorical):
            probs, allowed = part.probs.numpy(), part.probs.numpy() > 0
            expected = (1 - level) * probs + level * allowed / allowed.sum(-1, keepdims=True)
            np.testing.assert_allclose(mixed.probs, expected, atol=1e-6)
        else:
            np.testing.assert_array_equal(mixed.mean, part.mean)
            np.testing.assert_allclose(mixed.stddev, np.hypot(part.stddev.numpy(), level), rtol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_repetition_mixes_each_part_with_the_action_of_a_sample_unless_it_is_forbidden(name):
    family, level = FAMILIES[name], np.linspace(0.95, 0, 8, dtype=np.float32)
    statistics, sample = forbid_actions(family, draw(family, 8)[0]).numpy(), draw(family, 8)[2].float()
    if name not in DISCRETE:
        with pytest.raises(TypeError, match=r"^\w+Family has continuous actions, which have no probability of repet"):
            family.with_repetition(statistics, sample.numpy(), level)
        return
    sample[0], before = 0, statistics.copy()
    with np.errstate(all="raise", under="ignore"):
        mixed = family.with_repetition(statistics, sample.numpy(), level)
    assert mixed.dtype == np.float32
    np.testing.assert_array_equal(statistics, before)
    np.testing.assert_array_equal(mixed == MASKED_LOGIT, statistics == MASKED_LOGIT)
    parts = [list_parts(family, torch.from_numpy(each), sample) for each in (mixed, statistics)]
    np.testing.assert_allclose(np.exp(mixed).sum(-1), len(parts[0]), atol=1e-5)  # log-probabilities
    for (repeating, _), (part, index) in zip(*parts, strict=True):
        taken = np.eye(part.probs.shape[1])[index.long()]
        p = level[:, None] * (part.probs.numpy() * taken).sum(-1, keepdims=True).astype(bool)
        np.testing.assert_allclose(repeating.probs, (1 - p) * part.probs.numpy() + p * taken, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in CLOSED if FAMILIES[name].branches])
def test_forbidden_actions_have_no_effect_and_results_are_finite(name):
    family = FAMILIES[name]
    given, other, _, weight, vector = (x.float() for x in draw(family, 3))
    statistics = forbid_actions(family, given)
    statistics[2, 2 * count_continuous(family) :] = MASKED_LOGIT  # all actions, which has the effect of none forbidden
    policy, same_mask = family(statistics), family(torch.where(statistics == MASKED_LOGIT, statistics, other))
    sample = policy.draw_samples(1)[0]
    for average in (policy, same_mask, family(other)):
        for value in compute_results(policy, average, sample, weight, vector):
            assert value.isfinite().all()
    forbidden = (statistics == MASKED_LOGIT)[:2]
    assert policy.score(sample, weight)[:2][forbidden].eq(0).all()
    assert policy.fisher_product(vector)[:2][forbidden].eq(0).all()
    assert (policy.kl(same_mask)[:2].abs() < 100).all()  # actions that are forbidden in both have no effect


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


@pytest.mark.parametrize("name", ["clipped", "joint", "hybrid", "hybrid of continuous dimensions"])
def test_given_noise_replaces_drawn_noise(name):
    family, n_continuous = FAMILIES[name], count_continuous(FAMILIES[name])
    statistics = draw(family, 50)[0].float().numpy()
    noise = np.random.default_rng(1).standard_normal((50, n_continuous), np.float32)
    sample = family.sample(statistics, np.random.default_rng(0), noise)
    assert sample.dtype == np.float32 and sample.shape == (50, family.size)
    # Samples are linear in the noise, given the branches.
    twice, zero = (family.sample(statistics, np.random.default_rng(0), factor * noise) for factor in (2, 0))
    np.testing.assert_array_equal(twice[:, n_continuous:], sample[:, n_continuous:])
    np.testing.assert_allclose(twice + zero, 2 * sample, atol=1e-5)
    assert not np.allclose(twice, zero)
    if not family.branches:
        np.testing.assert_array_equal(zero, family.mode(statistics))
        drawn = np.random.default_rng(0).standard_normal((50, n_continuous), np.float32)
        expected = family.sample(statistics, np.random.default_rng(2), drawn)
        np.testing.assert_array_equal(family.sample(statistics, np.random.default_rng(0)), expected)


def test_a_single_kind_of_action_has_its_own_family():
    for make in (make_flattened_family, lambda branches: make_family(0, branches, ClippedGaussianFamily, Gaussian)):
        branch = make((513,))
        assert type(branch) is CategoricalFamily and type(branch(random(2, 513))) is Categorical
    assert type(make_flattened_family((2, 3))) is FlattenedFamily
    for bounded in (ClippedGaussianFamily, TanhGaussianFamily):
        family = make_family(3, (), bounded, FixedStdGaussian)
        assert type(family) is bounded and type(family(random(2, 6))) is FixedStdGaussian
    assert type(make_family(0, (2, 2, 5), ClippedGaussianFamily, Gaussian)(random(2, 9))) is JointDistribution


@pytest.mark.parametrize("make", [FlattenedFamily, make_flattened_family, lambda branches: HybridFamily(1, branches)])
def test_more_than_512_combinations_are_refused(make):
    assert math.prod(make((2,) * 9).branches) == 512
    with pytest.raises(ValueError, match=r"are 514 combinations of discrete branches \[2, 257\].*at most 512 are supp"):
        make((2, 257))


def test_an_empty_action_raises():
    for make in (lambda: make_family(0, (), ClippedGaussianFamily, Gaussian), lambda: HybridFamily(0, ())):
        with pytest.raises(ValueError, match="at least one"):
            make()


@every_family
def test_samples_of_an_executed_action_execute_it(family):
    statistics, _, sample, *_ = draw(family, 7)
    action = family.to_action(sample.numpy().astype(np.float32))
    again = family.to_action(family.from_action(action))
    np.testing.assert_allclose(again, action, atol=2e-3)
    limits = np.ones_like(action)
    limits[:, count_continuous(family) :] = 0
    assert np.isfinite(family.from_action(limits)).all()


@every_family
def test_the_player_of_a_sample_selects_it_almost_certainly(family):
    """The ratio of any policy to it is then at most about 1, for Gaussians of the same standard deviation."""
    statistics, _, sample, *_ = draw(family, 50)
    player = family(family.concentrate(statistics, sample.to(statistics)))
    n_continuous = count_continuous(family)
    assert (family(statistics).log_ratio(player, sample.to(statistics)) < 1e-2).all()
    mode = family.mode(player.statistics.numpy())
    np.testing.assert_allclose(mode[:, n_continuous:], sample[:, n_continuous:])
    np.testing.assert_allclose(mode[:, :n_continuous], sample[:, :n_continuous], atol=1e-6)


@pytest.mark.parametrize("family", [FAMILIES[name] for name in DISCRETE], ids=DISCRETE)
def test_the_player_of_a_sample_takes_no_forbidden_action(family):
    statistics, _, sample, *_ = draw(family, 20)
    first = torch.zeros_like(sample)
    statistics[:, family.statistics_size - 1] = MASKED_LOGIT  # the last action of the last branch, or combination
    assert (family.concentrate(statistics, first.to(statistics))[:, -1] < MASKED_LOGIT / 2).all()
