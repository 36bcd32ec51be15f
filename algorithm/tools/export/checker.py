"""Checks of an ONNX file against Unity's requirements; each violation starts with its rule's number in docs/unity.md.

Source: ML-Agents' packages 2.0.1 to 4.0 (Runtime/Inference), and the importers of Barracuda, Sentis and the Inference
Engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from algorithm.tools.export.onnx_model import BARRACUDA, SENTIS, OnnxModel, TensorInfo
from algorithm.tools.export.probe import run_probes
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
    VERSION,
    VERSION_NUMBER,
    Signature,
)

OBS_NAME = re.compile(r"obs_(\d+)$")
FLOAT, INTEGERS = "FLOAT", ("INT64", "INT32")
OPSETS = range(9, 16)
MAX_AXES = 8
UNSUPPORTED_INPUTS = ("prev_action", "batch_size", "sequence_length")
CONTINUOUS_OUTPUTS = (CONTINUOUS, CONTINUOUS_SIZE, CONTINUOUS_MODE)
DISCRETE_OUTPUTS = (DISCRETE, DISCRETE_SIZES, DISCRETE_MODE)


def find_violations(path: Path, scene: Signature | None = None, opset: int | None = None) -> list[str]:
    """Return the violations of a file, each of which starts with the number of the violated rule.

    Args:
        path: ONNX file.
        scene: Inputs and outputs that the scene has; None for no comparison with a scene.
        opset: Version of ONNX's operators that was requested; None for any.
    """
    try:
        model = OnnxModel(path)
    except Exception as error:  # protobuf raises several types
        return [f"O1: {path.name} cannot be read as ONNX ({_format_error(error)})"]
    found = [violation for rule in RULES for violation in rule(model)]
    if opset is not None and model.get_opset() != opset:
        found.append(f"O2: opset {model.get_opset()} instead of {opset}")
    if not any(violation[0] in "OI" for violation in found):
        found += run_probes(model)
    if scene is not None:
        found += _check_scene(model, scene)
    return found


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


def _check_opset(model: OnnxModel) -> Iterator[str]:
    if model.get_opset() not in OPSETS:
        yield f"O2: opset {model.get_opset()}; Unity's packages read {OPSETS[0]} (Barracuda) to {OPSETS[-1]}"


def _check_operators(model: OnnxModel) -> Iterator[str]:
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
    for name, info in (model.inputs | model.outputs).items():
        if info.kind in ("STRING", "COMPLEX64", "COMPLEX128", "no tensor"):
            yield f"O4: {name} is {info.kind}"
        if len(info.shape) > MAX_AXES:
            yield f"O4: {name} has {len(info.shape)} dimensions; at most {MAX_AXES}"


def _check_finite(model: OnnxModel) -> Iterator[str]:
    for name, value in model.iterate_constants():
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            yield f"I7: {name} holds infinity or NaN; constants must be finite, the logits of masked actions too (-1e8)"


def _check_inputs(model: OnnxModel) -> Iterator[str]:
    indices = sorted(int(match[1]) for name in model.inputs if (match := OBS_NAME.match(name)))
    if indices != list(range(len(indices))) or not indices:
        names = ", ".join(f"obs_{k}" for k in indices) or "missing"
        yield f"I1: observations are {names}; they must be numbered from obs_0"
    for name, info in model.inputs.items():
        yield from _check_input(name, info)


def _check_input(name: str, info: TensorInfo) -> Iterator[str]:
    rule = {MASKS: "I3", MEMORY_IN: "I4"}.get(name, "I2")
    if name in UNSUPPORTED_INPUTS:
        yield f"I5: the input {name} fails in Sentis"
    elif not OBS_NAME.match(name) and name not in (MASKS, MEMORY_IN, "epsilon"):
        yield f"I5: the input {name} is unknown to Unity"
    if info.kind != FLOAT:
        yield f"{rule}: {name} is {info.kind}; every input must be FLOAT"
    if not info.shape or not isinstance(info.shape[0], str):
        yield f"{rule}: the first axis of {name} is {info.shape[0] if info.shape else 'missing'}, not {BATCH}"
    if any(axis == 0 for axis in info.shape):
        yield f"I6: {name} {info} is empty; leave it out"
    elif not all(isinstance(axis, int) for axis in info.shape[1:]):
        yield f"{rule}: {name} {info}; every axis except the first must have a fixed length"
    if OBS_NAME.match(name) and len(info.shape) not in (2, 3, 4):
        yield f"I2: {name} {info}; an observation must be [{BATCH}, size], [{BATCH}, items, size] or [{BATCH}, C, H, W]"


def _check_masks(model: OnnxModel) -> Iterator[str]:
    sizes = model.find_constant(DISCRETE_SIZES)
    discrete = [name for name in (DISCRETE, DISCRETE_MODE) if name in model.outputs]
    if bool(discrete) != (MASKS in model.inputs):
        yield f"I3: the input {MASKS} {'is missing' if discrete else 'exists'}; only discrete actions have it"
        return
    if not discrete:
        return
    shape = model.inputs[MASKS].shape
    if sizes is not None and shape[1:] != (int(sizes.sum()),):
        expected = f"[{BATCH}, {int(sizes.sum())}]"
        yield f"I3: {MASKS} has the shape {list(shape)}; it must be {expected}, all branches concatenated"
    for name in discrete:
        if not model.has_path(MASKS, name):
            yield f"I3: {name} does not depend on {MASKS}"


def _check_memory(model: OnnxModel) -> Iterator[str]:
    size = model.find_constant(MEMORY_SIZE)
    memory_size = 0 if size is None or size.size != 1 else int(size.item())
    for name, rule in ((MEMORY_IN, "I4"), (MEMORY_OUT, "C5")):
        info = (model.inputs | model.outputs).get(name)
        if bool(memory_size) != (info is not None):
            yield f"{rule}: {name} {'is missing' if memory_size else 'exists'}, but {MEMORY_SIZE} is {memory_size}"
        elif info and (len(info.shape) != 3 or info.shape[1:] != (1, memory_size)):
            yield f"{rule}: {name} has the shape {list(info.shape)}; it must be [{BATCH}, 1, {memory_size}]"
    if (info := model.outputs.get(MEMORY_OUT)) and info.kind != FLOAT:
        yield f"C5: {MEMORY_OUT} is {info.kind}; it must be FLOAT"


def _check_constants(model: OnnxModel) -> Iterator[str]:
    sizes = {VERSION_NUMBER: "C1", MEMORY_SIZE: "C2"}
    if set(CONTINUOUS_OUTPUTS) & set(model.outputs):
        sizes[CONTINUOUS_SIZE] = "C3"
    for name, rule in sizes.items():
        value = model.find_constant(name)
        if name not in model.outputs or value is None:
            yield f"{rule}: there is no constant output {name}"
        elif value.dtype != np.float32 or value.shape != (1,):
            yield f"{rule}: {name} is {value.dtype} {list(value.shape)}; it must be float32 [1]"
    version = model.find_constant(VERSION_NUMBER)
    if version is not None and version.size == 1 and version.item() != VERSION:
        yield f"C1: {VERSION_NUMBER} is {version.item():g}; the names of the inputs and outputs require {VERSION:g}"
    for name in (VERSION_NUMBER, MEMORY_SIZE, CONTINUOUS_SIZE, DISCRETE_SIZES):
        if name in model.outputs and name not in model.initializers:
            yield f"C8: {name} is not an initializer; Barracuda reads constants from initializers"


def _check_continuous(model: OnnxModel) -> Iterator[str]:
    size = model.find_constant(CONTINUOUS_SIZE)
    for name in (CONTINUOUS, CONTINUOUS_MODE):
        if name not in model.outputs:
            continue
        info = model.outputs[name]
        if info.kind != FLOAT:
            yield f"C3: {name} is {info.kind}; it must be FLOAT"
        if len(info.shape) != 2 or (size is not None and size.size == 1 and info.shape[1] != int(size.item())):
            yield f"C3: {name} has the shape {list(info.shape)}, and {CONTINUOUS_SIZE} is {_format_values(size)}"


def _check_discrete(model: OnnxModel) -> Iterator[str]:
    if not set(DISCRETE_OUTPUTS) & set(model.outputs):
        return
    sizes = model.find_constant(DISCRETE_SIZES)
    if DISCRETE_SIZES not in model.outputs or sizes is None:
        yield f"C4: there is no constant output {DISCRETE_SIZES}"
    elif sizes.dtype != np.float32 or sizes.shape not in ((sizes.size,), (1, sizes.size)):
        yield f"C4: {DISCRETE_SIZES} is {sizes.dtype} {list(sizes.shape)}; it must be float32 [1, branches]"
    for name in (DISCRETE, DISCRETE_MODE):
        if name not in model.outputs:
            continue
        info = model.outputs[name]
        if info.kind not in INTEGERS:
            yield f"C4: {name} is {info.kind}; indices must be INT64 or INT32"
        if len(info.shape) != 2 or (sizes is not None and info.shape[1] != sizes.size):
            yield f"C4: {name} has the shape {list(info.shape)}, and {DISCRETE_SIZES} is {_format_values(sizes)}"


def _check_outputs(model: OnnxModel) -> Iterator[str]:
    names = list(model.outputs)
    groups = [group for group in (CONTINUOUS_OUTPUTS, DISCRETE_OUTPUTS) if set(group) & set(names)]
    for group in groups:
        for name in (group[0], group[2]):
            if name not in names:
                yield f"C6: there is no output {name}; Unity needs sampled and deterministic actions"
    if not groups:
        yield "C6: there are no actions"
    if others := [name for name in names if name not in ORDER]:
        yield f"C6: outputs unknown to Unity: {', '.join(others)}"
    known = [name for name in names if name in ORDER]
    if known != sorted(known, key=ORDER.index):
        expected = ", ".join(sorted(known, key=ORDER.index))
        yield f"C7: outputs are in the order {', '.join(known)}; it must be {expected}"
    if "?" in model.path.name or model.path.suffix != ".onnx":
        yield f"S7: the file is called {model.path.name}; it must be <Behavior>.onnx, without ?team="


def _check_scene(model: OnnxModel, scene: Signature) -> Iterator[str]:
    """Compare the file with the scene, as the Inspector of Behavior Parameters does."""
    for name, shape in scene.inputs().items():
        rule = {MASKS: "S4", MEMORY_IN: "S6"}.get(name, "S1")
        info = model.inputs.get(name)
        if info is None:
            yield f"{rule}: there is no input {name} {[BATCH, *shape]}"
        elif info.shape[1:] != shape:
            yield f"{rule}: {name} has the shape {list(info.shape)}; the scene has {[BATCH, *shape]}"
    for name in sorted(set(filter(OBS_NAME.match, model.inputs)) - set(scene.inputs())):
        yield f"S1: the scene has no sensor for {name}"
    continuous, branches = model.find_constant(CONTINUOUS_SIZE), model.find_constant(DISCRETE_SIZES)
    if _to_tuple(continuous) != ((scene.continuous,) if scene.continuous else ()):
        yield f"S2: continuous actions are {_format_values(continuous)}; the scene has {scene.continuous}"
    if _to_tuple(branches) != scene.branches:
        expected = ", ".join(map(str, scene.branches)) or "none"
        yield f"S3: branches are {_format_values(branches)}; the scene has {expected}"
    version = _to_tuple(model.find_constant(VERSION_NUMBER))
    if not version or not 2 <= version[0] <= 3:
        yield f"S5: {VERSION_NUMBER} is {_format_values(model.find_constant(VERSION_NUMBER))}; Unity accepts 2 to 3"
    if _to_tuple(model.find_constant(MEMORY_SIZE)) != (scene.memory,):
        found = _format_values(model.find_constant(MEMORY_SIZE))
        yield f"S6: {MEMORY_SIZE} is {found}; the agent's memory has {scene.memory} values"


def _to_tuple(value: np.ndarray | None) -> tuple[float, ...]:
    return () if value is None else tuple(value.ravel().tolist())


def _format_values(value: np.ndarray | None) -> str:
    return ", ".join(f"{number:g}" for number in _to_tuple(value)) or "none"


def _format_error(error: Exception) -> str:
    return " ".join(str(error).split())


RULES: tuple[Callable[[OnnxModel], Iterator[str]], ...] = (
    _check_container,
    _check_opset,
    _check_operators,
    _check_tensors,
    _check_finite,
    _check_inputs,
    _check_masks,
    _check_memory,
    _check_constants,
    _check_continuous,
    _check_discrete,
    _check_outputs,
)
