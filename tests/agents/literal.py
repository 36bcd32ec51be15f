"""Literal policies and returns, in plain torch, with which the gradients of agents without a replay are compared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Normal

from algorithm.agents.state_value import StateValueAgent
from algorithm.networks import Blueprint, Gru, Mlp
from algorithm.rollout import Rollout
from algorithm.specs import ACTION_MASK, ActionSpec, Role
from tests.builders import PassThrough
from tests.oracles import vtrace_by_definition

COLUMNS, ROWS, GAMMA = 4, 6, 0.875  # exact in float32, the dtype of a bool times a float
SPECS = {
    "discrete": ActionSpec(0, (3,)),
    "several branches": ActionSpec(0, (3, 2)),
    "continuous": ActionSpec(2),
    "hybrid": ActionSpec(2, (3, 2)),
}
# The kind of action, whether actions are masked, whether the network has a memory, and settings.
CASES = [
    pytest.param("discrete", False, False, {}, id="discrete"),
    pytest.param("discrete", True, False, {}, id="discrete, masked"),
    pytest.param("several branches", False, False, {}, id="several branches"),
    pytest.param("several branches", True, True, {}, id="several branches, masked, with a memory"),
    pytest.param("continuous", False, False, {"std": "learned"}, id="learned std"),
    pytest.param("continuous", False, True, {"std": "state_dependent"}, id="state-dependent std, with a memory"),
    pytest.param("continuous", False, False, {"std": "fixed"}, id="fixed std"),
    pytest.param("continuous", False, False, {"tanh_squash": True}, id="squashed"),
    pytest.param("hybrid", False, False, {}, id="hybrid"),
    pytest.param("hybrid", True, True, {"std": "state_dependent"}, id="hybrid, masked, with a memory"),
]


def make_exact(make: Callable[..., StateValueAgent], role: Role, memory: bool = False, **changes) -> StateValueAgent:
    """Return an agent in float64 whose policy is far from uniform."""
    blueprint = Blueprint(encoders={"*": PassThrough()}, body=Mlp(8), memory=Gru(5) if memory else None)
    agent = make(role, blueprint, **{"gamma": GAMMA, **changes})
    agent.policy.double()
    generator = torch.Generator().manual_seed(1)
    for parameter in agent.policy.parameters():
        nn.init.normal_(parameter, std=0.4, generator=generator)
    return agent


def compute_outputs_by_step(agent: StateValueAgent, rollout: Rollout, rows: int) -> tuple[Tensor, Tensor]:
    """Return the statistics and values of the first `rows` rows, computed one row after the other, as in acting."""
    memory, outputs = rollout.memory, []
    for t in range(rows):
        memory = memory * ~rollout.first[t].unsqueeze(-1)
        features, memory = agent.policy.torso.step({name: value[t] for name, value in rollout.obs.items()}, memory)
        outputs.append(agent.policy.compute_outputs(features))
    statistics, v = torch.stack(outputs).split([agent.family.statistics_size, 1], -1)
    return statistics, v.squeeze(-1)


class LiteralPolicy:
    """The policy of one row: independent distributions of torch, in the order of the action's columns.

    Args:
        spec: The actions.
        statistics: Statistics [S], without a mask.
        allowed: The mask [sum of branches]; None: all actions are allowed.
    """

    def __init__(self, spec: ActionSpec, statistics: Tensor, allowed: Tensor | None):
        mean, log_std, *logits = statistics.split([spec.continuous, spec.continuous, *spec.branches])
        masks = torch.ones(sum(spec.branches)) if allowed is None else allowed
        self.allowed = [mask.bool() for mask in masks.split(list(spec.branches))] if spec.branches else []
        self.continuous = spec.continuous
        self.normal = Normal(mean, log_std.exp())
        self.branches = [Categorical(logits=branch[mask]) for branch, mask in zip(logits, self.allowed, strict=True)]

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the logarithm of the density of an action."""
        result = self.normal.log_prob(action[: self.continuous]).sum()
        for branch, mask, index in zip(self.branches, self.allowed, action[self.continuous :].long(), strict=True):
            result = result + branch.log_prob(mask[:index].sum())
        return result

    @property
    def entropy(self) -> Tensor:
        """Return the entropy, in nats."""
        return self.normal.entropy().sum() + sum(branch.entropy() for branch in self.branches)

    def kl_from(self, old: LiteralPolicy) -> Tensor:
        """Return KL[old || self]."""
        pairs: list[tuple[Distribution, Distribution]] = [(old.normal, self.normal)]
        pairs += zip(old.branches, self.branches, strict=True)
        return sum(torch.distributions.kl_divergence(*pair).sum() for pair in pairs)


def make_literal_policy(spec: ActionSpec, statistics: Tensor, rollout: Rollout, t: int, b: int) -> LiteralPolicy:
    """Return the policy of one row, with the mask of its observation."""
    mask = rollout.obs.get(ACTION_MASK)
    return LiteralPolicy(spec, statistics, None if mask is None else mask[t, b])


def estimate_by_definition(rollout: Rollout, v: np.ndarray, gae_lambda: float) -> np.ndarray:
    """Return V_t + GAE(lambda) as the sum of errors of each row [T, B]; NaN for rows that are not valid."""
    ones = np.ones(rollout.reward.shape)
    arrays = (rollout.reward.numpy(), rollout.alive.numpy(), rollout.first.numpy())
    return vtrace_by_definition(*arrays, GAMMA, v, ones, ones, gae_lambda)[0]
