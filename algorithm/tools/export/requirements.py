"""Unity's requirements of an ONNX file: the inputs and outputs of a model, and the check of a file against them.

A violation of a requirement starts with the number of its rule in docs/unity.md. Source: ML-Agents' packages 2.0.1
to 4.0 (Runtime/Inference), and the importers of Barracuda, Sentis and the Inference Engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.adapters.wrappers import PREVIOUS_ACTION, PREVIOUS_REWARD, find_previous_kinds
from algorithm.errors import UserError, summarize_error
from algorithm.specs import ACTION_MASK, ObsSpec, Role, select_observed

VERSION = 3.0  # the version of the names below: ModelApiVersion.MLAgents2_0
BATCH = "batch"  # name of the first axis, which may have any length
MASKS, MEMORY_IN, MEMORY_OUT = "action_masks", "recurrent_in", "recurrent_out"
CONTINUOUS, DISCRETE = "continuous_actions", "discrete_actions"
CONTINUOUS_SIZE, DISCRETE_SIZES = "continuous_action_output_shape", "discrete_action_output_shape"
CONTINUOUS_MODE, DISCRETE_MODE = "deterministic_continuous_actions", "deterministic_discrete_actions"
VERSION_NUMBER, MEMORY_SIZE = "version_number", "memory_size"
OPSETS = (*range(9, 16), 21)
MAX_AXES = 8
INTEGER_OUTPUTS = (DISCRETE, DISCRETE_MODE)
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
# Operators that Unity's packages import, from their manuals.
# com.unity.barracuda 2.0, for versions 1.x and 2.x of ML-Agents' package:
BARRACUDA = frozenset(
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Cast Ceil Clip Concat
    Constant ConstantOfShape Conv ConvTranspose Cos Cosh DepthToSpace Div Dropout Elu Equal Exp Expand Flatten Floor
    Gather Gemm GlobalAveragePool GlobalMaxPool Greater Identity ImageScaler InstanceNormalization LeakyRelu Less
    LessOrEqual Log LogSoftmax LRN LSTM MatMul Max MaxPool Mean Min Mul Multinomial Neg NonMaxSuppression NonZero Not
    OneHot Or Pad Pow PRelu RandomNormal RandomNormalLike RandomUniform RandomUniformLike Reciprocal ReduceMax
    ReduceMean ReduceMin ReduceProd ReduceSum Relu Reshape Resize Round Selu Shape Sigmoid Sin Sinh Slice Softmax
    SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh Tile TopK Transpose Unsqueeze Upsample Where Xor
    """.split()
)
# com.unity.sentis 2.1 and com.unity.ai.inference 2.2, for versions 3.x and 4.x:
SENTIS = BARRACUDA - {"ImageScaler"} | frozenset(
    """
    Bernoulli CastLike Celu Compress CumSum Einsum Erf GatherElements GatherND Gelu GreaterOrEqual GridSample Hardmax
    HardSigmoid HardSwish IsInf IsNaN LayerNormalization Mish Mod Range ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
    ReduceSumSquare RoiAlign ScatterElements ScatterND Shrink Sign Size Softplus Softsign ThresholdedRelu Trilu
    """.split()
)

