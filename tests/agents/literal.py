"""Literal policies and returns, in torch.distributions, with which the gradients of agents are compared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal, kl_divergence

from algorithm.agents.a2c import StateValueAgent
from algorithm.distributions import MASKED_LOGIT
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


def move_parameters(network: nn.Module, std: float, seed: int) -> None:
    """Add noise to all parameters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += std * torch.randn(parameter.shape, generator=generator)


def compute_outputs_by_step(agent: StateValueAgent, rollout: Rollout, rows: int) -> tuple[Tensor, Tensor]:
    """Return the statistics and values of the first `rows` rows, computed one row after the other, as in acting.

    Forbidden actions have the probability 0.
    """
    memory, outputs = rollout.memory, []
    for t in range(rows):
        memory = memory * ~rollout.first[t].unsqueeze(-1)
        features, memory = agent.policy.torso.step({name: value[t] for name, value in rollout.obs.items()}, memory)
        outputs.append(agent.policy.compute_outputs(features))
    statistics, v = torch.stack(outputs).split([agent.family.statistics_size, 1], -1)
    if ACTION_MASK in rollout.obs:
        allowed = rollout.obs[ACTION_MASK][:rows].bool()
        others, logits = statistics.tensor_split([-allowed.shape[-1]], -1)
        statistics = torch.cat((others, logits.masked_fill(~allowed, MASKED_LOGIT)), -1)
    return statistics, v.squeeze(-1)


def list_parts(spec: ActionSpec, statistics: Tensor) -> list[tuple[Distribution, slice | int]]:
    """Return the parts of policies in torch.distributions, with the columns of their samples."""
    d = spec.continuous
    parts = [(Independent(Normal(statistics[..., :d], statistics[..., d : 2 * d].exp()), 1), slice(0, d))] if d else []
    logits = statistics[..., 2 * d :].split(list(spec.branches), -1)
    return parts + [(Categorical(logits=part), d + place) for place, part in enumerate(logits)]


def compute_log_prob(spec: ActionSpec, statistics: Tensor, sample: Tensor) -> Tensor:
    """Return log pi of samples."""
    return sum(part.log_prob(sample[..., where]) for part, where in list_parts(spec, statistics))


def compute_entropy(spec: ActionSpec, statistics: Tensor) -> Tensor:
    """Return the entropies, in nats."""
    return sum(part.entropy() for part, _ in list_parts(spec, statistics))


def compute_kl(spec: ActionSpec, old: Tensor, statistics: Tensor) -> Tensor:
    """Return KL[old || policy]."""
    pairs = zip(list_parts(spec, old), list_parts(spec, statistics), strict=True)
    return sum(kl_divergence(one, other) for (one, _), (other, _) in pairs)


def normalize(advantage: Tensor, valid: Tensor) -> Tensor:
    """Return advantages with mean 0 and standard deviation 1 over valid rows."""
    return (advantage - advantage[valid].mean()) / (advantage[valid].std() + 1e-8)


def estimate_by_definition(rollout: Rollout, v: Tensor, gae_lambda: float) -> Tensor:
    """Return V_t + GAE(lambda) as the sum of errors of each row [T, B], given V [T+1, B]; 0 for invalid rows."""
    ones = np.ones(rollout.reward.shape)
    arrays = (rollout.reward.numpy(), rollout.alive.numpy(), rollout.first.numpy())
    target = vtrace_by_definition(*arrays, GAMMA, v.detach().numpy(), ones, ones, gae_lambda)[0]
    np.testing.assert_array_equal(np.isnan(target), ~rollout.valid.numpy())
    return torch.from_numpy(np.nan_to_num(target))
