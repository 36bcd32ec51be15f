"""Resets of the parameters of an agent during training."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from algorithm.agents.agent import Agent
from algorithm.networks import FlatParameters
from algorithm.networks.normalization import find_batch_norms
from algorithm.training.optimizers import OptimizerStep


@torch.no_grad()
def reset_if_due(agent: Agent, parameters: FlatParameters, steps: Iterable[OptimizerStep], update: int) -> None:
    """Reset the parameters of an agent after an update, if it has resets and one of them is due (see ParameterReset).

    Target networks are reset with the same new parameters as their sources, and the running statistics of batch norms
    in the same way. The moments of the agent's optimizers become 0. Auxiliaries are not reset.

    Args:
        agent: The agent; its groups are the first of `parameters`.
        parameters: The flat parameters.
        steps: The steps of all groups.
        update: The number of the update (the first is 1).
    """
    reset = agent.reset
    if not reset or update % reset.every:
        return
    modules = [group.module for group in reset.make_groups().values()]
    new_tensors = [
        torch.cat([parameter.flatten() for module in modules for parameter in module.parameters()]),
        torch.cat([torch.zeros(0), *(norm.running for norm in find_batch_norms(modules))]),
    ]
    vectors = [
        vector[: len(new)]
        for vector, new in zip((parameters.vector, parameters.batch_statistics), new_tensors, strict=True)
    ]
    old_tensors = [vector.clone() for vector in vectors]
    for vector, new in zip(vectors, new_tensors, strict=True):
        vector.copy_(new)
    for target in agent.target_networks.values():  # whose sources have the new parameters now
        target.polyak_update(1 - reset.shrink)
    for vector, old in zip(vectors, old_tensors, strict=True):
        vector.lerp_(old, reset.shrink)
    parameters.reset_increments()
    parameters.complete_step()
    parameters.apply_target_constraints()
    for step in steps:
        if step.name in agent.groups:
            step.optimizer.moments.zero_()
