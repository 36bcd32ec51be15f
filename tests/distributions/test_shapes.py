"""Distributions over any leading axes: each row is independent of the others."""

import pytest
import torch

from algorithm.distributions import ClippedGaussianFamily, FlattenedFamily, Gaussian, HybridFamily, make_family

LEADING = (2, 3)  # rows and columns; their numbers differ from the sizes of an action
FAMILIES = {
    "branch": make_family(0, (3,), ClippedGaussianFamily, Gaussian),
    "joint": make_family(2, (3, 2), ClippedGaussianFamily, Gaussian),
    "flattened": FlattenedFamily((2, 3)),
    "flattened, three branches": FlattenedFamily((2, 2, 2)),
    "hybrid": HybridFamily(2, (3, 2)),
    "hybrid of branches": HybridFamily(0, (3, 2)),
    "hybrid of continuous dimensions": HybridFamily(2, ()),
}


def draw(family):
    """Return statistics and a sample of each row [*LEADING, ...]."""
    torch.manual_seed(0)
    statistics = torch.randn(*LEADING, family.statistics_size)
    n_continuous = family.size - len(family.branches)
    indices = [torch.randint(n_actions, (*LEADING, 1)).float() for n_actions in family.branches]
    return statistics, torch.cat((torch.randn(*LEADING, n_continuous), *indices), -1)


def assert_rows_are_independent(function, *arguments):
    """Compare a function of [*LEADING, ...] with the same function of each row."""
    results = function(*arguments)
    each = [function(*(argument[t, b] for argument in arguments)) for t in range(2) for b in range(3)]
    if isinstance(results, torch.Tensor):
        results, each = (results,), [(row,) for row in each]
    for result, *rows in zip(results, *each, strict=True):
        torch.testing.assert_close(result, torch.stack(rows).unflatten(0, LEADING))


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_encoded_actions_and_log_probabilities_of_rows(family):
    statistics, sample = draw(family)
    assert_rows_are_independent(family.encode, sample)
    assert_rows_are_independent(lambda statistics, sample: family(statistics).log_prob(sample), statistics, sample)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name.startswith("hybrid")])
def test_log_probabilities_of_executed_actions_of_rows(name):
    family = FAMILIES[name]
    assert_rows_are_independent(lambda *row: family(row[0]).action_log_probs(row[1]), *draw(family))


@pytest.mark.parametrize("computed", [(), ("log_probs",), ("log_probs", "probs")], ids=str)
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "joint"])
def test_selected_rows_have_the_same_probabilities(name, computed):
    family, (statistics, _) = FAMILIES[name], draw(FAMILIES[name])
    distribution = family(statistics)
    for attribute in computed:
        getattr(distribution, attribute)
    selected, expected = distribution.select_rows(slice(-1)), family(statistics[:-1])
    torch.testing.assert_close(selected.log_probs, expected.log_probs)
    torch.testing.assert_close(selected.probs, expected.probs)


def test_a_critic_reads_continuous_dimensions_and_one_hot_branches_of_each_combination():
    actions = torch.arange(24.0).view(2, 6, 2)
    encoded = FAMILIES["hybrid"].encode_per_combination(actions)
    codes = [[i == 0, i == 1, i == 2, j == 0, j == 1] for i in range(3) for j in range(2)]
    torch.testing.assert_close(encoded, torch.cat((actions, torch.tensor(codes).float().expand(2, 6, 5)), -1))
    continuous = torch.randn(2, 1, 2)
    assert FAMILIES["hybrid of continuous dimensions"].encode_per_combination(continuous) is continuous