Shape = tuple[int, ...]  # without the batch axis
Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class ObservationInput:
    """An observation as an input of the file.

    Attributes:
        name: Name of the observation.
        shape: Shape of the input.
        agent_shape: Shape of the observation for the agent's encoder.
        scale: Factor from the input to the observation: Unity's images range over [0, 1], uint8 images over [0, 255].
    """

    name: str
    shape: Shape
    agent_shape: Shape
    scale: float = 1.0

    @classmethod
    def of(cls, name: str, spec: ObsSpec) -> ObservationInput:
        """Return the input for an observation: tables and images keep their shapes, others become vectors."""
        shape = spec.shape
        if spec.env_shape is not None and len(spec.env_shape) == 2 and len(spec.shape) == 1 and not spec.n_values:
            shape = spec.env_shape
        image = len(spec.shape) == 3 and spec.dtype == "uint8"
        return cls(name=name, shape=shape, agent_shape=spec.shape, scale=spec.high if image else 1.0)


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The inputs and outputs of the model of one role.

    Attributes:
        sensors: Observations, in the order of the scene's sensors.
        continuous: Number of continuous actions.
        branches: Number of actions of each discrete branch.
        memory: Size of the memory: the agent's state, then the encoded previous action.
        previous: Size of the encoded previous action; 0 if the agent does not observe it.
    """

    sensors: tuple[ObservationInput, ...]
    continuous: int
    branches: tuple[int, ...]
    memory: int
    previous: int = 0

    @classmethod
    def of(cls, role: Role, state_size: int) -> Signature:
        """Return the signature of a role whose agent has a state of `state_size` values.

        Raises:
            UserError: If the agent observes its previous reward, which Unity does not pass to a model.
        """
        if "reward" in find_previous_kinds(role):
            raise UserError(
                f"this agent observes {PREVIOUS_REWARD} (base_config.observe_previous), but Unity passes no reward to "
                "a model: train without it"
            )
        observed = {name: spec for name, spec in select_observed(role.obs_specs).items() if name != PREVIOUS_ACTION}
        action = role.action_spec
        previous = action.encoded_size if PREVIOUS_ACTION in role.obs_specs else 0
        sensors = tuple(ObservationInput.of(name, spec) for name, spec in observed.items())
        return cls(
            sensors=sensors,
            continuous=action.continuous,
            branches=action.branches,
            memory=state_size + previous,
            previous=previous,
        )

    def inputs(self) -> dict[str, Shape]:
        """Return the shape of each input by name, in order."""
        found = {f"obs_{index}": sensor.shape for index, sensor in enumerate(self.sensors)}
        if self.branches:
            found[MASKS] = (sum(self.branches),)
        if self.memory:
            found[MEMORY_IN] = (1, self.memory)
        return found

    def outputs(self) -> dict[str, Shape | np.ndarray]:
        """Return the shape of each computed output and the value of each constant, in the order of ML-Agents' files."""
        outputs: dict[str, Any] = {VERSION_NUMBER: [VERSION], MEMORY_SIZE: [self.memory]}
        if size := self.continuous:
            outputs |= {CONTINUOUS: (size,), CONTINUOUS_SIZE: [size], CONTINUOUS_MODE: (size,)}
        if count := len(self.branches):
            outputs |= {DISCRETE: (count,), DISCRETE_SIZES: [self.branches], DISCRETE_MODE: (count,)}
        if self.memory:
            outputs[MEMORY_OUT] = (1, self.memory)
        return {
            name: output if isinstance(output, tuple) else np.array(output, np.float32)
            for name, output in outputs.items()
        }

    def constants(self) -> dict[str, np.ndarray]:
        """Return the value of each constant output by name."""
        return {name: value for name, value in self.outputs().items() if isinstance(value, np.ndarray)}

    def computed_outputs(self) -> dict[str, Shape]:
        """Return the shape of each computed output by name, in order."""
        return {name: shape for name, shape in self.outputs().items() if isinstance(shape, tuple)}

    def make_feed(self, obs: dict[str, np.ndarray], memory: np.ndarray) -> dict[str, np.ndarray]:
        """Return the inputs of the file for an agent's observations {name: [n, ...]} and a memory [n, memory]."""
        n = len(memory)
        feed = {
            f"obs_{index}": (obs[sensor.name].astype(np.float32) / sensor.scale).reshape(n, *sensor.shape)
            for index, sensor in enumerate(self.sensors)
        }
        if self.branches:
            feed[MASKS] = np.asarray(obs.get(ACTION_MASK, np.ones((n, sum(self.branches)))), np.float32)
        if self.memory:
            feed[MEMORY_IN] = memory.reshape(n, 1, self.memory)
        return feed


def find_violations(path: Path, signature: Signature, opset: int) -> list[str]:
    """Return the violations of a file, each of which starts with the number of the violated rule.

    Args:
        path: ONNX file.
        signature: Inputs and outputs that the scene has.
        opset: Version of ONNX's operators that was requested.
    """
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf raises several types
        return [f"O1: {path.name} cannot be read as ONNX ({summarize_error(error)})"]
    found = [*_check_container(model), *_check_operators(model, opset), *_check_tensors(model.graph)]
    found += _check_ports(model.graph, signature)
    if "?" in path.name or path.suffix != ".onnx":
        found.append(f"S7: the file is called {path.name}; it must be <Behavior>.onnx, without ?team=")
    return found or list(_run_probes(path, signature))


