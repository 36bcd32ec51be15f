import numpy as np
import pytest
import torch

from algorithm.auxiliaries.auxiliary import Auxiliary
from algorithm.auxiliaries.settings import AuxiliarySettings
from algorithm.training.learner import Learner
from tests.builders import make_acer, make_role, random_rollout, update

LANES = 4


def make_learner(max_step=None, auxiliaries=None, **changes):
    role = make_role(LANES)
    return Learner(make_acer(role, **changes), role, auxiliaries or {}, max_step)


def rollout(seed=0):
    return random_rollout(np.random.default_rng(seed), 6, LANES)


class Loud(Auxiliary):
    """An auxiliary with a loss of a given gradient."""

    def __init__(self, steepness):
        super().__init__(AuxiliarySettings(learning_rate=0.1, max_grad_norm=2.0))
        self.steepness = steepness

    def build(self, agent, role):
        self.module = torch.nn.Linear(agent.policy.torso.size, 1)
        return self.module

    def loss(self, inputs):
        return self.steepness * self.module(inputs.features).mean(), {}


def everything(learner):
    """Return copies of everything that an update changes."""
    state = {name: value for name, value in learner.state().items() if name.startswith("moments")}
    return {
        "vector": learner.parameters.vector.clone(),
        "target_networks": learner.parameters.target_vector.clone(),
        **state,
    }


@pytest.mark.parametrize("looks", [True, False], ids=["as on a processor", "as on a device"])
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(bad, optimizer, looks):
    learner, twin = make_learner(optimizer=optimizer), make_learner(optimizer=optimizer)
    learner.checks_gradient = looks
    for either in (learner, twin):
        update(either, rollout())
    assert everything(learner)["target_networks"].equal(everything(twin)["target_networks"])
    before, poisoned = everything(learner), rollout(1)
    assert all(value.ne(0).any() for value in before.values())
    poisoned.reward[poisoned.valid] = bad
    update(learner, poisoned)
    assert learner.skipped_updates == 1
    after = everything(learner)
    assert before.keys() == after.keys() and all(after[name].equal(value) for name, value in before.items())

    update(learner, rollout(1))
    assert learner.skipped_updates == 1
    after = everything(learner)
    assert all(after[name].isfinite().all() and not after[name].equal(value) for name, value in before.items())


def test_a_gradient_of_one_group_that_is_not_finite_leaves_the_others_unchanged_too():
    learner = make_learner(auxiliaries={"loud": Loud(float("nan"))})
    before = everything(learner)
    update(learner, rollout())
    assert learner.skipped_updates == 1
    assert all(value.equal(before[name]) for name, value in everything(learner).items())


def test_each_group_is_clipped_and_stepped_separately():
    alone, with_auxiliary = (make_learner(max_grad_norm=0.01, auxiliaries=each) for each in ({}, {"loud": Loud(1e6)}))
    parameters = with_auxiliary.parameters
    before = parameters.vector.clone()
    for learner in (alone, with_auxiliary):
        update(learner, rollout())
    acer, loud = (parameters.group_slices[name] for name in ("acer", "auxiliary/loud"))
    assert parameters.gradient[acer].norm().item() == pytest.approx(0.01, rel=1e-4)
    assert parameters.gradient[loud].norm().item() == pytest.approx(2, rel=1e-4)
    torch.testing.assert_close(parameters.gradient[acer], alone.parameters.gradient)
    torch.testing.assert_close(parameters.vector[acer], alone.parameters.vector)
    change = (parameters.vector - before)[loud].abs().max().item()
    assert change == pytest.approx(0.1, rel=1e-3)  # the first step of Adam is its learning rate


def first_step(observed, **changes):
    """Return how far the first update after some observed rollouts moves the parameters."""
    learner = make_learner(**changes)
    for seed in range(observed):
        learner.observe(rollout(seed))
    before = learner.parameters.vector.clone()
    update(learner, rollout())
    return learner.parameters.vector - before


def test_a_linear_learning_rate_is_zero_at_max_step():
    rows = sum(int(rollout(seed).valid.sum()) for seed in range(3))
    full = first_step(0, reward_scale=1.0, learning_rate=0.1)
    assert full.abs().max() > 0.01
    for max_step, left in [(4 * rows, 3 / 4), (2 * rows, 1 / 2), (rows, 0), (rows - 1, 0)]:
        step = first_step(3, reward_scale=1.0, learning_rate=0.1, max_step=max_step, learning_rate_schedule="linear")
        torch.testing.assert_close(step, left * full, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(first_step(3, reward_scale=1.0, learning_rate=0.1, max_step=max_step), full)


def test_the_loss_reads_the_scaled_rewards():
    raw, small = rollout(), rollout()
    small.reward = 0.1 * raw.reward.clip(-0.5, 0.5)
    scaling, plain = make_learner(reward_clip=0.5, reward_scale=0.1), make_learner()
    update(scaling, raw)
    update(plain, small)
    torch.testing.assert_close(scaling.parameters.gradient, plain.parameters.gradient, rtol=1e-4, atol=1e-6)
