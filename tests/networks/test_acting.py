from __future__ import annotations

import numpy as np
import pytest
import torch

from algorithm.loop.learner import Learner
from algorithm.loop.placement import CPU, Placement
from algorithm.networks import Blueprint, Mlp, NoisyMlp, Vector
from algorithm.networks.encoders.vector import Scale
from algorithm.specs import ActionSpec, ObsSpec, Role
from tests.builders import make_acer, make_role, random_rollout
from tests.networks.test_actor_critic import ONE, Doubling, RunningSum, observations, tensors

# To torch the same processor, to a placement another device.
APART = Placement(learning=torch.device("cpu:0"), acting=CPU)
BLUEPRINTS = {
    "plain": Blueprint(body=Mlp(16)),
    "normalised": Blueprint(encoders={"*": Vector(normalize=True)}, body=Mlp(16)),
    "noisy": Blueprint(body=NoisyMlp(16), critic=NoisyMlp(8)),
    "a memory, and an encoder without numpy": Blueprint(encoders={"*": Doubling()}, body=Mlp(8), memory=RunningSum),
}


class Apart:
    """An agent that acts on a copy, and its learner."""

    def __init__(self, name: str = "plain"):
        self.agent = make_acer(blueprint=BLUEPRINTS[name], learning_rate=0.05)
        self.learner = Learner(self.agent, make_role(), {}, None, APART)
        self.seed = 0

    def learn(self) -> None:
        self.seed += 1
        rollout = random_rollout(np.random.default_rng(self.seed))
        rollout.memory = np.zeros((4, self.agent.state), np.float32)
        self.learner.observe(rollout)
        self.learner.learn(rollout)

    def acted(self) -> np.ndarray:
        return self.agent.policy.act(observations(ONE, 6), np.ones((6, self.agent.state), np.float32))[0].copy()

    def exact(self) -> np.ndarray:
        policy = self.agent.policy
        return policy(tensors(observations(ONE, 6)), torch.ones(6, policy.state))[0].detach().numpy()


@pytest.mark.parametrize("name", BLUEPRINTS)
def test_the_copy_acts_as_its_source_whatever_happens_to_it(name):
    apart, before = Apart(name), []
    for _ in range(3):
        before.append(apart.acted())
        np.testing.assert_allclose(before[-1], apart.exact(), rtol=0, atol=1e-6)
        apart.learn()
        apart.learn()
    assert not np.allclose(before[0], before[1], atol=1e-4)
    other = Apart(name)
    state, moments = apart.learner.parameters.state(), apart.learner.state()
    other.acted()
    other.learner.parameters.load(state)
    other.learner.restore(moments)
    np.testing.assert_array_equal(other.acted(), apart.acted())
    another = Apart(name)
    another.acted()
    another.learner.adopt(state)
    np.testing.assert_allclose(another.acted(), another.exact(), rtol=0, atol=1e-6)


def test_statistics_alone_bring_it_up_to_date_too():
    apart = Apart("normalised")
    before = apart.acted()
    apart.learner.observe(random_rollout(np.random.default_rng(0)))
    np.testing.assert_allclose(apart.acted(), apart.exact(), rtol=0, atol=1e-6)
    assert not np.allclose(apart.acted(), before, atol=1e-5)


def test_it_is_noisy_where_its_source_is():
    apart = Apart("noisy")
    noisy = apart.acted()
    apart.agent.policy.eval()
    quiet = apart.acted()
    np.testing.assert_allclose(quiet, apart.exact(), rtol=0, atol=1e-6)
    assert not np.allclose(quiet, noisy, atol=1e-5)
    apart.agent.policy.train()
    np.testing.assert_array_equal(apart.acted(), noisy)


def test_changes_are_fetched_once_when_it_acts():
    apart = Apart("normalised")
    vector = apart.learner.parameters.vector
    apart.acted()
    fetched = [own for own, _ in apart.learner._acting._pairs]
    assert [numbers.dtype for numbers in fetched] == [torch.float32, torch.float64]
    assert len(fetched[0]) == len(vector)
    before = fetched[0].clone()
    apart.learn()
    assert torch.equal(fetched[0], before)
    apart.acted()
    assert torch.equal(fetched[0], vector)
    vector.add_(1)  # nobody says so
    apart.acted()
    assert not torch.equal(fetched[0], vector)


def test_on_one_device_there_is_no_copy():
    learner = Learner(make_acer(), make_role(), {}, None, Placement())
    assert learner._acting is None


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        (ActionSpec(branches=(3,)), {}),
        (ActionSpec(branches=(3,)), {"estimator": "vtrace", "critic": "v", "trust_region_space": "probs"}),
        (ActionSpec(branches=(3,)), {"estimator": "tree_backup", "optimizer": "rmsprop", "epsilon_inside": True}),
        (ActionSpec(continuous=2), {"std": "learned", "estimator": "n_step"}),
        (
            ActionSpec(continuous=1, branches=(3, 2)),
            {"std": "state", "squash": True, "learning_rate_schedule": "linear"},
        ),
    ],
    ids=str,
)
def test_an_update_touches_nothing_outside_its_device_and_waits_for_nothing(spec, changes):
    """On torch's device without numbers, where every tensor of the processor and every look at a number is an error."""
    sizes = {"still": 3, "moving": 2, "scaled": 2}
    role = Role(4, {name: ObsSpec((size,)) for name, size in sizes.items()}, spec)
    encoders = {"moving": Vector(normalize=True), "scaled": Vector((2.0, 0.5)), "*": Vector()}
    blueprint = Blueprint(encoders=encoders, body=NoisyMlp(16), memory=RunningSum, policy=Mlp(8))
    meta = torch.device("meta")
    with meta:  # where a tensor of the processor cannot become a view, as it can on a GPU
        agent = make_acer(role, blueprint, normalize_returns=True, reward_clip=1.0, **changes)
        learner = Learner(agent, role, {}, 1000, Placement(learning=meta, acting=meta))
    for module in agent.policy.modules():
        if isinstance(module, Scale):
            module.scale = torch.ones(2)
    rng = np.random.default_rng(0)
    rollout = random_rollout(rng)
    rollout.obs = {name: rng.normal(size=(7, 4, size)).astype(np.float32) for name, size in sizes.items()}
    rollout.sample = np.zeros((6, 4, agent.family.size), np.float32)
    rollout.behavior = np.zeros((6, 4, agent.family.statistics), np.float32)
    rollout.memory = np.zeros((4, agent.state), np.float32)
    learner.observe(rollout)
    reports, loss = [], agent.loss
    agent.loss = lambda batch: (made := loss(batch), reports.append(made[1]))[0]
    report = learner.learn(rollout)  # whose errors are brought down
    told = [*report.metrics().values(), reports[0].errors(), learner.parameters.numbers, learner.noise.numbers]
    assert {value.device.type for value in told} == {"meta"}
