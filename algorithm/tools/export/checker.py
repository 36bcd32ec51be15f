"""Checks of an ONNX file against Unity's requirements; each violation starts with its rule's number in docs/unity.md.

Source: ML-Agents' packages 2.0.1 to 4.0 (Runtime/Inference), and the importers of Barracuda, Sentis and the Inference
Engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.tools.export.onnx_model import BARRACUDA, SENTIS, OnnxModel, TensorInfo, make_session, run_session
from algorithm.tools.export.signature import (
    BATCH,
    CONTINUOUS,
    CONTINUOUS_MODE,
    CONTINUOUS_SIZE,
    DISCRETE,
    DISCRETE_MODE,
    DISCRETE_SIZES,
    MASKS,
    MEMORY_IN,
    MEMORY_OUT,
    MEMORY_SIZE,
    ORDER,
    VERSION_NUMBER,
    Shape,
    Signature,
)

OPSETS = range(9, 16)
MAX_AXES = 8
FLOATS, INTEGERS = ("FLOAT",), ("INT64", "INT32")
KINDS = {DISCRETE: INTEGERS, DISCRETE_MODE: INTEGERS}  # of outputs that are no floats
RULES = {
    MASKS: "I3",
    MEMORY_IN: "I4",
    VERSION_NUMBER: "C1",
    MEMORY_SIZE: "C2",
    **dict.fromkeys((CONTINUOUS, CONTINUOUS_SIZE, CONTINUOUS_MODE), "C3"),
    **dict.fromkeys((DISCRETE, DISCRETE_SIZES, DISCRETE_MODE), "C4"),
    MEMORY_OUT: "C5",
}  # by the name of an input or output; I2 for observations
LARGE_INPUT = 1e3  # standard deviation of observations, for which unbounded actions exceed [-1, 1]


def find_violations(path: Path, signature: Signature, opset: int) -> list[str]:
    """Return the violations of a file, each of which starts with the number of the violated rule.

    Args:
        path: ONNX file.
        signature: Inputs and outputs that the scene has.
        opset: Version of ONNX's operators that was requested.
    """
    try:
        model = OnnxModel(path)
    except Exception as error:  # protobuf raises several types
        return [f"O1: {path.name} cannot be read as ONNX ({_format_error(error)})"]
    found = [*_check_container(model), *_check_operators(model, opset), *_check_tensors(model)]
    found += _check_ports(model, signature)
    if "?" in path.name or path.suffix != ".onnx":
        found.append(f"S7: the file is called {path.name}; it must be <Behavior>.onnx, without ?team=")
    return found or list(_run_probes(path, signature))


def _check_container(model: OnnxModel) -> Iterator[str]:
    import onnx

    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.initializers.values()):
        yield "O1: weights are in another file"
    domains = {one.domain for one in model.proto.opset_import} | {node.domain for node in model.nodes}
    if foreign := sorted(domains - {"", "ai.onnx"}):
        yield f"O1: operators of the domain {', '.join(foreign)}; only the operators of ONNX itself are imported"
    try:
        onnx.checker.check_model(model.proto, full_check=True)
    except Exception as error:  # onnx raises several types
        yield f"O1: onnx.checker rejects the file ({_format_error(error)})"


def _check_operators(model: OnnxModel, opset: int) -> Iterator[str]:
    if model.get_opset() not in OPSETS:
        yield f"O2: opset {model.get_opset()}; Unity's packages read {OPSETS[0]} (Barracuda) to {OPSETS[-1]}"
    elif model.get_opset() != opset:
        yield f"O2: opset {model.get_opset()} instead of {opset}"
    table, name = (BARRACUDA, "Barracuda") if model.get_opset() == OPSETS[0] else (SENTIS, "Sentis")
    for operator in sorted({node.op_type for node in model.nodes if node.domain in ("", "ai.onnx")} - table):
        yield f"O3: {name} does not import the operator {operator}"


def _check_tensors(model: OnnxModel) -> Iterator[str]:
    from onnx import TensorProto

    if model.proto.graph.sparse_initializer:
        yield "O4: sparse weights"
    for name, tensor in model.initializers.items():
        if tensor.data_type in (TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128):
            yield f"O4: {name} is {TensorProto.DataType.Name(tensor.data_type)}"
        if len(tensor.dims) > MAX_AXES:
            yield f"O4: {name} has {len(tensor.dims)} dimensions; at most {MAX_AXES}"
    for name, value in model.iterate_constants():
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            yield f"I7: {name} holds infinity or NaN; constants must be finite, the logits of masked actions too (-1e8)"


def _check_ports(model: OnnxModel, signature: Signature) -> Iterator[str]:
    """Compare inputs, outputs and constants with those of the scene, as the Inspector of Behavior Parameters does."""
    inputs, computed, constants = signature.inputs(), signature.computed_outputs(), signature.constants()
    for name, shape in inputs.items():
        if name not in RULES and (len(shape) not in (1, 2, 3) or 0 in shape):
            yield f"I2: {name} {[BATCH, *shape]}; Unity has [{BATCH}, size], [{BATCH}, items, size], [{BATCH}, C, H, W]"
    yield from _compare(model.inputs, inputs)
    yield from _compare(model.outputs, computed)
    if unknown := sorted(set(model.inputs) - set(inputs)):
        yield f"I5: inputs unknown to the scene: {', '.join(unknown)}"
    for name, value in constants.items():
        if (found := model.find_constant(name)) is None:
            yield f"C8: {name} is not an initializer; Barracuda reads constants from initializers"
        elif found.dtype != value.dtype or not np.array_equal(found, value):
            yield f"{RULES[name]}: {name} is {_format_constant(found)}; it must be {_format_constant(value)}"
    expected = [name for name in ORDER if name in computed or name in constants]
    if list(model.outputs) != expected:
        yield f"C6: the outputs are {', '.join(model.outputs) or 'missing'}; they must be {', '.join(expected)}"


def _compare(found: Mapping[str, TensorInfo], expected: Mapping[str, Shape]) -> Iterator[str]:
    """Compare inputs or outputs with those of the scene, whose shapes lack the batch axis."""
    for name, shape in expected.items():
        kinds, rule = KINDS.get(name, FLOATS), RULES.get(name, "I2")
        needed = f"{kinds[0]} [{', '.join(map(str, (BATCH, *shape)))}]"
        info = found.get(name)
        if info is None:
            yield f"{rule}: {name} is missing; the scene has {needed}"
        elif info.kind not in kinds or not info.shape or not isinstance(info.shape[0], str) or info.shape[1:] != shape:
            yield f"{rule}: {name} is {info}; the scene has {needed}"


def _run_probes(path: Path, signature: Signature) -> Iterator[str]:
    """Run the file on zeros, as Unity does when it loads a model, in a larger batch, and on large observations."""
    try:
        session = make_session(path.read_bytes())
    except Exception as error:  # onnxruntime raises several types
        yield f"I7: onnxruntime cannot load the file ({_format_error(error)})"
        return
    rng = np.random.default_rng(0)
    for rule, batch, scale in (("I7", 1, 0.0), ("I2", 3, 0.0), ("I7", 16, LARGE_INPUT)):
        feed = {
            name: (scale * rng.standard_normal((batch, *shape))).astype(np.float32)
            for name, shape in signature.inputs().items()
        }
        if scale and MASKS in feed:
            feed[MASKS] = np.ones_like(feed[MASKS])
        try:
            outputs = run_session(session, feed)
        except Exception as error:  # onnxruntime raises several types
            yield f"{rule}: the file does not run in a batch of {batch} ({_format_error(error)})"
            return
        yield from _check_outputs(outputs, signature, batch)
        if not scale:
            unbounded = [name for name, value in outputs.items() if not np.isfinite(value).all()]
            yield from (f"I7: {name} is not finite if all inputs are 0" for name in unbounded)


def _check_outputs(outputs: Mapping[str, Any], signature: Signature, batch: int) -> Iterator[str]:
    for name, shape in signature.computed_outputs().items():
        value = outputs[name]
        if value.shape != (batch, *shape):
            yield f"I2: {name} has the shape {list(value.shape)} in a batch of {batch}, not {[batch, *shape]}"
        elif name in KINDS and ((value < 0) | (value >= signature.branches)).any():
            yield f"C4: {name} ranges from {value.min()} to {value.max()}, beyond the sizes of its branches"
        elif name in (CONTINUOUS, CONTINUOUS_MODE) and not (np.abs(value) <= 1).all():
            yield f"C3: {name} reaches {np.abs(value).max():.3g}; actions must be from -1 to 1"


def _format_constant(value: np.ndarray) -> str:
    return f"{value.dtype} {list(value.shape)}: {', '.join(f'{number:g}' for number in value.ravel())}"


def _format_error(error: Exception) -> str:
    return " ".join(str(error).split())
