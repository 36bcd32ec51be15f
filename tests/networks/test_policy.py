from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from algorithm.distributions import MASKED_LOGIT, HybridFamily
from algorithm.networks import (
    Blueprint,
    Chain,
    CriticEnsemble,
    GreedyQPolicy,
    Gru,
    Lstm,
    Mlp,
    NoisyMlp,
    Residual,
    Torso,
    Vector,
)
from algorithm.networks.encoders import Scale
from algorithm.networks.precision import CPU, Placement
from algorithm.specs import ACTION_MASK, ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner
from tests.agents.contract import OneDevice
from tests.builders import make_acer, make_reactor, make_role, make_sac, random_rollout, random_rollout_of, update
from tests.distributions.oracles import find_allowed
from tests.fakes import RunningSum
from tests.networks.test_actor_critic import ONE, Doubling, observations, tensors

# The same CPU for torch, another device for a placement.
SEPARATE = Placement(learning=torch.device("cpu:0"), acting=CPU)
BLUEPRINTS = {
    "plain": Blueprint(body=Mlp(16)),
    "residual": Blueprint(body=Residual(6, 1, norm="batch_renorm"), policy=Mlp(5, norm="batch")),
    "normalized": Blueprint(encoders={"*": Vector(normalize=True)}, body=Mlp(16)),
    "noisy": Blueprint(body=NoisyMlp(16), critic=NoisyMlp(8)),
    "a memory, and an encoder without numpy": Blueprint(encoders={"*": Doubling()}, body=Mlp(8), memory=RunningSum),
}


HYBRID = Role(4, ONE, ActionSpec(continuous=1, branches=(3,)))
AGENTS = {
    "acer": (make_role(), partial(make_acer, learning_rate=0.05)),
    "sac": (HYBRID, partial(make_sac, learning_rate_critic=0.05, learning_rate_policy=0.05)),
    "sac like dqn": (make_role(), partial(make_sac, discrete_dqn_like=True, learning_rate_critic=0.5)),
    "reactor": (make_role(), partial(make_reactor, learning_rate=0.05)),
}
BRANCH_MEMORIES = {"memories of policy and critic": Blueprint(body=Mlp(8), policy=Gru(5), critic=Lstm(4))}
BRANCHES = {"one branch": (4,), "two branches": (3, 2), "three branches": (2, 3, 2)}
every_kind = pytest.mark.parametrize("branches", BRANCHES.values(), ids=BRANCHES)
ROWS = 200


class SeparateDevices:
    """An agent that acts with a copy of its policy, and its learner."""

    def __init__(self, name: str = "plain", kind: str = "acer"):
        self.role, make = AGENTS[kind]
        self.agent = make(self.role, {**BLUEPRINTS, **BRANCH_MEMORIES}[name])
        self.learner = Learner(self.agent, self.role, {}, None, SEPARATE)
        self.seed = 0

    def learn(self) -> None:
        self.seed += 1
        rollout = random_rollout_of(self.agent, self.role, self.seed)
        self.learner.observe(rollout)
        update(self.learner, rollout)

    def acted(self) -> np.ndarray:
        return self.agent.policy.act(observations(ONE, 6), np.ones((6, self.agent.state_size), np.float32))[0].copy()

    def exact(self) -> np.ndarray:
        policy = self.agent.policy
        return policy(tensors(observations(ONE, 6)), torch.ones(6, policy.state_size))[0].detach().numpy()


@pytest.mark.parametrize(
    ("kind", "name"),
    [*((kind, name) for kind in AGENTS for name in BLUEPRINTS), *(("reactor", name) for name in BRANCH_MEMORIES)],
)
def test_the_copy_acts_as_its_source_after_learning_loading_and_restoring(name, kind):
    agent_and_copy, before = SeparateDevices(name, kind), []
    for _ in range(3):
        before.append(agent_and_copy.acted())
        np.testing.assert_allclose(before[-1], agent_and_copy.exact(), rtol=0, atol=1e-6)
        agent_and_copy.learn()
        agent_and_copy.learn()
    assert not np.allclose(before[0], before[-1], atol=1e-4)
    other = SeparateDevices(name, kind)
    state, moments = agent_and_copy.learner.parameters.state(), agent_and_copy.learner.state()
    other.acted()
    other.learner.parameters.load(state)
    other.learner.restore(moments)
    np.testing.assert_array_equal(other.acted(), agent_and_copy.acted())


