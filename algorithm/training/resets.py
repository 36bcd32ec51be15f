"""Resets of the parameters of an agent during training."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from algorithm.agents.agent import Agent, ParameterReset
from algorithm.networks import FlatParameters
from algorithm.training.optimizers import Optimizer


@torch.no_grad()
def reset_parameters(
    reset: ParameterReset, agent: Agent, parameters: FlatParameters, optimizers: Iterable[Optimizer]
) -> None:
    """Reset the parameters of an agent and of its target networks, by the same new parameters, and all moments.

    Args:
        reset: The reset.
        agent: The agent; its groups are the first of `parameters`.
        parameters: The flat parameters, perhaps with further groups, which stay.
        optimizers: The optimizers of the agent's groups.
    """
    new = torch.cat([p.flatten() for group in reset.make_groups().values() for p in group.module.parameters()])
    vector = parameters.vector[: len(new)]
    old = vector.clone()
    vector.copy_(new)
    for target in agent.target_networks.values():  # of which the source has the new parameters now
        target.polyak_update(1 - reset.shrink)
    vector.lerp_(old, reset.shrink)
    for optimizer in optimizers:
        optimizer.moments.zero_()
