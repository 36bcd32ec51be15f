"""The raw actions that are stored, and the actions that environments receive."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from algorithm.adapters.gym import GymAdapter
from algorithm.networks import Blueprint
from algorithm.replay import Replay
from algorithm.training.actor import Actor
from algorithm.training.learner import Learner
from tests.adapters.configs import config
from tests.adapters.spaced import Sampling
from tests.builders import make_acer, update
from tests.doubles import collect_ticks, join_lanes, make_components
from tests.guessing import SPACES

LANES, CHUNK, TICKS = 3, 4, 80
CLIPPED, SQUASHED = {"tanh_squash": False}, {"tanh_squash": True}
BOUNDED = {"clipped": (CLIPPED, lambda sample: np.clip(sample, -1, 1)), "squashed": (SQUASHED, np.tanh)}


class Recording(Sampling):
    """An environment that records the actions it receives."""

    def __init__(self, action_space, render_mode=None):
        super().__init__(spaces.Box(0, 1, (2,)), action_space, render_mode=render_mode)
        self.taken = []

    def step(self, action):
        self.taken.append(action)
        return super().step(action)


def collect(space, means=0.0, **changes):
    """Return the stored raw actions [n, size] of all lanes, the actions of their environments, and all rollouts."""
    adapter = GymAdapter(config(Recording, LANES, {"action_space": space, "vectorization_mode": "sync"}))
    agent = make_acer(adapter.roles["agent"], Blueprint(), rollout_length=CHUNK, **changes)
    with torch.no_grad():
        agent.policy.heads.linear.bias[: adapter.roles["agent"].action_spec.continuous] = means
    actor = Actor(make_components(adapter, agent), seed=0)
    rollouts = [rollout for _, rollout in collect_ticks(actor, TICKS)]
    assert adapter.restarts == 0
    stored, taken = [], []
    for lane, record in join_lanes(rollouts).items():
        stored.append(record.raw_action[record.valid])  # without bootstrap rows, which are not executed
        taken += adapter.env.envs[lane].unwrapped.taken[: len(stored[-1])]
    return np.concatenate(stored), taken, rollouts


def scaled(box, numbers):
    """Return values from -1 to 1, scaled to the range of a box."""
    return box.low + (numbers + 1) / 2 * (box.high - box.low)


@pytest.mark.parametrize(("changes", "bounded"), BOUNDED.values(), ids=BOUNDED)
def test_continuous_actions_are_stored_as_sampled_and_clipped_when_executed(changes, bounded):
    box = SPACES["box"]
    stored, taken, _ = collect(box, std_init=1.5, **changes)
    assert (np.abs(stored) > 1).mean() > 0.3
    np.testing.assert_allclose(np.stack(taken), scaled(box, bounded(stored)), rtol=0, atol=1e-5)
    at_a_bound = np.isin(np.stack(taken), (box.low, box.high)).mean()
    assert at_a_bound > 0.3 if changes is CLIPPED else at_a_bound == 0


@pytest.mark.parametrize("kind", ["discrete", "multi-discrete", "multi-binary"])
def test_discrete_actions_are_stored_as_indices_and_executed_as_values_of_the_environment(kind):
    space = SPACES[kind]
    stored, taken, _ = collect(space)
    sent = np.array(taken).reshape(len(stored), -1)
    np.testing.assert_array_equal(sent, stored + (space.start if kind == "discrete" else 0))
    assert sent.dtype == space.dtype
    assert all(len(np.unique(column)) > 1 for column in stored.T)


@pytest.mark.parametrize(("changes", "bounded"), BOUNDED.values(), ids=BOUNDED)
def test_a_hybrid_action_is_executed_in_the_order_of_the_environment(changes, bounded):
    gear, wheel = SPACES["dict"]["gear"], SPACES["dict"]["wheel"]
    stored, taken, _ = collect(SPACES["dict"], std_init=1.5, **changes)
    assert (np.abs(stored[:, :2]) > 1).mean() > 0.3
    got = np.stack([action["wheel"] for action in taken])
    np.testing.assert_allclose(got, scaled(wheel, bounded(stored[:, :2])), rtol=0, atol=1e-5)
    np.testing.assert_array_equal([action["gear"] for action in taken], stored[:, 2] + gear.start)


def test_a_sample_outside_of_the_bounds_reaches_the_loss_unclipped(monkeypatch):
    box = SPACES["box"]
    stored, taken, rollouts = collect(box, means=1.9, std_init=0.01)
    np.testing.assert_allclose(stored, 1.9, rtol=0, atol=0.05)
    np.testing.assert_array_equal(np.stack(taken), np.broadcast_to(box.high, stored.shape))

    replay = Replay(capacity=400, lanes=LANES, chunk=CHUNK, length=CHUNK, rng=np.random.default_rng(0))
    for rollout in rollouts:
        replay.add(rollout)
    adapter = GymAdapter(config(Recording, LANES, {"action_space": box, "vectorization_mode": "sync"}))
    role, seen = adapter.roles["agent"], []
    agent = make_acer(role, Blueprint())
    loss = agent.loss
    monkeypatch.setattr(agent, "loss", lambda batch: seen.append(batch) or loss(batch))
    update(Learner(agent, role, {}, max_step=None), replay.sample(8))
    (batch,) = seen
    assert batch.raw_action.dtype == torch.float32
    torch.testing.assert_close(batch.raw_action, torch.full_like(batch.raw_action, 1.9), rtol=0, atol=0.05)
    # The density belongs to the sample 1.9, which is the mean of the policy, not to the executed action 1.
    log_mu = agent.family(batch.behavior).log_prob(batch.raw_action)
    assert log_mu.mean() == pytest.approx(2 * (-np.log(0.01) - 0.5 * np.log(2 * np.pi) - 0.5), abs=0.5)