def test_a_change_of_only_the_statistics_updates_the_copy():
    agent_and_copy = SeparateDevices("normalized")
    before = agent_and_copy.acted()
    agent_and_copy.learner.observe(random_rollout(np.random.default_rng(0)))
    np.testing.assert_allclose(agent_and_copy.acted(), agent_and_copy.exact(), rtol=0, atol=1e-6)
    assert not np.allclose(agent_and_copy.acted(), before, atol=1e-5)


@pytest.mark.parametrize("kind", ["acer", "sac", "reactor"])
def test_the_copy_is_noisy_if_its_source_is(kind):
    agent_and_copy = SeparateDevices("noisy", kind)
    noisy = agent_and_copy.acted()
    agent_and_copy.agent.policy.eval()
    quiet = agent_and_copy.acted()
    np.testing.assert_allclose(quiet, agent_and_copy.exact(), rtol=0, atol=1e-6)
    assert not np.allclose(quiet, noisy, atol=1e-5)
    agent_and_copy.agent.policy.train()
    np.testing.assert_array_equal(agent_and_copy.acted(), noisy)


def test_changes_are_copied_once_by_the_next_act():
    agent_and_copy = SeparateDevices("normalized")
    vector = agent_and_copy.learner.parameters.vector
    agent_and_copy.acted()
    fetched = [own for own, _ in agent_and_copy.learner._acting_copy._tensor_pairs]
    assert [numbers.dtype for numbers in fetched] == [torch.float32, torch.float64]
    assert len(fetched[0]) == len(vector)
    before = fetched[0].clone()
    agent_and_copy.learn()
    assert torch.equal(fetched[0], before)
    agent_and_copy.acted()
    assert torch.equal(fetched[0], vector)
    vector.add_(1)  # without setting is_outdated
    agent_and_copy.acted()
    assert not torch.equal(fetched[0], vector)


def test_there_is_no_copy_on_a_single_device():
    learner = Learner(make_acer(), make_role(), {}, None, Placement())
    assert learner._acting_copy is None


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
        (make_reactor, ActionSpec(branches=(3,)), {"loo_beta": "truncated", "distributional": "recursive"}),
        (make_reactor, ActionSpec(branches=(3, 2)), {"policy_gradient": "truncated_importance"}),
        (make_reactor, ActionSpec(branches=(3, 2)), {"critic": "scalar", "policy_uniform_fraction": 0.0}),
    ],
    ids=lambda value: None if callable(value) else str(value),
)
def test_an_update_uses_its_device_alone_and_never_synchronizes(make, spec, changes):
    """On the meta device, which has no values, CPU tensors and reads of a value are errors."""
    sizes = {"still": 3, "moving": 2, "scaled": 2}
    masks = {ACTION_MASK: ObsSpec((sum(spec.branches),), "uint8")} if spec.branches else {}
    role = Role(4, {name: ObsSpec((size,)) for name, size in sizes.items()} | masks, spec)
    encoders = {"moving": Vector(normalize=True), "scaled": Vector((2.0, 0.5)), "*": Vector()}
    critic = Gru(8) if make is make_reactor else None
    body = Chain(NoisyMlp(16), Mlp(6, norm="batch_renorm", spectral_norm=True), Residual(6, 1, unit_weights=True))
    blueprint = Blueprint(encoders=encoders, body=body, memory=RunningSum, policy=Mlp(8, norm="batch"), critic=critic)
    meta = torch.device("meta")
    with meta:  # a CPU tensor cannot become a view of a tensor on this device, as it can on a GPU
        agent = make(role, blueprint, reward_normalization="return_std", reward_clip=1.0, **changes)
        learner = Learner(agent, role, {}, 1000, Placement(learning=meta, acting=meta))
    for module in agent.policy.modules():
        if isinstance(module, Scale):
            module.scale = torch.ones(2)
    rng, rollout = np.random.default_rng(0), random_rollout_of(agent, role)
    rollout.obs = {name: rng.normal(size=(7, 4, size)).astype(np.float32) for name, size in sizes.items()}
    rollout.obs |= {name: np.ones((7, 4, *spec.shape), np.uint8) for name, spec in masks.items()}
    learner.observe(rollout)
    update(learner, rollout)  # the first update copies constants
    rollout = rollout.convert(learner._upload)
    learner._upload = lambda tensor: tensor
    reports, loss = [], agent.loss
    agent.loss = lambda batch: (made := loss(batch), reports.append(made[1]))[0]
    with OneDevice("meta"):
        report = update(learner, rollout)  # its errors are copied to the CPU
        results = [
            *report.compute_metrics().values(),
            reports[0].compute_td_errors(),
            learner.parameters.all_parameters,
            learner.noise.values,
        ]
    assert {value.device.type for value in results} == {"meta"}


