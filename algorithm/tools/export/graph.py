"""One step of an agent as a torch module with Unity's inputs and outputs, and as an ONNX model."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from algorithm.adapters.wrappers import PREVIOUS_ACTION
from algorithm.agents.agent import Agent
from algorithm.distributions import MODE, SAMPLE, ExportedAction
from algorithm.errors import UserError
from algorithm.specs import ACTION_MASK, Role
from algorithm.tools.export.onnx_friendly import SimpleOperators, make_onnx_friendly
from algorithm.tools.export.signature import BATCH, MASKS, MEMORY_IN, ObservationInput, Signature

OPSET = 15  # for Sentis and the Inference Engine, in versions 3.x and 4.x of ML-Agents' package
BARRACUDA_OPSET = 9  # for Barracuda, in versions 1.x and 2.x


class ExportModule(nn.Module):
    """A module that computes one step of an agent: it maps the inputs of a Signature, in order, to its outputs.

    It owns a copy of the weights. If the agent observes its previous action, the memory contains the sampled action,
    which Unity executes unless Behavior Parameters request deterministic inference.
    """

    def __init__(self, agent: Agent, signature: Signature):
        super().__init__()
        self.policy = deepcopy(agent.policy).eval().requires_grad_(False)
        make_onnx_friendly(self.policy)
        self.family, self.signature = agent.family, signature
        self.names = list(signature.inputs())

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of `Signature.computed_outputs` for the inputs of `Signature.inputs`, each [B, ...]."""
        inputs_by_name, signature = dict(zip(self.names, inputs, strict=True)), self.signature
        obs = {
            sensor.name: _to_observation(inputs_by_name[f"obs_{index}"], sensor)
            for index, sensor in enumerate(signature.sensors)
        }
        empty = inputs[0].flatten(1)[:, :0]  # unused, so the graph does not contain it
        allowed = obs[ACTION_MASK] = inputs_by_name.get(MASKS, empty)
        memory = inputs_by_name[MEMORY_IN].flatten(1) if signature.memory else empty
        agent_size = signature.memory - signature.previous
        if signature.previous:
            obs[PREVIOUS_ACTION] = memory[:, agent_size:]
            memory = memory[:, :agent_size]
        statistics, memory = self.policy(obs, memory)
        sampled = self.family.export_action(statistics, allowed, SAMPLE)
        mode = self.family.export_action(statistics, allowed, MODE)
        outputs = [*_order_outputs(sampled, mode)]
        if signature.memory:
            previous = [self._encode_action(sampled)] if signature.previous else []
            outputs.append(torch.cat((memory, *previous), -1).reshape(-1, 1, signature.memory))
        return tuple(outputs)

    def _encode_action(self, executed: ExportedAction) -> Tensor:
        """Return the action as an agent observes its previous one: continuous values, then every branch one-hot."""
        pairs = zip(executed.indices, self.signature.branches, strict=True)
        one_hot = [nn.functional.one_hot(index[:, 0], count).float() for index, count in pairs]
        return torch.cat((*executed.continuous, *one_hot), -1)


def _to_observation(value: Tensor, sensor: ObservationInput) -> Tensor:
    """Convert an input to the observation of the agent's encoder."""
    if sensor.shape != sensor.agent_shape:
        value = value.flatten(1)
    return value if sensor.scale == 1 else value * sensor.scale


def _order_outputs(sampled: ExportedAction, mode: ExportedAction) -> Iterator[Tensor]:
    """Yield continuous, then discrete actions, each sampled and most probable; kinds without actions are left out."""
    for kind in zip(sampled, mode, strict=True):
        yield from (torch.cat(parts, -1) for parts in kind if parts)


def make_model(export_module: ExportModule, opset: int, metadata: Mapping[str, str]) -> Any:
    """Return the onnx.ModelProto of an agent.

    Args:
        export_module: One step of the agent.
        opset: Version of ONNX's operators.
        metadata: Texts that are stored in the file.

    Raises:
        UserError: If the network cannot be expressed in this opset.
    """
    import onnx

    try:
        serialized = _trace(export_module, opset)
    except Exception as error:  # a module in nn.py, and the exporter, may raise any error
        reason = " ".join(str(error).split())
        raise UserError(
            f"this network cannot be expressed in opset {opset}: {type(error).__name__}: {reason}"
        ) from error
    model = onnx.load_from_string(serialized)
    _simplify(model.graph)
    _add_outputs(model.graph, export_module.signature)
    model.producer_name, model.producer_version = "samara", ""
    onnx.helper.set_model_props(model, dict(metadata))
    return model


def _trace(export_module: ExportModule, opset: int) -> bytes:
    """Return the serialized trace of a module, from torch's older exporter: the newer one writes no opset below 18."""
    inputs, outputs = export_module.signature.inputs(), list(export_module.signature.computed_outputs())
    memory = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad(), SimpleOperators():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            export_module,
            tuple(torch.zeros((1, *shape)) for shape in inputs.values()),
            memory,  # type: ignore[arg-type]
            dynamo=False,
            opset_version=opset,
            input_names=list(inputs),
            output_names=outputs,
            dynamic_axes={name: {0: BATCH} for name in (*inputs, *outputs)},
        )
    return memory.getvalue()


def _simplify(graph: Any) -> None:
    """Refer to initializers by their own names, as Barracuda requires, and remove unused nodes and constants."""
    constants, used = {constant.name for constant in graph.initializer}, {output.name for output in graph.output}
    aliases = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Identity" and node.input[0] in constants and node.output[0] not in used
    }
    for node in reversed(list(graph.node)):  # a node precedes those that read its outputs
        node.doc_string = ""
        node.input[:] = [aliases.get(name, name) for name in node.input]
        if used.isdisjoint(node.output):
            graph.node.remove(node)
        else:
            used.update(node.input)
    for constant in [constant for constant in graph.initializer if constant.name not in used]:
        graph.initializer.remove(constant)


def _add_outputs(graph: Any, signature: Signature) -> None:
    """Add the constants to the outputs, and put all outputs, with their shapes, in the order of ML-Agents' files.

    A constant is an initializer that is itself an output: Barracuda reads it by its name, later packages as an output.
    """
    from onnx import TensorProto, helper, numpy_helper

    kinds = {output.name: output.type.tensor_type.elem_type for output in graph.output}
    del graph.output[:]
    for name, output in signature.outputs().items():
        shape: Any = (BATCH, *output) if isinstance(output, tuple) else output.shape
        graph.output.append(helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), shape))
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in signature.constants().items())


def make_metadata(role: str, spec: Role, signature: Signature, env_steps: int) -> dict[str, str]:
    """Return the metadata of the file of a role: its name, env steps, observations and actions."""
    observed = {
        f"obs_{index}": {"name": sensor.name, "one_is": sensor.scale} for index, sensor in enumerate(signature.sensors)
    }
    return {
        "role": role,
        "env_steps": str(env_steps),
        "observations": json.dumps(observed),
        "actions": str(spec.action_spec),
    }
