"""The settings of agents that learn state values without a replay, in the agent's parts."""

import pytest
import torch

from algorithm.agents.state_value import normalize_advantages
from algorithm.distributions import FixedStdGaussian, Gaussian
from algorithm.networks import Blueprint, Gru, Mlp
from algorithm.specs import ActionSpec, ObsSpec, Role
from tests.builders import a2c_settings, make_a2c, make_ppo

MAKE_AGENT = {"a2c": make_a2c, "ppo": make_ppo}
CONTINUOUS = Role(1, {"obs": ObsSpec((3,))}, ActionSpec(2))


@pytest.fixture(params=MAKE_AGENT)
def make_agent(request):
    return MAKE_AGENT[request.param]


def test_epochs_and_minibatches_are_those_of_the_settings():
    schedule = make_ppo(epochs=3, minibatches=7).schedule
    assert (schedule.epochs, schedule.minibatches) == (3, 7)
    schedule = make_a2c().schedule
    assert (schedule.epochs, schedule.minibatches) == (None, 1)


@pytest.mark.parametrize("std", ["fixed", "learned", "state_dependent"])
def test_the_std_of_actions_is_that_of_the_settings(make_agent, std):
    agent = make_agent(CONTINUOUS, Blueprint(body=Mlp(8), memory=Gru(4)), std=std, std_init=0.25, std_min=0.125)
    statistics, _ = agent.policy({"obs": torch.randn(6, 3)}, torch.randn(6, 4))
    torch.testing.assert_close(statistics[:, 2:].exp(), torch.full((6, 2), 0.25), rtol=0.1, atol=0)
    assert isinstance(agent.family(statistics), FixedStdGaussian if std == "fixed" else Gaussian)
    (gradient,) = torch.autograd.grad(
        statistics[:, 2:].sum() + 0 * statistics.sum(), [agent.policy.heads.linear.weight], allow_unused=True
    )
    assert bool(gradient.ne(0).any()) == (std == "state_dependent")


def test_advantages_have_mean_0_and_std_1_over_valid_rows():
    advantage, valid = torch.randn(5, 4).double() * 7 + 3, torch.rand(5, 4) < 0.7
    normalized = normalize_advantages(advantage, valid)
    assert normalized[valid].mean().item() == pytest.approx(0, abs=1e-12)
    assert normalized[valid].std().item() == pytest.approx(1)
    assert normalize_advantages(torch.full((5, 4), 2.0), valid)[valid].eq(0).all()  # not NaN


@pytest.mark.parametrize("count", [0, 1])
def test_advantages_of_fewer_than_two_valid_rows_stay_as_they_are(count):
    advantage, valid = torch.randn(5, 4), torch.arange(20).reshape(5, 4) < count
    assert normalize_advantages(advantage, valid).equal(advantage)


def test_std_init_is_above_std_min():
    with pytest.raises(ValueError, match="std_init 0.5 must be above std_min 0.5, unless std is fixed"):
        a2c_settings(std_init=0.5, std_min=0.5)
    a2c_settings(std="fixed", std_init=0.5, std_min=0.5)
