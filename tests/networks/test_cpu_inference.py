from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from algorithm.networks import Blueprint, Mlp, NoisyMlp, Vector
from algorithm.networks.encoders.vector import Scale
from algorithm.rollout import Rollout
from algorithm.specs import ACTION_MASK, ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner
from algorithm.training.placement import CPU, Placement
from tests.builders import make_acer, make_role, make_sac, random_rollout
from tests.networks.test_actor_critic import ONE, Doubling, RunningSum, observations, tensors

# To torch the same processor, to a placement another device.
APART = Placement(learning=torch.device("cpu:0"), acting=CPU)
BLUEPRINTS = {
    "plain": Blueprint(body=Mlp(16)),
    "normalised": Blueprint(encoders={"*": Vector(normalize=True)}, body=Mlp(16)),
    "noisy": Blueprint(body=NoisyMlp(16), critic=NoisyMlp(8)),
    "a memory, and an encoder without numpy": Blueprint(encoders={"*": Doubling()}, body=Mlp(8), memory=RunningSum),
}


HYBRID = Role(4, ONE, ActionSpec(continuous=1, branches=(3,)))
AGENTS = {
    "acer": (make_role(), partial(make_acer, learning_rate=0.05)),
    "sac": (HYBRID, partial(make_sac, learning_rate_critic=0.05, learning_rate_policy=0.05)),
    "sac like dqn": (make_role(), partial(make_sac, discrete_dqn_like=True, learning_rate_critic=0.5)),
}


class Apart:
    """An agent that acts on a copy, and its learner."""

    def __init__(self, name: str = "plain", kind: str = "acer"):
        role, make = AGENTS[kind]
        self.agent = make(role, BLUEPRINTS[name])
        self.learner = Learner(self.agent, role, {}, None, APART)
        self.seed = 0

    def learn(self) -> None:
        self.seed += 1
        rollout = rollout_of(self.agent, np.random.default_rng(self.seed))
        self.learner.observe(rollout)
        self.learner.learn(rollout)

    def acted(self) -> np.ndarray:
        return self.agent.policy.act(observations(ONE, 6), np.ones((6, self.agent.state_size), np.float32))[0].copy()

    def exact(self) -> np.ndarray:
        policy = self.agent.policy
        return policy(tensors(observations(ONE, 6)), torch.ones(6, policy.state_size))[0].detach().numpy()


def rollout_of(agent, rng: np.random.Generator) -> Rollout:
    """A collected rollout with the samples, statistics and memory of this agent."""
    rollout = random_rollout(rng)
    indices = rollout.raw_action if agent.family.branches else rollout.raw_action[..., :0]
    numbers = agent.family.size - len(agent.family.branches)
    rollout.raw_action = np.zeros((6, 4, agent.family.size), np.float32)
    rollout.raw_action[..., :numbers] = rng.normal(size=(6, 4, numbers))
    rollout.raw_action[..., numbers : numbers + 1] = indices
    rollout.behavior = rng.normal(size=(6, 4, agent.family.statistics_size)).astype(np.float32)
    rollout.memory = np.zeros((4, agent.state_size), np.float32)
    return rollout


@pytest.mark.parametrize("kind", AGENTS)
@pytest.mark.parametrize("name", BLUEPRINTS)
def test_the_copy_acts_as_its_source_whatever_happens_to_it(name, kind):
    apart, before = Apart(name, kind), []
    for _ in range(3):
        before.append(apart.acted())
        np.testing.assert_allclose(before[-1], apart.exact(), rtol=0, atol=1e-6)
        apart.learn()
        apart.learn()
    assert not np.allclose(before[0], before[-1], atol=1e-4)
    other = Apart(name, kind)
    state, moments = apart.learner.parameters.state(), apart.learner.state()
    other.acted()
    other.learner.parameters.load(state)
    other.learner.restore(moments)
    np.testing.assert_array_equal(other.acted(), apart.acted())
    another = Apart(name, kind)
    another.acted()
    another.learner.load_parameters(state)
    np.testing.assert_allclose(another.acted(), another.exact(), rtol=0, atol=1e-6)


