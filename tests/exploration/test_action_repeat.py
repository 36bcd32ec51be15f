"""Repeated actions: the stored statistics, the first step of an episode, forbidden actions."""

from __future__ import annotations

import numpy as np
import pytest

from algorithm.distributions.categorical import CategoricalFamily
from algorithm.distributions.distribution import MASKED_LOGIT
from algorithm.distributions.joint import JointFamily
from algorithm.exploration.explorers import ActionRepeat
from algorithm.specs import ActionSpec
from tests.builders import make_role
from tests.exploration.agents import Fixed, step_of
from tests.oracles import softmax


def test_a_lane_repeats_its_action_as_often_as_its_level_says():
    lanes, levels = 20_000, [0.7, 0.7]
    explorer = ActionRepeat(make_role(lanes), levels)
    agent, memory = Fixed(CategoricalFamily(3), 0.0, 1.0, 2.0), np.zeros((lanes, 2))
    before = explorer.act(agent, step_of(range(lanes), first=True), memory)
    np.testing.assert_allclose(softmax(before.behavior), softmax([[0, 1, 2]] * lanes), rtol=1e-5)
    after = explorer.act(agent, step_of(range(lanes)), memory)
    chance = (0.3 * softmax([0, 1, 2]) + 0.7 / 3)[before.raw_action[:, 0].astype(int)]
    assert (after.raw_action == before.raw_action).mean() == pytest.approx((0.7 + 0.3 * chance).mean(), abs=0.01)
    np.testing.assert_array_equal(after.memory, 1)
    rows = np.arange(lanes)
    stored = softmax(after.behavior)[rows, before.raw_action[:, 0].astype(int)]
    np.testing.assert_allclose(stored, 0.7 + 0.3 * chance, rtol=1e-5)


def test_an_episode_starts_without_repetition_and_lanes_are_independent():
    explorer = ActionRepeat(make_role(3, actions=2), [0.0, 0.9])
    agent = Fixed(CategoricalFamily(2), 0.0, 0.0)
    explorer.act(agent, step_of([0, 1, 2], first=True), np.zeros((3, 0)))
    explorer.previous[:] = 1
    np.testing.assert_allclose(
        softmax(explorer.act(agent, step_of([0, 2]), np.zeros((2, 0))).behavior),
        [[0.5, 0.5], [0.05, 0.95]],
        rtol=1e-5,
    )
    explorer.previous[:] = 1
    first = explorer.act(agent, step_of([2], first=True), np.zeros((1, 0)))
    np.testing.assert_allclose(softmax(first.behavior), [[0.5, 0.5]])


def test_every_branch_is_repeated_separately():
    explorer = ActionRepeat(make_role(1, spec=ActionSpec(branches=(2, 3))), [0.5, 0.5])
    agent = Fixed(JointFamily((CategoricalFamily(2), CategoricalFamily(3))), 0.0, 0.0, 0.0, 0.0, 0.0)
    explorer.previous[:] = [1, 2]
    behavior = explorer.act(agent, step_of([0]), np.zeros((1, 0))).behavior
    np.testing.assert_allclose(softmax(behavior[:, :2]), [[0.25, 0.75]], rtol=1e-5)
    np.testing.assert_allclose(softmax(behavior[:, 2:]), [[1 / 6, 1 / 6, 4 / 6]], rtol=1e-5)


def test_a_forbidden_action_is_not_repeated():
    logits = np.array([[0.0, MASKED_LOGIT, 1.0], [0.0, 0.0, MASKED_LOGIT]], np.float32)
    mixed = CategoricalFamily(3).with_repetition(logits, np.array([[1], [0]]), np.array([0.9, 0.9], np.float32))
    np.testing.assert_allclose(softmax(mixed[0]), softmax(logits[0]), atol=1e-6)
    np.testing.assert_allclose(softmax(mixed[1]), [0.95, 0.05, 0], atol=1e-6)
    assert (mixed[[0, 1], [1, 2]] == MASKED_LOGIT).all()


def test_the_mean_durations_of_actions_are_a_geometric_sequence_from_the_first_lane_to_the_last():
    explorer = ActionRepeat(make_role(4, actions=2), [0.5, 0.9375])
    np.testing.assert_allclose(1 / (1 - explorer.lane_levels), [2, 4, 8, 16], rtol=1e-6)


def test_added_lanes_have_levels_and_no_action_to_repeat_yet():
    explorer = ActionRepeat(make_role(2, actions=2), [0.0, 0.8])
    explorer.grow(4, 2)
    np.testing.assert_allclose(1 / (1 - explorer.lane_levels), [1, 5, 5**0.5, 5**0.25], rtol=1e-6)
    assert explorer.previous.shape == (4, 1)
