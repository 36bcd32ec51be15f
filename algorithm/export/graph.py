"""Unity's inputs to Unity's outputs, as one module of torch."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import Tensor, nn

from algorithm.adapters.wrappers.previous_action_reward import PREVIOUS_ACTION
from algorithm.agents.agent import Agent
from algorithm.distributions import Executed
from algorithm.export.onnx_friendly import plain
from algorithm.export.signature import MASKS, MEMORY_IN, Signature
from algorithm.specs import MASK


class Brain(nn.Module):
    """One step of an agent: the inputs of a Signature in their order -> what it computes, in its order.

    It has weights of its own. The previous action, where an agent observes it, is part of the memory: what is drawn,
    since Unity executes that unless it is told to be deterministic.
    """

    def __init__(self, agent: Agent, signature: Signature):
        super().__init__()
        self.policy = plain(deepcopy(agent.policy).eval().requires_grad_(False))
        self.family, self.signature = agent.family, signature
        self.names = list(signature.inputs())

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given, signature = dict(zip(self.names, inputs, strict=True)), self.signature
        obs = {
            sensor.name: _as_observed(given[f"obs_{index}"], sensor) for index, sensor in enumerate(signature.sensors)
        }
        nothing = inputs[0].flatten(1)[:, :0]  # no part of the graph, which leaves out what nobody reads
        allowed = obs[MASK] = given.get(MASKS, nothing)
        memory = given[MEMORY_IN].flatten(1) if signature.memory else nothing
        own = signature.memory - signature.previous
        if signature.previous:
            obs[PREVIOUS_ACTION] = memory[:, own:]
            memory = memory[:, :own]
        statistics, memory = self.policy(obs, memory)
        drawn = self.family.execute_draw(statistics, allowed)
        mode = self.family.execute_mode(statistics, allowed)
        outputs = [*_kinds(drawn, mode)]
        if signature.memory:
            remembered = [memory] * bool(own)
            if signature.previous:
                remembered.append(self._encoded(drawn))
            outputs.append(torch.cat(remembered, -1).reshape(-1, 1, signature.memory))
        return tuple(outputs)

    def _encoded(self, executed: Executed) -> Tensor:
        """As an agent observes its previous action: every branch one-hot."""
        pairs = zip(executed.indices, self.signature.branches, strict=True)
        hot = [nn.functional.one_hot(index[:, 0], count).float() for index, count in pairs]
        return torch.cat((*executed.continuous, *hot), -1)


def _as_observed(value: Tensor, sensor) -> Tensor:
    """An input as the agent's own observation."""
    if sensor.shape != sensor.own:
        value = value.flatten(1)
    return value if sensor.scale == 1 else value * sensor.scale


def _kinds(drawn: Executed, mode: Executed) -> Iterator[Tensor]:
    """Continuous actions as drawn and most probable, then discrete ones: those that there are."""
    for kind in zip(drawn, mode, strict=True):
        for parts in kind:
            if parts:
                yield parts[0] if len(parts) == 1 else torch.cat(parts, -1)
