"""The most novel of several actions: its distribution by enumeration and by drawing."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from algorithm.distributions import MASKED_LOGIT, CategoricalFamily, FlattenedFamily
from algorithm.exploration.explorers import NovelAction, compute_best_of_n
from algorithm.specs import ActionSpec
from tests.builders import make_role, make_sac
from tests.exploration.agents import Fixed, step_of
from tests.oracles import softmax

NOVELTY = np.array([0.3, 0.1, 0.3, 0.9, 0.1])
PROBS = np.array([0.1, 0.3, 0.2, 0.25, 0.15])


def enumerate_best_of_n(probs, novelty, n_samples) -> np.ndarray:
    """Return the distribution of the first most novel of n draws, over all sequences of draws."""
    result = np.zeros(len(probs))
    for draws in product(range(len(probs)), repeat=n_samples):
        best = max(draws, key=lambda action: novelty[action])
        result[best] += np.prod([probs[action] for action in draws])
    return result


@pytest.mark.parametrize("n_samples", [1, 2, 3, 5])
def test_the_distribution_is_that_of_all_sequences_of_draws(n_samples):
    expected = enumerate_best_of_n(PROBS, NOVELTY, n_samples)
    found = compute_best_of_n(np.array([PROBS, PROBS[::-1]]), np.array([NOVELTY, NOVELTY[::-1]]), n_samples)
    np.testing.assert_allclose(found, [expected, expected[::-1]], rtol=1e-12)


def test_actions_without_probability_keep_none_and_equal_novelty_changes_nothing():
    probs = np.array([[0.0, 0.4, 0.6], [0.5, 0.0, 0.5]])
    found = compute_best_of_n(probs, np.array([[9.0, 1.0, 2.0], [1.0, 1.0, 1.0]]), 4)
    np.testing.assert_allclose(found, [[0, 0.4**4, 1 - 0.4**4], [0.5, 0, 0.5]])


def test_the_executed_actions_have_the_stored_distribution():
    lanes = 20_000
    explorer, agent = NovelAction(make_role(lanes, actions=5), n_samples=3), Fixed(CategoricalFamily(5), *np.log(PROBS))
    explorer.connect(agent, {"rnd": lambda obs, actions: NOVELTY[actions[..., 0].astype(int)]})
    decision = explorer.act(agent, step_of(range(lanes)), np.zeros((lanes, 2)))
    expected = enumerate_best_of_n(PROBS, NOVELTY, 3)
    np.testing.assert_allclose(softmax(decision.behavior[:2]), [expected] * 2, rtol=1e-5)
    frequencies = np.bincount(decision.raw_action[:, 0].astype(int), minlength=5) / lanes
    np.testing.assert_allclose(frequencies, expected, atol=0.015)
    np.testing.assert_array_equal(decision.action, decision.raw_action)
    np.testing.assert_array_equal(decision.memory, 1)


def test_combinations_are_compared_as_a_whole_and_forbidden_ones_are_never_taken():
    logits = np.zeros(6)
    logits[4] = MASKED_LOGIT
    agent, explorer = (
        Fixed(FlattenedFamily((2, 3)), *logits),
        NovelAction(make_role(spec=ActionSpec(branches=(2, 3))), n_samples=50),
    )
    explorer.connect(agent, {"rnd": lambda obs, actions: 3 * actions[..., 0] - np.abs(actions[..., 1] - 1)})
    decision = explorer.act(agent, step_of(range(4)), np.zeros((4, 0)))
    assert set(map(tuple, decision.raw_action)) <= {(1.0, 0.0), (1.0, 2.0)}  # (1, 1) is the most novel one
    assert (decision.behavior[:, 4] == MASKED_LOGIT).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_novelty_that_is_not_finite_is_not_preferred(bad):
    agent, explorer = Fixed(CategoricalFamily(5), *np.log(PROBS)), NovelAction(make_role(actions=5))
    explorer.connect(agent, {"rnd": lambda obs, actions: np.full(actions.shape[:2], bad)})
    decision = explorer.act(agent, step_of(range(4)), np.zeros((4, 0)))
    np.testing.assert_allclose(softmax(decision.behavior), [PROBS] * 4, rtol=1e-5)


@pytest.mark.parametrize("branches", [(), (3,)])
def test_the_most_novel_sample_is_executed_if_no_density_is_needed(branches):
    lanes = 2000
    role = make_role(lanes, spec=ActionSpec(1, branches))
    agent, explorer = make_sac(role, n_step=1), NovelAction(role, n_samples=4)
    explorer.connect(agent, {"rnd": lambda obs, actions: actions[..., 0]})
    step, memory = step_of(range(lanes)), np.zeros((lanes, 0), np.float32)
    plain, decision = agent.act(step, memory), explorer.act(agent, step, memory)
    np.testing.assert_array_equal(decision.behavior, plain.behavior)
    assert decision.raw_action.shape == plain.raw_action.shape
    # The largest of four draws is above the median of one draw with the probability 1 - 1/16.
    assert (decision.raw_action[:, 0] > np.median(plain.raw_action[:, 0])).mean() == pytest.approx(15 / 16, abs=0.02)
