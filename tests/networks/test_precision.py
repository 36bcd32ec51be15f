from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from algorithm.networks import Attention, Blueprint, Gru, Lstm, Mlp, Residual
from algorithm.networks.precision import Placement
from algorithm.training.learner import Learner
from tests.builders import make_acer, make_reactor, make_role, random_rollout, update
from tests.fakes import RunningSum
from tests.networks.test_actor_critic import BLUEPRINTS, ONE, make, observations, tensors

BF16 = Placement(precision=torch.bfloat16)
TOLERANCE = 2**-7  # of one operation; bfloat16 has 8 bits


def learner_of(placement: Placement, blueprint: Blueprint, make_agent=make_acer, **changes) -> Learner:
    role = make_role()
    return Learner(make_agent(role, blueprint, **changes), role, {}, None, placement)


def gradient(placement: Placement, blueprint: Blueprint, burn_in: int, make_agent) -> torch.Tensor:
    learner = learner_of(placement, blueprint, make_agent)
    targets = learner.agent.target_networks.values()
    for network in (learner.agent.policy, *(target.network for target in targets)):
        for parameter in network.parameters():
            parameter.data.mul_(1.5)  # otherwise the gradients of the body are small: the policy is close to uniform
    rollout = random_rollout(np.random.default_rng(0), rows=12, columns=8)
    memory = np.zeros((8, learner.agent.state_size), np.float32)
    update(learner, replace(rollout, memory=memory, burn_in=burn_in))
    return learner.parameters.gradient


MEMORIES = {"sum": RunningSum, "gru": Gru(16), "lstm": Lstm(16), "attention": Attention(16, heads=2, window=4)}


SCALAR = partial(make_reactor, critic="scalar", loo_beta="one")
NETWORKS = {
    **{f"{name} after the body": (make_acer, {"body": Mlp(32, 32), "memory": part}) for name, part in MEMORIES.items()},
    **{f"{name} of the policy": (SCALAR, {"policy": part, "critic": Mlp(8)}) for name, part in MEMORIES.items()},
    **{f"{name} of the critic": (SCALAR, {"policy": Mlp(8), "critic": part}) for name, part in MEMORIES.items()},
    "no memory": (make_acer, {"body": Mlp(32, 32)}),
}


@pytest.mark.parametrize("burn_in", [0, 3])
@pytest.mark.parametrize(("make_agent", "parts"), NETWORKS.values(), ids=NETWORKS)
def test_gradients_equal_float32_gradients_within_the_precision(make_agent, parts, burn_in):
    exact, rounded = (gradient(placement, Blueprint(**parts), burn_in, make_agent) for placement in (Placement(), BF16))
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).norm() < 5 * TOLERANCE * exact.norm()


@pytest.mark.parametrize("name", BLUEPRINTS)
def test_the_features_are_float32_and_close_to_those_in_float32(name):
    blueprint, specs = BLUEPRINTS[name]
    network = make(blueprint, specs)
    rows = tensors(observations(specs, 5, 4)), torch.zeros(5, 4, dtype=torch.bool), torch.zeros(4, network.state_size)
    exact = network.torso.unroll(*rows)
    network.torso.precision = torch.bfloat16
    rounded = network.torso.unroll(*rows)
    assert rounded.dtype == torch.float32
    assert (rounded - exact).norm() <= 4 * TOLERANCE * exact.norm()
    assert torch.equal(rounded, exact) == (blueprint.body is None)


def test_acting_is_exact_and_both_networks_learn_in_bfloat16():
    rounded, exact = (learner_of(placement, Blueprint(body=Mlp(16))) for placement in (BF16, Placement()))
    obs, memory = observations(ONE, 6), np.zeros((6, 0), np.float32)
    np.testing.assert_array_equal(*(each.agent.policy.act(obs, memory)[0] for each in (rounded, exact)))
    for network in (rounded.agent.policy, rounded.agent.average_policy.network):
        assert network.torso.precision == torch.bfloat16
        assert network(tensors(obs), torch.zeros(6, 0))[0].dtype == torch.float32


@pytest.mark.parametrize("body", [Mlp(16), Residual(16, unit_weights=True), Mlp(16, norm="layer")])
def test_outputs_stay_float32(body):
    learner = learner_of(BF16, Blueprint(body=body), reward_normalization="return_std")
    report = update(learner, random_rollout(np.random.default_rng(0)))
    assert {value.dtype for value in report.compute_metrics().values()} == {torch.float32}
    assert report.compute_td_errors().dtype == np.float32
    assert all(each.dtype == torch.float32 for each in learner.state().values() if each.ndim and len(each) > 9)
    assert learner.parameters.all_parameters.dtype == torch.float32


def test_statistics_of_batches_are_exact_in_bfloat16():
    rollout, increments = random_rollout(np.random.default_rng(0)), []
    for placement in (BF16, Placement()):
        learner = learner_of(placement, Blueprint(body=Residual(16, 1)))
        learner.compute_gradients(rollout)
        increments.append(learner.agent.policy.torso.body.input_norm.increment)
    torch.testing.assert_close(*increments, rtol=1e-6, atol=1e-8)