def test_statistics_alone_bring_it_up_to_date_too():
    apart = Apart("normalised")
    before = apart.acted()
    apart.learner.observe(random_rollout(np.random.default_rng(0)))
    np.testing.assert_allclose(apart.acted(), apart.exact(), rtol=0, atol=1e-6)
    assert not np.allclose(apart.acted(), before, atol=1e-5)


@pytest.mark.parametrize("kind", ["acer", "sac"])
def test_it_is_noisy_where_its_source_is(kind):
    apart = Apart("noisy", kind)
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
    fetched = [own for own, _ in apart.learner._acting_copy._tensor_pairs]
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
    assert learner._acting_copy is None


class Inside(TorchDispatchMode):
    """Refuses every tensor of the processor, which an update on another device would wait for or carry over."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if any(tensor.device.type == "cpu" for tensor in given):
            raise AssertionError(f"{function} of a tensor of the processor")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("make", "spec", "changes"),
    [
        (make_acer, ActionSpec(branches=(3,)), {}),
        (
            make_acer,
            ActionSpec(branches=(3,)),
            {"estimator": "vtrace", "critic": "state_value", "trust_region_space": "probs"},
        ),
        (
            make_acer,
            ActionSpec(branches=(3,)),
            {"estimator": "tree_backup", "optimizer": "rmsprop", "epsilon_inside": True},
        ),
        (make_acer, ActionSpec(continuous=2), {"std": "learned", "estimator": "n_step"}),
        (
            make_acer,
            ActionSpec(continuous=1, branches=(3, 2)),
            {"std": "state_dependent", "tanh_squash": True, "learning_rate_schedule": "linear"},
        ),
        (make_sac, ActionSpec(continuous=2), {}),
        (make_sac, ActionSpec(continuous=2), {"use_auto_alpha": False}),
        (make_sac, ActionSpec(branches=(3,)), {"estimator": "retrace", "clip_epsilon": 0.5}),
        (
            make_sac,
            ActionSpec(continuous=1, branches=(3, 2)),
            {"ensemble_q_num": 3, "rescale_values": True, "alpha_critic_scale": 0.5},
        ),
        (make_sac, ActionSpec(branches=(3, 2)), {"discrete_dqn_like": True, "use_n_step_is": False}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_an_update_touches_nothing_outside_its_device_and_waits_for_nothing(make, spec, changes):
    """On torch's device without numbers, where every tensor of the processor and every look at a number is an error."""
    sizes = {"still": 3, "moving": 2, "scaled": 2}
    masks = {ACTION_MASK: ObsSpec((sum(spec.branches),), "uint8")} if spec.branches else {}
    role = Role(4, {name: ObsSpec((size,)) for name, size in sizes.items()} | masks, spec)
    encoders = {"moving": Vector(normalize=True), "scaled": Vector((2.0, 0.5)), "*": Vector()}
    blueprint = Blueprint(encoders=encoders, body=NoisyMlp(16), memory=RunningSum, policy=Mlp(8))
    meta = torch.device("meta")
    with meta:  # where a tensor of the processor cannot become a view, as it can on a GPU
        agent = make(role, blueprint, reward_normalization="return_std", reward_clip=1.0, **changes)
        learner = Learner(agent, role, {}, 1000, Placement(learning=meta, acting=meta))
    for module in agent.policy.modules():
        if isinstance(module, Scale):
            module.scale = torch.ones(2)
    rng = np.random.default_rng(0)
    rollout = rollout_of(agent, rng)
    rollout.obs = {name: rng.normal(size=(7, 4, size)).astype(np.float32) for name, size in sizes.items()}
    rollout.obs |= {name: np.ones((7, 4, *spec.shape), np.uint8) for name, spec in masks.items()}
    learner.observe(rollout)
    learner.learn(rollout)  # constants come along once
    rollout = rollout.convert(learner._upload)
    learner._upload = lambda tensor: tensor
    reports, loss = [], agent.loss
    agent.loss = lambda batch: (made := loss(batch), reports.append(made[1]))[0]
    with Inside():
        report = learner.learn(rollout)  # whose errors are brought down
        told = [
            *report.compute_metrics().values(),
            reports[0].compute_td_errors(),
            learner.parameters.all_parameters,
            learner.noise.values,
        ]
    assert {value.device.type for value in told} == {"meta"}
