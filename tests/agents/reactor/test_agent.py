"""Reactor's target network, schedule, action spaces and settings."""

from __future__ import annotations

import re

import pytest
import torch

from algorithm.distributions import CategoricalFamily, FlattenedFamily
from algorithm.networks import Blueprint, FrameStack, Gru, Lstm, Mlp, Vector
from algorithm.specs import ActionSpec
from algorithm.training.learner import Learner
from tests.builders import make_reactor, make_role, random_rollout_of, reactor_settings, update


@pytest.mark.parametrize("interval", [1, 3])
def test_the_target_network_is_copied_exactly_after_every_interval(interval):
    role = make_role()
    agent = make_reactor(role, Blueprint(body=Mlp(8), policy=Gru(4)), update_target_per_step=interval)
    learner = Learner(agent, role, {}, None)
    network, target = agent.policy, agent.target.network
    expected = [parameter.clone() for parameter in network.parameters()]
    for count in range(1, 8):
        assert all(map(torch.equal, target.parameters(), expected))
        update(learner, random_rollout_of(agent, role, seed=count))
        current = [parameter.clone() for parameter in network.parameters()]
        assert not any(map(torch.equal, current, expected))
        expected = expected if count % interval else current
    assert all(map(torch.equal, target.parameters(), expected))


@pytest.mark.parametrize(
    ("branches", "family", "actions"),
    [((3,), CategoricalFamily, 3), ((3, 2), FlattenedFamily, 6), ((2,) * 9, None, 512)],
)
def test_branches_are_flattened_up_to_512_combinations(branches, family, actions):
    agent = make_reactor(make_role(spec=ActionSpec(branches=branches)))
    assert agent.family.statistics_size == actions
    assert family is None or type(agent.family) is family
    settings = agent.settings
    assert agent.critic.n_values == settings.n_atoms * (1 + actions)
    assert make_reactor(make_role(spec=ActionSpec(branches=branches)), critic="scalar").critic.n_values == actions


@pytest.mark.parametrize("spec", [ActionSpec(continuous=2), ActionSpec(continuous=1, branches=(3,))])
def test_continuous_actions_are_rejected_with_the_algorithms_that_support_them(spec):
    message = f"algorithm REACTOR is for discrete actions, not for {spec}; use ACER, SAC, A2C or PPO"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make_reactor(make_role(spec=spec))


@pytest.mark.parametrize("normalization", ["return_std", None])
def test_a_known_range_of_returns_may_begin_at_0(normalization):
    reactor_settings(v_min=0.0, v_max=1.0, reward_normalization=normalization)


MEMORIES = {"body": {"memory": Gru(4)}, "policy": {"policy": Gru(4)}, "critic": {"critic": Lstm(4)}}


@pytest.mark.parametrize("parts", MEMORIES.values(), ids=MEMORIES)
def test_burn_in_needs_any_memory(parts):
    agent = make_reactor(blueprint=Blueprint(body=Mlp(8), **parts), burn_in_step=3)
    assert agent.schedule.burn_in == 3 and agent.schedule.warmup_rows == 0
    frames = Blueprint(encoders={"*": FrameStack(3, Vector())}, **parts)
    agent = make_reactor(blueprint=frames, burn_in_step=3)
    assert agent.schedule.burn_in == 5 and agent.schedule.warmup_rows == 2
