"""The bounds of importance ratios in ACER: log rho, log rho / d and the log ratio of a' are clamped to [-20, 20]."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from algorithm.agents.acer.critics import ActionAdvantages, StochasticDueling
from algorithm.distributions import Gaussian, TanhGaussianFamily, make_family
from algorithm.specs import ActionSpec, ObsSpec, Role
from tests.builders import make_exact_acer, random_rollout, to_float64

LOG_RATIOS = (-60.0, -20.5, 20.5, 60.0)
DIMENSIONS = 2


def make_agent(**changes):
    role = Role(1, {"obs": ObsSpec((3,))}, ActionSpec(continuous=DIMENSIONS))
    return make_exact_acer(role, critic="action_value", std="state_dependent", gamma=0.875, **changes)


def make_rollout(agent, log_ratio_per_dimension, rows=2):
    """Return a sequence of one episode, whose taken actions have this log ratio per dimension.

    The actions are the means of the policy; the behavior has the same means and another std.
    """
    rollout = to_float64(random_rollout(np.random.default_rng(0), rows, 1))
    rollout.first[:], rollout.alive[:] = False, True
    features = agent.policy.torso.unroll(rollout.obs, rollout.first, rollout.memory)
    statistics = agent.policy.compute_outputs(features).detach()[:-1, :, : 2 * DIMENSIONS]
    mean, log_std = statistics.chunk(2, -1)
    return replace(rollout, raw_action=mean, behavior=torch.cat((mean, log_std + log_ratio_per_dimension), -1))


@pytest.mark.parametrize("log_ratio", LOG_RATIOS)
def test_the_importance_ratio_is_bounded(log_ratio):
    agent = make_agent()
    metrics = agent.loss(make_rollout(agent, log_ratio / DIMENSIONS))[1].compute_metrics()
    bounded = math.copysign(20, log_ratio)
    assert metrics["train/importance_ratio"].item() == pytest.approx(math.exp(bounded), rel=1e-9)


def sum_errors(log_ratio_per_dimension, trace_clip):
    """Return the sum of both TD errors of two steps with rewards so large that the errors are positive.

    Of Retrace (Eq. 5) it is delta_0 + gamma c_1 delta_1 + delta_1, c_1 the trace of the second step.
    """
    agent = make_agent(estimator="retrace", trace_lambda=1.0, trace_clip=trace_clip)
    rollout = make_rollout(agent, log_ratio_per_dimension)
    rollout.reward[:] = 100.0
    torch.manual_seed(0)
    mean_error = agent.loss(rollout)[1].compute_td_errors()[1]
    return 2 * mean_error.item()


@pytest.mark.parametrize("log_ratio", LOG_RATIOS)
def test_the_ratio_per_dimension_is_bounded(log_ratio):
    without_trace = sum_errors(log_ratio, trace_clip=0.0)
    of_trace_one = sum_errors(0.0, trace_clip=1.0) - without_trace
    trace = (sum_errors(log_ratio, trace_clip=1e30) - without_trace) / of_trace_one
    assert trace == pytest.approx(math.exp(math.copysign(20, log_ratio)), rel=1e-4)


@pytest.mark.parametrize("log_ratio", LOG_RATIOS)
def test_the_ratio_of_the_bias_correction_is_bounded(log_ratio):
    """With c = exp(bound) / 2 the correction of Eq. 15 is half of A(a'), however far the ratio is above its bound."""
    family = make_family(1, (), TanhGaussianFamily, Gaussian)
    statistics, zero = torch.zeros(2, 1, 2).double(), torch.zeros(1, 1, 1).double()
    advantages = torch.tensor([0.0, 3.0, 1.0, 1.0]).double().view(4, 1, 1)  # A(a') = 3 - 1
    output = StochasticDueling(zero.expand(2, 1, 1), family(statistics), zero, ActionAdvantages(advantages, zero + 0.5))
    # N(0.5; 0.5, exp(-s)) of the behavior against N(0.5; 0, 1) of the policy: a log ratio of -s - 0.125.
    behavior = family(torch.tensor([0.5, log_ratio + 0.125]).double().view(1, 1, 2))
    bound = math.exp(math.copysign(20, log_ratio))
    gradient = output.policy_gradient(torch.zeros(1, 1).double(), behavior, bound / 2)
    # Scores of N(0, 1) at 0.5: 0.5 for the mean, 0.5^2 - 1 for the logarithm of std; times A(a') / 2 = 1.
    torch.testing.assert_close(gradient, torch.tensor([[[0.5, -0.75]]]).double(), rtol=1e-9, atol=0)