def make_runner(content: bytes) -> Run:
    """Return a function that runs the content of a file, with one thread: {input: value} -> {output: value}."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # no log output
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feed: dict(zip(names, session.run(names, feed), strict=True))


def _check_container(model: Any) -> Iterator[str]:
    import onnx

    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer):
        yield "O1: weights are in another file"
    domains = {one.domain for one in model.opset_import} | {node.domain for node in model.graph.node}
    if foreign := sorted(domains - {"", "ai.onnx"}):
        yield f"O1: operators of the domain {', '.join(foreign)}; only the operators of ONNX itself are imported"
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # onnx raises several types
        yield f"O1: onnx.checker rejects the file ({summarize_error(error)})"


def _check_operators(model: Any, opset: int) -> Iterator[str]:
    found = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if found not in OPSETS:
        yield f"O2: opset {found}; Unity's packages read 9 (Barracuda) to 15, and Sentis 2.6 reads {OPSETS[-1]}"
    elif found != opset:
        yield f"O2: opset {found} instead of {opset}"
    table, name = (BARRACUDA, "Barracuda") if found == OPSETS[0] else (SENTIS, "Sentis")
    for operator in sorted({node.op_type for node in model.graph.node if node.domain in ("", "ai.onnx")} - table):
        yield f"O3: {name} does not import the operator {operator}"


def _check_tensors(graph: Any) -> Iterator[str]:
    from onnx import TensorProto, numpy_helper

    if graph.sparse_initializer:
        yield "O4: sparse weights"
    attributes = [(node.output[0], one) for node in graph.node for one in node.attribute]
    tensors = [(name, one.t) for name, one in attributes if one.HasField("t")]
    for name, tensor in [*((tensor.name, tensor) for tensor in graph.initializer), *tensors]:
        if tensor.data_type in (TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128):
            yield f"O4: {name} is {TensorProto.DataType.Name(tensor.data_type)}"
        elif len(tensor.dims) > MAX_AXES:
            yield f"O4: {name} has {len(tensor.dims)} dimensions; at most {MAX_AXES}"
        elif tensor.data_location != TensorProto.EXTERNAL:
            value = numpy_helper.to_array(tensor)
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                yield (
                    f"I7: {name} holds infinity or NaN; constants must be finite, the logits of masked actions too "
                    "(-1e8)"
                )


def _check_ports(graph: Any, signature: Signature) -> Iterator[str]:
    """Compare inputs, outputs and constants with those of the scene, as the Inspector of Behavior Parameters does."""
    from onnx import numpy_helper

    constants = {tensor.name: tensor for tensor in graph.initializer}
    inputs, outputs = signature.inputs(), signature.outputs()
    for name, shape in inputs.items():
        if name not in RULES and (len(shape) not in (1, 2, 3) or 0 in shape):
            yield f"I2: {name} {[BATCH, *shape]}; Unity has [{BATCH}, size], [{BATCH}, items, size], [{BATCH}, C, H, W]"
    found = {value.name: _format_port(value) for value in (*graph.input, *graph.output) if value.name not in constants}
    for name, shape in (inputs | signature.computed_outputs()).items():
        kind = "INT64" if name in INTEGER_OUTPUTS else "FLOAT"
        needed = f"{kind} [{', '.join(map(str, (BATCH, *shape)))}]"
        if found.get(name) != needed:
            yield f"{RULES.get(name, 'I2')}: {name} is {found.get(name, 'missing')}; the scene has {needed}"
    if unknown := sorted({value.name for value in graph.input} - {*inputs, *constants}):
        yield f"I5: inputs unknown to the scene: {', '.join(unknown)}"
    for name, value in signature.constants().items():
        if name not in constants:
            yield f"C8: {name} is not an initializer; Barracuda reads constants from initializers"
            continue
        found_value, needed = _format_constant(numpy_helper.to_array(constants[name])), _format_constant(value)
        if found_value != needed:
            yield f"{RULES[name]}: {name} is {found_value}; it must be {needed}"
    if (names := [value.name for value in graph.output]) != list(outputs):
        yield f"C6: the outputs are {', '.join(names) or 'missing'}; they must be {', '.join(outputs)}"


def _format_port(value: Any) -> str:
    """Return the type and the axes of an input or output."""
    from onnx import TensorProto

    tensor = value.type.tensor_type
    axes = ", ".join(str(axis.dim_param or axis.dim_value) for axis in tensor.shape.dim)
    return f"{TensorProto.DataType.Name(tensor.elem_type)} [{axes}]"


def _run_probes(path: Path, signature: Signature) -> Iterator[str]:
    """Run the file on zeros, as Unity does when it loads a model, in a larger batch, and on large observations."""
    try:
        run = make_runner(path.read_bytes())
    except Exception as error:  # onnxruntime raises several types
        yield f"I7: onnxruntime cannot load the file ({summarize_error(error)})"
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
            outputs = run(feed)
        except Exception as error:  # onnxruntime raises several types
            yield f"{rule}: the file does not run in a batch of {batch} ({summarize_error(error)})"
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
        elif name in INTEGER_OUTPUTS and ((value < 0) | (value >= signature.branches)).any():
            yield f"C4: {name} ranges from {value.min()} to {value.max()}, beyond the sizes of its branches"
        elif name in (CONTINUOUS, CONTINUOUS_MODE) and not (np.abs(value) <= 1).all():
            yield f"C3: {name} reaches {np.abs(value).max():.3g}; actions must be from -1 to 1"


def _format_constant(value: np.ndarray) -> str:
    return f"{value.dtype} {list(value.shape)}: {', '.join(f'{number:.9g}' for number in value.ravel())}"
