"""A Brain as an ONNX model."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from algorithm.errors import UserError
from algorithm.export.graph import ExportModule
from algorithm.export.signature import BATCH, ORDER, Signature
from algorithm.specs import Role

OPSET, BARRACUDA = 15, 9  # of Sentis and the Inference Engine (packages 3.x and 4.x), and of Barracuda (1.x and 2.x)


def make_model(export_module: ExportModule, opset: int, metadata: Mapping[str, str]) -> Any:
    """The onnx.ModelProto of a brain, which tells `metadata` itself.

    Raises UserError, with the reason, for what has no form in this opset.
    """
    import onnx

    signature = export_module.signature
    example = tuple(torch.zeros((1, *shape)) for shape in signature.inputs().values())
    computed = list(signature.computed_outputs())
    try:
        serialized = _trace(export_module, example, list(signature.inputs()), computed, opset)
    except Exception as error:  # whatever a module of the user's own, or the exporter, raises
        reason = " ".join(str(error).split())
        raise UserError(f"this network has no form in opset {opset}: {type(error).__name__}: {reason}") from error
    model = onnx.load_from_string(serialized)
    _simplify(model.graph)
    _add_outputs(model, signature)
    model.producer_name, model.producer_version = "samara", ""
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value)
    return model


def _trace(export_module: ExportModule, example: tuple, inputs: list[str], outputs: list[str], opset: int) -> bytes:
    """All of torch's exporter that is used: the one by tracing, since the newer one writes no opset below 18."""
    memory = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            export_module,
            example,
            memory,
            dynamo=False,
            opset_version=opset,
            input_names=inputs,
            output_names=outputs,
            dynamic_axes={name: {0: BATCH} for name in (*inputs, *outputs)},
        )
    return memory.getvalue()


def _simplify(graph: Any) -> None:
    """Read initializers under their own names, as Barracuda wants weights, and leave out what nobody reads."""
    constants = {constant.name for constant in graph.initializer}
    aliases = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Identity" and node.input[0] in constants and not _is_output(graph, node.output[0])
    }
    for node in graph.node:
        node.doc_string = ""
        node.input[:] = [aliases.get(name, name) for name in node.input]
    while unread := [node for node in graph.node if not set(node.output) & _read_names(graph)]:
        for node in unread:
            graph.node.remove(node)
    for constant in [constant for constant in graph.initializer if constant.name not in _read_names(graph)]:
        graph.initializer.remove(constant)


def _is_output(graph: Any, name: str) -> bool:
    return any(output.name == name for output in graph.output)


def _read_names(graph: Any) -> set[str]:
    return {name for node in graph.node for name in node.input} | {output.name for output in graph.output}


def _add_outputs(model: Any, signature: Signature) -> None:
    """Put the constants among the outputs, all of them in the order of ML-Agents' files and with their shapes.

    A constant is an initializer that is itself an output: Barracuda looks for it by its name, later packages run it.
    """
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    integers = {output.name for output in graph.output if output.type.tensor_type.elem_type == TensorProto.INT64}
    computed, constants = signature.computed_outputs(), signature.constants()
    outputs = {}
    for name in ORDER:
        if name in constants:
            outputs[name] = helper.make_tensor_value_info(name, TensorProto.FLOAT, constants[name].shape)
            graph.initializer.append(numpy_helper.from_array(constants[name], name))
        elif name in computed:
            kind = TensorProto.INT64 if name in integers else TensorProto.FLOAT
            outputs[name] = helper.make_tensor_value_info(name, kind, (BATCH, *computed[name]))
    del graph.output[:]
    graph.output.extend(outputs.values())


def make_metadata(role: str, spec: Role, signature: Signature, env_steps: int) -> dict[str, str]:
    """What a reader of the file should know beside its inputs and outputs."""
    observed = {
        f"obs_{index}": {"name": sensor.name, "one_is": sensor.scale} for index, sensor in enumerate(signature.sensors)
    }
    return {
        "role": role,
        "env_steps": str(env_steps),
        "observations": json.dumps(observed),
        "actions": str(spec.action_spec),
    }
