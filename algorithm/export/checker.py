"""What Unity demands of a file, line by line; the numbers are those of docs/unity.md. Every violation has a name.

Read in the source of ML-Agents' packages 2.0.1 to 4.0 (Runtime/Inference) and of the importers of Barracuda, Sentis and
the Inference Engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from algorithm.export.onnx_model import Model, Port
from algorithm.export.operators import BARRACUDA, SENTIS
from algorithm.export.probe import probe
from algorithm.export.signature import (
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

OBS = re.compile(r"obs_(\d+)$")
FLOAT, WHOLE = "FLOAT", ("INT64", "INT32")
OPSETS = range(9, 16)
AXES = 8
BROKEN_INPUTS = ("prev_action", "batch_size", "sequence_length")
OF_CONTINUOUS = (CONTINUOUS, CONTINUOUS_SIZE, CONTINUOUS_MODE)
OF_DISCRETE = (DISCRETE, DISCRETE_SIZES, DISCRETE_MODE)


def check(path: Path, scene: Signature | None = None, opset: int | None = None) -> list[str]:
    """Every violation of a file, also against what a scene has and the opset that was asked for; none where it is good.

    Each begins with the number of the line that is violated.
    """
    try:
        model = Model(path)
    except Exception as error:  # whatever protobuf raises
        return [f"O1: {path.name} cannot be read as ONNX ({_line(error)})"]
    found = [violation for rule in RULES for violation in rule(model)]
    if opset is not None and model.opset() != opset:
        found.append(f"O2: opset {model.opset()} instead of {opset}")
    if not any(violation[0] in "OI" for violation in found):
        found += probe(model)
    if scene is not None:
        found += _scene(model, scene)
    return found


def _container(model: Model) -> Iterator[str]:
    import onnx

    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.initializers.values()):
        yield "O1: weights are in another file"
    domains = {one.domain for one in model.proto.opset_import} | {node.domain for node in model.nodes}
    if foreign := sorted(domains - {"", "ai.onnx"}):
        yield f"O1: operators of the domain {', '.join(foreign)}; only those of ONNX itself are imported"
    try:
        onnx.checker.check_model(model.proto, full_check=True)
    except Exception as error:  # of several kinds
        yield f"O1: onnx.checker refuses the file ({_line(error)})"


def _opset(model: Model) -> Iterator[str]:
    if model.opset() not in OPSETS:
        yield f"O2: opset {model.opset()}; Unity's packages read {OPSETS[0]} (Barracuda) to {OPSETS[-1]}"


def _operators(model: Model) -> Iterator[str]:
    table, name = (BARRACUDA, "Barracuda") if model.opset() == OPSETS[0] else (SENTIS, "Sentis")
    for operator in sorted({node.op_type for node in model.nodes if node.domain in ("", "ai.onnx")} - table):
        yield f"O3: {name} imports no operator {operator}"


def _tensors(model: Model) -> Iterator[str]:
    from onnx import TensorProto

    if model.proto.graph.sparse_initializer:
        yield "O4: sparse weights"
    for name, tensor in model.initializers.items():
        if tensor.data_type in (TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128):
            yield f"O4: {name} is {TensorProto.DataType.Name(tensor.data_type)}"
        if len(tensor.dims) > AXES:
            yield f"O4: {name} has {len(tensor.dims)} dimensions; at most {AXES}"
    for name, port in (model.inputs | model.outputs).items():
        if port.kind in ("STRING", "COMPLEX64", "COMPLEX128", "no tensor"):
            yield f"O4: {name} is {port.kind}"
        if len(port.shape) > AXES:
            yield f"O4: {name} has {len(port.shape)} dimensions; at most {AXES}"


def _finite(model: Model) -> Iterator[str]:
    for name, value in model.numbers():
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            yield f"I7: {name} holds infinity or NaN; forbidden logits are at -1e8"


def _inputs(model: Model) -> Iterator[str]:
    indices = sorted(int(match[1]) for name in model.inputs if (match := OBS.match(name)))
    if indices != list(range(len(indices))) or not indices:
        yield f"I1: observations are {', '.join(f'obs_{k}' for k in indices) or 'missing'}; they go from obs_0 on"
    for name, port in model.inputs.items():
        yield from _input(name, port)


def _input(name: str, port: Port) -> Iterator[str]:
    rule = {MASKS: "I3", MEMORY_IN: "I4"}.get(name, "I2")
    if name in BROKEN_INPUTS:
        yield f"I5: the input {name} has broken in Sentis"
    elif not OBS.match(name) and name not in (MASKS, MEMORY_IN, "epsilon"):
        yield f"I5: the input {name} is unknown to Unity"
    if port.kind != FLOAT:
        yield f"{rule}: {name} is {port.kind}; every input is FLOAT"
    if not port.shape or not isinstance(port.shape[0], str):
        yield f"{rule}: the first axis of {name} is {port.shape[0] if port.shape else 'missing'}, not {BATCH}"
    if any(axis == 0 for axis in port.shape):
        yield f"I6: {name} {port} holds nothing; leave it out"
    elif not all(isinstance(axis, int) for axis in port.shape[1:]):
        yield f"{rule}: {name} {port}; every axis but the first has a fixed length"
    if OBS.match(name) and len(port.shape) not in (2, 3, 4):
        yield f"I2: {name} {port}; an observation is [{BATCH}, size], [{BATCH}, items, size] or [{BATCH}, C, H, W]"


def _masks(model: Model) -> Iterator[str]:
    sizes = model.constant(DISCRETE_SIZES)
    discrete = [name for name in (DISCRETE, DISCRETE_MODE) if name in model.outputs]
    if bool(discrete) != (MASKS in model.inputs):
        yield f"I3: {'no' if discrete else 'an'} input {MASKS}; there is one where there are discrete actions"
        return
    if not discrete:
        return
    shape = model.inputs[MASKS].shape
    if sizes is not None and shape[1:] != (int(sizes.sum()),):
        yield f"I3: {MASKS} has the shape {list(shape)}; it is [{BATCH}, {int(sizes.sum())}], all branches side by side"
    for name in discrete:
        if not model.reaches(MASKS, name):
            yield f"I3: {name} does not depend on {MASKS}"


def _memory(model: Model) -> Iterator[str]:
    size = model.constant(MEMORY_SIZE)
    remembered = 0 if size is None or size.size != 1 else int(size.item())
    for name, rule in ((MEMORY_IN, "I4"), (MEMORY_OUT, "C5")):
        port = (model.inputs | model.outputs).get(name)
        if bool(remembered) != (port is not None):
            yield f"{rule}: {'no' if remembered else 'a'} {name} where {MEMORY_SIZE} is {remembered}"
        elif port and (len(port.shape) != 3 or port.shape[1:] != (1, remembered)):
            yield f"{rule}: {name} has the shape {list(port.shape)}; it is [{BATCH}, 1, {remembered}]"
    if (port := model.outputs.get(MEMORY_OUT)) and port.kind != FLOAT:
        yield f"C5: {MEMORY_OUT} is {port.kind}; it is FLOAT"


def _constants(model: Model) -> Iterator[str]:
    sizes = {VERSION_NUMBER: "C1", MEMORY_SIZE: "C2"}
    if set(OF_CONTINUOUS) & set(model.outputs):
        sizes[CONTINUOUS_SIZE] = "C3"
    for name, rule in sizes.items():
        value = model.constant(name)
        if name not in model.outputs or value is None:
            yield f"{rule}: there is no constant output {name}"
        elif value.dtype != np.float32 or value.shape != (1,):
            yield f"{rule}: {name} is {value.dtype} {list(value.shape)}; it is float32 [1]"
    version = model.constant(VERSION_NUMBER)
    if version is not None and version.size == 1 and version.item() != VERSION:
        yield f"C1: {VERSION_NUMBER} is {version.item():g}; the names of this interface are those of {VERSION:g}"
    for name in (VERSION_NUMBER, MEMORY_SIZE, CONTINUOUS_SIZE, DISCRETE_SIZES):
        if name in model.outputs and name not in model.initializers:
            yield f"C8: {name} is no initializer, where Barracuda looks for it"


def _continuous(model: Model) -> Iterator[str]:
    size = model.constant(CONTINUOUS_SIZE)
    for name in (CONTINUOUS, CONTINUOUS_MODE):
        if name not in model.outputs:
            continue
        port = model.outputs[name]
        if port.kind != FLOAT:
            yield f"C3: {name} is {port.kind}; it is FLOAT"
        if len(port.shape) != 2 or (size is not None and size.size == 1 and port.shape[1] != int(size.item())):
            yield f"C3: {name} has the shape {list(port.shape)}, and {CONTINUOUS_SIZE} is {_listed(size)}"


def _discrete(model: Model) -> Iterator[str]:
    if not set(OF_DISCRETE) & set(model.outputs):
        return
    sizes = model.constant(DISCRETE_SIZES)
    if DISCRETE_SIZES not in model.outputs or sizes is None:
        yield f"C4: there is no constant output {DISCRETE_SIZES}"
    elif sizes.dtype != np.float32 or sizes.shape not in ((sizes.size,), (1, sizes.size)):
        yield f"C4: {DISCRETE_SIZES} is {sizes.dtype} {list(sizes.shape)}; it is float32 [1, branches]"
    for name in (DISCRETE, DISCRETE_MODE):
        if name not in model.outputs:
            continue
        port = model.outputs[name]
        if port.kind not in WHOLE:
            yield f"C4: {name} is {port.kind}; indices are INT64 or INT32"
        if len(port.shape) != 2 or (sizes is not None and port.shape[1] != sizes.size):
            yield f"C4: {name} has the shape {list(port.shape)}, and {DISCRETE_SIZES} is {_listed(sizes)}"


def _outputs(model: Model) -> Iterator[str]:
    names = list(model.outputs)
    groups = [group for group in (OF_CONTINUOUS, OF_DISCRETE) if set(group) & set(names)]
    for group in groups:
        for name in (group[0], group[2]):
            if name not in names:
                yield f"C6: there is no output {name}; Unity asks for both, drawn and deterministic"
    if not groups:
        yield "C6: there are no actions"
    if others := [name for name in names if name not in ORDER]:
        yield f"C6: outputs that are not Unity's: {', '.join(others)}"
    known = [name for name in names if name in ORDER]
    if known != sorted(known, key=ORDER.index):
        yield f"C7: outputs are in the order {', '.join(known)}; it is {', '.join(sorted(known, key=ORDER.index))}"
    if "?" in model.path.name or model.path.suffix != ".onnx":
        yield f"S7: the file is called {model.path.name}; it is <Behavior>.onnx, without ?team="


def _scene(model: Model, scene: Signature) -> Iterator[str]:
    """What the Inspector of Behavior Parameters compares."""
    for name, shape in scene.inputs().items():
        rule = {MASKS: "S4", MEMORY_IN: "S6"}.get(name, "S1")
        port = model.inputs.get(name)
        if port is None:
            yield f"{rule}: there is no input {name} {[BATCH, *shape]}"
        elif port.shape[1:] != shape:
            yield f"{rule}: {name} has the shape {list(port.shape)}; the scene has {[BATCH, *shape]}"
    for name in sorted(set(filter(OBS.match, model.inputs)) - set(scene.inputs())):
        yield f"S1: the scene has no sensor for {name}"
    continuous, branches = model.constant(CONTINUOUS_SIZE), model.constant(DISCRETE_SIZES)
    if _numbers(continuous) != ((scene.continuous,) if scene.continuous else ()):
        yield f"S2: continuous actions are {_listed(continuous)}; the scene has {scene.continuous}"
    if _numbers(branches) != scene.branches:
        yield f"S3: branches are {_listed(branches)}; the scene has {', '.join(map(str, scene.branches)) or 'none'}"
    version = _numbers(model.constant(VERSION_NUMBER))
    if not version or not 2 <= version[0] <= 3:
        yield f"S5: {VERSION_NUMBER} is {_listed(model.constant(VERSION_NUMBER))}; Unity takes 2 to 3"
    if _numbers(model.constant(MEMORY_SIZE)) != (scene.memory,):
        yield f"S6: {MEMORY_SIZE} is {_listed(model.constant(MEMORY_SIZE))}; the agent remembers {scene.memory}"


def _numbers(value: np.ndarray | None) -> tuple[float, ...]:
    return () if value is None else tuple(value.ravel().tolist())


def _listed(value: np.ndarray | None) -> str:
    return ", ".join(f"{number:g}" for number in _numbers(value)) or "none"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


RULES: tuple[Callable[[Model], Iterator[str]], ...] = (
    _container,
    _opset,
    _operators,
    _tensors,
    _finite,
    _inputs,
    _masks,
    _memory,
    _constants,
    _continuous,
    _discrete,
    _outputs,
)
