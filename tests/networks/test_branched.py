"""A network with branches after the torso: acting and learning compute the same, with every kind of memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from algorithm.distributions import MASKED_LOGIT, make_flattened_family
from algorithm.networks import (
    Attention,
    Blueprint,
    BranchedActorCritic,
    Chain,
    FlatParameters,
    FrameStack,
    Gru,
    Lstm,
    Mlp,
    Noise,
    NoisyMlp,
    Vector,
)
from algorithm.specs import ACTION_MASK, ObsSpec
from tests.adapters.configs import config
from tests.builders import make_reactor
from tests.distributions.oracles import find_allowed
from tests.fakes import AnyAction, RunningSum
from tests.networks.test_actor_critic import Doubling, observations, tensors
from tests.networks.test_memory import ADAPTERS as ACER_ADAPTERS
from tests.networks.test_memory import BLUEPRINTS as ACER_BLUEPRINTS
from tests.networks.test_memory import MEMORIES, collected, make_any_acer

VALUES, LANES = 7, 5
BRANCHES = {"one branch": (4,), "two branches": (3, 2)}
BLUEPRINTS = {
    "linear": Blueprint(),
    "layers": Blueprint(body=Mlp(6), policy=Mlp(5, activation="tanh"), critic=Mlp(4)),
    "noisy layers": Blueprint(body=NoisyMlp(6), policy=NoisyMlp(5)),
    "an encoder without numpy": Blueprint(encoders={"*": Doubling()}, policy=Mlp(5)),
    "policy layers without numpy": Blueprint(policy=Chain(Mlp(6), Doubling())),
    "memory after the body": Blueprint(body=Mlp(6), memory=Gru(4)),
    "memory of the policy": Blueprint(body=Mlp(6), policy=Gru(4)),
    "memory of the critic": Blueprint(body=Mlp(6), policy=Mlp(5), critic=Lstm(3)),
    "memories of policy and critic": Blueprint(policy=RunningSum, critic=Attention(4, heads=2, window=3)),
    "all memories": Blueprint(body=Mlp(6), memory=Lstm(4), policy=Gru(3), critic=Gru(5)),
    "frames": Blueprint(encoders={"*": FrameStack(3, Vector())}, body=Mlp(6)),
    "frames and all memories": Blueprint(
        encoders={"*": FrameStack(4, Vector())}, memory=Gru(4), policy=Lstm(3), critic=Gru(5)
    ),
}
WITHOUT_NUMPY = set(BLUEPRINTS) - {"linear", "layers", "noisy layers"}
ADAPTERS = {
    "combinations": lambda: AnyAction(config("", 3, {"branches": [3, 2]})),
    "lanes that skip ticks": ACER_ADAPTERS["lanes that skip ticks"],
}
every_network = pytest.mark.parametrize("name", BLUEPRINTS)


def make(name: str, branches=(3, 2), masked: bool = True, fraction: float = 0.1):
    """Return a network with parameters far from their initial values, in flat tensors."""
    torch.manual_seed(0)
    family = make_flattened_family(branches)
    specs = {"obs": ObsSpec((3,))} | ({ACTION_MASK: ObsSpec((sum(branches),), "uint8")} if masked else {})
    network = BranchedActorCritic(BLUEPRINTS[name], specs, family, VALUES, 0.01, fraction)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.6)
    network.flat = FlatParameters({"policy": network}, {}, {})
    Noise([network]).resample()
    return network


def observe(branches, masked: bool, *rows: int) -> dict[str, np.ndarray]:
    """Return random observations with masks, if `masked`."""
    obs = observations({"obs": ObsSpec((3,))}, *rows)
    if masked:
        rng = np.random.default_rng(3)
        mask = rng.random((*rows, sum(branches))) < 0.5
        mask[..., np.cumsum((0, *branches[:-1]))] = True
        mask[..., 0, : branches[0]] = False  # which has the effect of none forbidden
        obs[ACTION_MASK] = mask.astype(np.uint8)
    return obs


def compute_policy_by_combination(network, logits: np.ndarray, obs, branches) -> np.ndarray:
    """Return (1 - e) softmax + e uniform over the allowed combinations, row by row."""
    probs = np.zeros(logits.shape)
    for row in np.ndindex(logits.shape[:-1]):
        allowed = find_allowed(obs[ACTION_MASK][row] if ACTION_MASK in obs else np.ones(sum(branches)), branches)
        weights = np.where(allowed, np.exp(logits[row].astype(np.float64)), 0)
        e = network.uniform_fraction
        probs[row] = (1 - e) * weights / weights.sum() + e * allowed / allowed.sum()
    return probs


@pytest.mark.parametrize(("masked", "fraction"), [(False, 0.1), (True, 0.0)])
@pytest.mark.parametrize("branches", BRANCHES.values(), ids=BRANCHES)
@every_network
def test_acting_equals_the_module_and_follows_its_parameters(name, branches, masked, fraction):
    network = make(name, branches, masked, fraction)
    assert (network.numpy() is None) == (name in WITHOUT_NUMPY)
    obs, last = observe(branches, masked, LANES), None
    memory = np.random.default_rng(2).normal(size=(LANES, network.state_size)).astype(np.float32)
    for _ in range(2):
        statistics, after = network.act(obs, memory)
        expected, expected_after = network(tensors(obs), torch.from_numpy(memory))
        probs = network.family(expected).probs.detach()
        np.testing.assert_allclose(network.family(torch.from_numpy(statistics)).probs, probs, rtol=0, atol=1e-6)
        np.testing.assert_allclose(after, expected_after.detach(), rtol=1e-5, atol=1e-6)
        assert statistics.dtype == np.float32 and statistics.shape == (LANES, np.prod(branches))
        assert last is None or not np.allclose(statistics, last)
        last = statistics.copy()
        network.flat.vector.add_(0.3 * torch.randn_like(network.flat.vector))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("branches", BRANCHES.values(), ids=BRANCHES)
@pytest.mark.parametrize("fraction", [0.0, 0.1])
@pytest.mark.parametrize("name", ["layers", "all memories"])
def test_the_policy_is_mixed_with_the_allowed_combinations(name, fraction, branches, masked):
    network = make(name, branches, masked, fraction)
    obs, memory = observe(branches, masked, LANES), np.zeros((LANES, network.state_size), np.float32)
    network.uniform_fraction = 0.0
    network.has_mask = False
    logits = network(tensors(obs), torch.from_numpy(memory))[0].detach().numpy()
    network.uniform_fraction, network.has_mask = fraction, masked
    probs = compute_policy_by_combination(network, logits, obs, branches)
    for statistics in (network(tensors(obs), torch.from_numpy(memory))[0].detach(), network.act(obs, memory)[0]):
        actual = network.family(torch.as_tensor(statistics)).probs
        np.testing.assert_allclose(actual, probs, rtol=0, atol=1e-6)
        assert (actual[probs == 0] == 0).all()
        assert not masked or (statistics[probs == 0] == MASKED_LOGIT).all()


def test_the_masks_of_the_first_rows_of_longer_observations_are_used():
    network, obs = make("layers"), tensors(observe((3, 2), True, 6, LANES))
    logits = torch.zeros(6, LANES, 6)
    whole = network.mask_logits(logits, obs)
    assert not whole[:2].equal(whole[-2:])
    assert network.mask_logits(logits[:2], obs).equal(whole[:2])


@pytest.mark.parametrize("scale", [1e2, 1e5, 1e8])
def test_extreme_logits_are_finite_in_both_ways(scale):
    for fraction in (0.0, 0.01):
        network = make("layers", fraction=fraction)
        bias = scale * torch.tensor([1.0, -1, 0.5, 0.9, 0, -0.1])
        network.policy.head.linear.bias.data.copy_(bias)
        obs, none = observe((3, 2), True, LANES), np.zeros((LANES, 0), np.float32)
        statistics = [network.act(obs, none)[0], network(tensors(obs), torch.zeros(LANES, 0))[0].detach().numpy()]
        probs = [network.family(torch.from_numpy(each)).probs for each in statistics]
        assert all(np.isfinite(each).all() for each in statistics)
        torch.testing.assert_close(*probs, rtol=0, atol=1e-5)
        allowed = probs[0][statistics[0] > MASKED_LOGIT / 2]
        assert not fraction or allowed.min() > 0.99 * fraction / 6


def test_the_initial_policy_is_close_to_uniform_and_the_gain_is_that_of_the_values():
    specs = {"obs": ObsSpec((3,))}
    network = BranchedActorCritic(Blueprint(body=Mlp(64)), specs, make_flattened_family((5,)), VALUES, 2.0, 0.0)
    statistics = network(tensors(observations(specs, 100)), torch.zeros(100, 0))[0]
    assert statistics.abs().max() < 0.1
    weight = network.critic.head.linear.weight
    torch.testing.assert_close(weight @ weight.T, 4 * torch.eye(VALUES), rtol=0, atol=1e-5)


@every_network
def test_the_memory_consists_of_the_stored_states_and_the_frames(name):
    network = make(name)
    memory = torch.arange(2.0 * network.state_size).view(2, -1)
    torso, policy, critic = network.split_memory(memory)
    sizes = [network.torso.stored_state_size, network.policy.state_size, network.critic.state_size]
    assert network.stored_state_size == sum(sizes)
    assert policy.equal(memory[:, sizes[0] : sum(sizes[:2])]) and critic.equal(memory[:, sum(sizes[:2]) : sum(sizes)])
    assert torso.equal(torch.cat((memory[:, : sizes[0]], memory[:, sum(sizes) :]), -1))
    stored = network.split_memory(memory[:, : network.stored_state_size])
    assert stored[0].equal(memory[:, : sizes[0]]) and stored[1].equal(policy) and stored[2].equal(critic)


@torch.no_grad()
def compute_statistics(agent, rollout):
    """Return the statistics of the policy at the rows after the burn-in, as the loss computes them."""
    batch, network = rollout.convert(torch.from_numpy), agent.policy
    if isinstance(network, BranchedActorCritic):
        logits = network.unroll(batch).logits[:-1]
        return network.mix_with_uniform(network.mask_logits(logits, batch.drop_burn_in().obs)).numpy()
    features = network.torso.unroll(batch.obs, batch.first, batch.memory, batch.burn_in)
    return network.compute_outputs(features)[:-1, :, : agent.family.statistics_size].numpy()


KINDS = {"reactor": (make_reactor, BLUEPRINTS, ADAPTERS), "acer": (make_any_acer, ACER_BLUEPRINTS, ACER_ADAPTERS)}


WITH_MEMORY = {*MEMORIES, "frame stack and gru", *(name for name in BLUEPRINTS if "memor" in name)}


@pytest.mark.parametrize(
    ("kind", "name", "adapter", "burn_in"),
    [
        (kind, *case, rows)
        for kind, (_, *places) in KINDS.items()
        for case in product(*places)
        for rows in ((0, 4) if case[0] in WITH_MEMORY else (0,))
    ],
)
def test_learning_computes_the_statistics_of_acting(kind, name, adapter, burn_in):
    """Collected rollouts and replayed sequences yield the statistics that actions were sampled from."""
    make_agent, blueprints, adapters = KINDS[kind]
    agent, rollouts, replay = collected(blueprints[name], adapters[adapter](), burn_in, make_agent)
    batch = replay.sample(100)
    assert agent.schedule.burn_in == burn_in + agent.schedule.warmup_rows == batch.burn_in
    assert batch.memory.shape[1] == agent.stored_state_size
    for rollout in (*rollouts, batch):
        expected = rollout.drop_burn_in().behavior
        np.testing.assert_allclose(compute_statistics(agent, rollout), expected, atol=2e-6, rtol=1e-5)
    assert np.std(batch.behavior, axis=(0, 1)).min() > 1e-3


@torch.no_grad()
@every_network
def test_the_critic_continues_from_the_states_that_acting_has_stored(name):
    """The values of each rollout are those of one unroll over all rollouts, from the first memory."""
    agent, rollouts, _ = collected(BLUEPRINTS[name], ADAPTERS["combinations"](), 0, make_reactor)
    batches = [rollout.convert(torch.from_numpy) for rollout in rollouts[:6]]
    obs = torch.cat([batch.obs["obs"][:-1] for batch in batches] + [batches[-1].obs["obs"][-1:]])
    first = torch.cat([batch.first[:-1] for batch in batches] + [batches[-1].first[-1:]])
    whole = agent.policy.unroll(replace(batches[0], obs={"obs": obs}, first=first)).values
    begin = 0
    for batch in batches:
        values = agent.policy.unroll(batch).values
        torch.testing.assert_close(values, whole[begin : begin + len(values)], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(agent.policy.unroll_critic(batch), values)
        begin += len(batch)
    assert begin == len(whole) - 1 and whole.std(0).max() > 1e-2