def make(branches, epsilon=0.2, masked=False, memory=None) -> GreedyQPolicy:
    torch.manual_seed(0)
    family = HybridFamily(0, branches)
    specs = {"obs": ObsSpec((3,))} | ({ACTION_MASK: ObsSpec((sum(branches),), "uint8")} if masked else {})
    blueprint = Blueprint(body=Mlp(8), memory=memory)
    critics = CriticEnsemble(blueprint, Torso(blueprint, specs), 0, family.n_combinations, 3)
    for parameter in critics.parameters():
        nn.init.normal_(parameter)
    return GreedyQPolicy(critics, lambda outputs: outputs, family, specs, epsilon)


def observed(branches, masked) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    obs = {"obs": rng.normal(size=(ROWS, 3)).astype(np.float32)}
    if masked:
        obs[ACTION_MASK] = (rng.random((ROWS, sum(branches))) < 0.6).astype(np.uint8)
        for start, count in zip(np.cumsum((0, *branches[:-1])), branches, strict=True):
            obs[ACTION_MASK][np.arange(ROWS), start + rng.integers(count, size=ROWS)] = 1
        obs[ACTION_MASK][:10, : branches[0]] = 0  # which has the effect of none forbidden
    return obs


def define_probabilities(policy, branches, obs, epsilon) -> np.ndarray:
    """Return the probabilities of each branch, computed row by row."""
    masks, probs = obs.get(ACTION_MASK, np.ones((ROWS, sum(branches)))), []
    with torch.no_grad():
        values = policy.critics(policy.torso.encode({"obs": torch.from_numpy(obs["obs"])})).mean(0).numpy()
    for value, mask in zip(values, masks, strict=True):
        best = np.unravel_index(np.where(find_allowed(mask, branches), value, -np.inf).argmax(), branches)
        for allowed, index in zip(np.split(mask, np.cumsum(branches)[:-1]), best, strict=True):
            free = allowed if allowed.any() else np.ones_like(allowed)
            probs.append(epsilon * free / free.sum() + (1 - epsilon) * np.eye(len(free))[index])
    return np.concatenate(probs).reshape(ROWS, -1)


@every_kind
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0])
def test_it_takes_the_action_of_highest_mean_value_and_with_epsilon_any_action(branches, masked, epsilon):
    policy, obs = make(branches, epsilon, masked), observed(branches, masked)
    statistics, _ = policy.act(obs, np.zeros((ROWS, 0), np.float32))
    assert statistics.dtype == np.float32 and np.isfinite(statistics).all()
    np.testing.assert_allclose(np.exp(statistics), define_probabilities(policy, branches, obs, epsilon), atol=1e-6)


def test_its_memory_is_the_memory_of_its_torso():
    policy = make((3,), memory=RunningSum)
    obs, before = observed((3,), False), np.ones((ROWS, 8), np.float32)
    statistics, memory = policy.act(obs, before)
    assert policy.state_size == 8 and memory.shape == (ROWS, 8)
    other, _ = policy.act(obs, -9 * memory)
    assert (statistics != other).any()
    assert (statistics > MASKED_LOGIT / 2).all()
