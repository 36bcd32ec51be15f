"""Repetition of actions and of noise: lengths, held noise, episodes, independent lanes, stored statistics."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from algorithm.distributions import ClippedGaussianFamily, Gaussian, HybridFamily, make_family
from algorithm.distributions.categorical import CategoricalFamily
from algorithm.distributions.joint import JointFamily
from algorithm.exploration.explorers import ActionRepeat, NoiseRepeat
from algorithm.rollout import Decision
from algorithm.specs import ActionSpec
from tests.builders import make_role, make_sac
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
        softmax(explorer.act(agent, step_of([0, 2]), np.zeros((2, 0))).behavior), [[0.5, 0.5], [0.05, 0.95]], rtol=1e-5
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


def test_the_mean_durations_of_actions_are_a_geometric_sequence_from_the_first_lane_to_the_last():
    explorer = ActionRepeat(make_role(4, actions=2), [0.5, 0.9375])
    np.testing.assert_allclose(1 / (1 - explorer.lane_levels), [2, 4, 8, 16], rtol=1e-6)


def test_added_lanes_have_levels_and_no_action_to_repeat_yet():
    explorer = ActionRepeat(make_role(2, actions=2), [0.0, 0.8])
    explorer.grow(4, 2)
    np.testing.assert_allclose(1 / (1 - explorer.lane_levels), [1, 5, 5**0.5, 5**0.25], rtol=1e-6)
    assert explorer.previous.shape == (4, 1)


ROLE = make_role(spec=ActionSpec(2))
CHI_SQUARED_15 = 37.7  # 0.999 quantile of the chi-squared distribution with 15 degrees of freedom
ROUNDING = 1e-9  # largest difference of equal noise that is computed from different samples in float64


class Varying:
    """An agent whose statistics are random numbers in float64, different at every step."""

    def __init__(self, family, seed: int = 0):
        self.family, self.rng = family, np.random.default_rng(seed)
        self.statistics_rng = np.random.default_rng(seed + 1)

    def act(self, step, memory):
        behavior = 0.5 * self.statistics_rng.standard_normal((len(step.lane), self.family.statistics_size))
        return Decision(raw_action=None, action=None, behavior=behavior, memory=memory + 1)


def make_gaussian(continuous: int = 2):
    return make_family(continuous, (), ClippedGaussianFamily, Gaussian)


def act(explorer, agent, step) -> Decision:
    return explorer.act(agent, step, np.zeros((len(step.lane), 1), np.float32))


def find_noise(decision: Decision, continuous: int = 2) -> np.ndarray:
    """Return (sample - mean) / std [n, continuous] of a policy without branches."""
    mean, log_std = np.split(decision.behavior, 2, -1)
    return (decision.raw_action - mean) / np.exp(log_std)


def record(explorer, agent, lanes: int, ticks: int, first_ticks=(0,)) -> np.ndarray:
    """Return the noise of every tick [ticks, lanes, 2]; episodes start at `first_ticks`."""
    return np.stack(
        [find_noise(act(explorer, agent, step_of(range(lanes), tick in first_ticks))) for tick in range(ticks)]
    )


def measure_lengths(noise: np.ndarray) -> np.ndarray:
    """Return the numbers of ticks between changes of the noise [ticks] of one lane."""
    changes = np.flatnonzero(np.abs(np.diff(noise)) > ROUNDING) + 1
    return np.diff(np.concatenate(([0], changes)))


def test_the_lengths_follow_the_truncated_zeta_distribution():
    noise = record(NoiseRepeat(make_role(50, spec=ActionSpec(2))), Varying(make_gaussian()), 50, 600)
    # The first 200 lengths of each lane: the lengths that end within a fixed time are too short.
    lengths = np.concatenate([measure_lengths(noise[:, lane, 0])[:200] for lane in range(50)])
    assert len(lengths) == 50 * 200
    probs = 1 / np.arange(1, 17) ** 2
    expected = len(lengths) * probs / probs.sum()
    observed = np.bincount(lengths, minlength=17)[1:]
    assert observed.sum() == len(lengths)  # none above 16
    assert ((observed - expected) ** 2 / expected).sum() < CHI_SQUARED_15


def test_the_noise_is_standard_normal_and_held_in_all_dimensions_at_once():
    noise = record(NoiseRepeat(make_role(2000, spec=ActionSpec(2))), Varying(make_gaussian()), 2000, 12)
    np.testing.assert_allclose(noise[5].mean(0), 0, atol=0.1)
    np.testing.assert_allclose(noise[5].std(0), 1, atol=0.06)
    is_held = np.abs(np.diff(noise, axis=0)) < ROUNDING
    np.testing.assert_array_equal(is_held[..., 0], is_held[..., 1])
    assert 0.3 < is_held.mean() < 0.7


def test_lanes_are_independent():
    noise = record(NoiseRepeat(make_role(300, spec=ActionSpec(2))), Varying(make_gaussian()), 300, 200)
    correlation = np.corrcoef(noise[..., 0].T)  # of lanes, over 200 ticks
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).mean() < 0.15
    is_held = np.abs(np.diff(noise[..., 0], axis=0)) < ROUNDING
    assert (is_held.any(1) & ~is_held.all(1)).all()  # lanes change at different ticks


def test_the_start_of_an_episode_draws_again_in_its_lane_only():
    explorer, agent = NoiseRepeat(make_role(3, spec=ActionSpec(2))), Varying(make_gaussian())
    before = find_noise(act(explorer, agent, step_of(range(3), True)))
    explorer.remaining[:] = 9
    after = find_noise(act(explorer, agent, step_of(range(3), [False, True, False])))
    np.testing.assert_allclose(after[[0, 2]], before[[0, 2]], atol=ROUNDING)
    assert (np.abs(after[1] - before[1]) > ROUNDING).all()
    np.testing.assert_array_equal(explorer.remaining[[0, 2]], 8)


def test_only_lanes_that_await_an_action_count_a_step():
    explorer, agent = NoiseRepeat(ROLE), Varying(make_gaussian())
    before = find_noise(act(explorer, agent, step_of(range(4), True)))
    explorer.remaining[:] = 2
    for _ in range(2):
        after = find_noise(act(explorer, agent, step_of([1, 3])))
        np.testing.assert_allclose(after, before[[1, 3]], atol=ROUNDING)
    np.testing.assert_array_equal(explorer.remaining, [2, 0, 2, 0])
    assert (np.abs(find_noise(act(explorer, agent, step_of([3]))) - before[3]) > ROUNDING).all()


def test_one_step_is_the_policy():
    explorer, agent = NoiseRepeat(make_role(5, spec=ActionSpec(2)), 1), Varying(make_gaussian())
    for _ in range(20):
        act(explorer, agent, step_of(range(5)))
        np.testing.assert_array_equal(explorer.remaining, 0)


@pytest.mark.parametrize("branches", [(), (3, 2)])
def test_the_stored_density_is_that_of_the_policy(branches):
    role = make_role(6, spec=ActionSpec(2, branches))
    agent, explorer = make_sac(role, n_step=1), NoiseRepeat(role)
    explorer.connect(agent, {})
    step, memory = step_of(range(6), True), np.zeros((6, 0), np.float32)
    for _ in range(5):
        policy, decision = agent.act(step, memory), explorer.act(agent, step, memory)
        np.testing.assert_array_equal(decision.behavior, policy.behavior)
        np.testing.assert_array_equal(decision.action, agent.family.to_action(decision.raw_action))
        np.testing.assert_array_equal(decision.memory, policy.memory)
        # log N(sample; mean, std) = sum of log N(noise; 0, 1) - log std
        statistics = torch.from_numpy(decision.behavior)
        sample = torch.from_numpy(decision.raw_action)
        indices = agent.family.find_combination(sample).squeeze(-1).numpy() if branches else np.zeros(6, int)
        width = agent.family.n_combinations
        log_std = decision.behavior[:, : 4 * width].reshape(6, 2, width, 2)[np.arange(6), 1, indices]
        expected = (-0.5 * explorer.noise**2 - 0.5 * np.log(2 * np.pi) - log_std).sum(-1)
        found = agent.family(statistics).log_prob(sample)
        if branches:
            found = found - agent.family(statistics).log_probs[torch.arange(6), torch.from_numpy(indices)]
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
        step = step_of(range(6))


def test_branches_are_drawn_at_each_step():
    role = make_role(1, spec=ActionSpec(1, (2,)))
    explorer, family = NoiseRepeat(role), HybridFamily(1, (2,))
    agent = Varying(family)
    act(explorer, agent, step_of([0], True))
    indices = []
    for _ in range(40):
        explorer.remaining[:] = 5
        indices.append(act(explorer, agent, step_of([0])).raw_action[0, 1])
    assert 5 < sum(indices) < 35


def test_the_state_is_restored():
    explorer, agent = NoiseRepeat(make_role(7, spec=ActionSpec(2))), Varying(make_gaussian())
    record(explorer, agent, 7, 5)
    other = NoiseRepeat(make_role(7, spec=ActionSpec(2)))
    other.restore(json.loads(json.dumps(explorer.state())))
    np.testing.assert_array_equal(other.noise, explorer.noise)
    np.testing.assert_array_equal(other.remaining, explorer.remaining)
    assert (other.noise.dtype, other.remaining.dtype) == (explorer.noise.dtype, explorer.remaining.dtype)


def test_added_lanes_draw_noise_and_others_keep_theirs():
    explorer, agent = NoiseRepeat(make_role(2, spec=ActionSpec(2))), Varying(make_gaussian())
    before = find_noise(act(explorer, agent, step_of([0, 1], True)))
    explorer.remaining[:] = 3
    explorer.grow(4, 2)
    after = find_noise(act(explorer, agent, step_of(range(4))))
    np.testing.assert_allclose(after[:2], before, atol=ROUNDING)
    assert (after[2:] != 0).all()
    explorer.select_lanes([3, 1])
    np.testing.assert_array_equal(explorer.noise.shape, (2, 2))
    np.testing.assert_allclose(explorer.noise[1], before[1], atol=ROUNDING)
