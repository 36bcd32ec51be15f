"""Unity's inputs to Unity's outputs, as one module of torch."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import torch
from torch import Tensor, nn

from algorithm.adapters.wrappers.previous_action_reward import PREVIOUS_ACTION
from algorithm.agents.agent import Agent
from algorithm.distributions import ExportedAction
from algorithm.export.onnx_friendly import to_onnx_friendly
from algorithm.export.signature import MASKS, MEMORY_IN, Signature
from algorithm.specs import ACTION_MASK


class ExportModule(nn.Module):
    """One step of an agent: the inputs of a Signature in their order -> what it computes, in its order.

    It has weights of its own. The previous action, where an agent observes it, is part of the memory: what is drawn,
    since Unity executes that unless it is told to be deterministic.
    """

    def __init__(self, agent: Agent, signature: Signature):
        super().__init__()
        self.policy = to_onnx_friendly(deepcopy(agent.policy).eval().requires_grad_(False))
        self.family, self.signature = agent.family, signature
        self.names = list(signature.inputs())

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        inputs_by_name, signature = dict(zip(self.names, inputs, strict=True)), self.signature
        obs = {
            sensor.name: _to_observation(inputs_by_name[f"obs_{index}"], sensor)
            for index, sensor in enumerate(signature.sensors)
        }
        empty = inputs[0].flatten(1)[:, :0]  # no part of the graph, which leaves out what nobody reads
        allowed = obs[ACTION_MASK] = inputs_by_name.get(MASKS, empty)
        memory = inputs_by_name[MEMORY_IN].flatten(1) if signature.memory else empty
        agent_size = signature.memory - signature.previous
        if signature.previous:
            obs[PREVIOUS_ACTION] = memory[:, agent_size:]
            memory = memory[:, :agent_size]
        statistics, memory = self.policy(obs, memory)
        sampled = self.family.sample_for_export(statistics, allowed)
        mode = self.family.mode_for_export(statistics, allowed)
        outputs = [*_order_outputs(sampled, mode)]
        if signature.memory:
            memory_parts = [memory] * bool(agent_size)
            if signature.previous:
                memory_parts.append(self._encode_action(sampled))
            outputs.append(torch.cat(memory_parts, -1).reshape(-1, 1, signature.memory))
        return tuple(outputs)

    def _encode_action(self, executed: ExportedAction) -> Tensor:
        """As an agent observes its previous action: every branch one-hot."""
        pairs = zip(executed.indices, self.signature.branches, strict=True)
        one_hot = [nn.functional.one_hot(index[:, 0], count).float() for index, count in pairs]
        return torch.cat((*executed.continuous, *one_hot), -1)


def _to_observation(value: Tensor, sensor) -> Tensor:
    """An input as the agent's own observation."""
    if sensor.shape != sensor.agent_shape:
        value = value.flatten(1)
    return value if sensor.scale == 1 else value * sensor.scale


def _order_outputs(sampled: ExportedAction, mode: ExportedAction) -> Iterator[Tensor]:
    """Continuous actions as drawn and most probable, then discrete ones: those that there are."""
    for kind in zip(sampled, mode, strict=True):
        for parts in kind:
            if parts:
                yield parts[0] if len(parts) == 1 else torch.cat(parts, -1)
