"""Checks of an ONNX file: against Unity's requirements, and against the actions and the memory of its agent.

A violation of a requirement starts with the number of its rule in docs/unity.md. Source: ML-Agents' packages 2.0.1
to 4.0 (Runtime/Inference), and the importers of Barracuda, Sentis and the Inference Engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from algorithm.adapters.wrappers import PREVIOUS_ACTION
from algorithm.agents.agent import Agent
from algorithm.specs import ACTION_MASK, ObsSpec, Role
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
    VERSION_NUMBER,
    Signature,
)

OPSETS = range(9, 16)
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
OBSERVATIONS = 64  # observations in each batch size
BATCHES = (1, 3)  # batch sizes
STEPS = 20  # consecutive steps of an agent with memory
SAMPLES = 1000  # sampled actions in the check of action masks
TOLERANCE = 1e-4  # largest difference of an action or a memory value
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

Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


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
        return [f"O1: {path.name} cannot be read as ONNX ({_format_error(error)})"]
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
        yield f"O1: onnx.checker rejects the file ({_format_error(error)})"


def _check_operators(model: Any, opset: int) -> Iterator[str]:
    found = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if found not in OPSETS:
        yield f"O2: opset {found}; Unity's packages read {OPSETS[0]} (Barracuda) to {OPSETS[-1]}"
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
            outputs = run(feed)
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
        elif name in INTEGER_OUTPUTS and ((value < 0) | (value >= signature.branches)).any():
            yield f"C4: {name} ranges from {value.min()} to {value.max()}, beyond the sizes of its branches"
        elif name in (CONTINUOUS, CONTINUOUS_MODE) and not (np.abs(value) <= 1).all():
            yield f"C3: {name} reaches {np.abs(value).max():.3g}; actions must be from -1 to 1"


def _format_constant(value: np.ndarray) -> str:
    return f"{value.dtype} {list(value.shape)}: {', '.join(f'{number:.9g}' for number in value.ravel())}"


def _format_error(error: Exception) -> str:
    return " ".join(str(error).split())


class ParityCheck:
    """A comparison of a file with the deterministic actions and the memory of its agent, and of its action masks.

    Args:
        agent: Agent on the CPU.
        role: Observations and actions of the agent.
        signature: Inputs and outputs of the file.
        content: Content of the file.

    Attributes:
        error: The largest difference between the file and its agent.
        violations: A line for each output beyond the tolerance, and for each masked action.
    """

    def __init__(self, agent: Agent, role: Role, signature: Signature, content: bytes):
        self.agent, self.role, self.signature = agent, role, signature
        self.error, self.violations = 0.0, list[str]()
        self._run, self._rng = make_runner(content), np.random.default_rng(0)
        for batch in BATCHES:
            for _ in range(-(-OBSERVATIONS // batch)):
                self._compare_steps(batch, steps=1)
        if signature.memory:
            self._compare_steps(BATCHES[-1], STEPS)
        if signature.branches:
            self._check_masks()

    def _compare_steps(self, n: int, steps: int) -> None:
        """Compare the decisions at the first steps of `n` episodes, for the same random observations.

        The agent and its file each have their own memory.
        """
        signature, family = self.signature, self.agent.family
        memory, previous, file_memory = (
            np.zeros((n, size), np.float32) for size in (self.agent.state_size, signature.previous, signature.memory)
        )
        for _ in range(steps):
            obs = sample_observations(self.role, self._rng, n)
            outputs = self._run(signature.make_feed(obs, file_memory))
            if signature.previous:
                obs[PREVIOUS_ACTION] = previous
            statistics, memory = self.agent.policy.act(obs, memory)
            mode = family.mode(statistics)
            if signature.continuous:
                self._compare(CONTINUOUS_MODE, outputs, family.to_action(mode)[:, : signature.continuous])
            if signature.branches:
                self._compare_indices(outputs[DISCRETE_MODE], mode, statistics)
            expected = memory
            if signature.previous:
                actions = [outputs[name].astype(np.float32) for name in (CONTINUOUS, DISCRETE) if name in outputs]
                previous = self.role.action_spec.encode(np.concatenate(actions, -1))  # that Unity executes
                expected = np.concatenate((memory, previous), -1)
            if signature.memory:
                self._compare(MEMORY_OUT, outputs, expected.reshape(n, 1, -1))
                file_memory = outputs[MEMORY_OUT].reshape(n, -1)

    def _compare(self, name: str, outputs: Mapping[str, np.ndarray], expected: np.ndarray) -> None:
        """Record the difference between an output and what it should be."""
        error = float(np.abs(outputs[name] - expected).max(initial=0.0))
        self.error = max(self.error, error)
        if not error <= TOLERANCE:
            self._report(name, f" by {error:.2g}")

    def _compare_indices(self, found: np.ndarray, mode: np.ndarray, statistics: np.ndarray) -> None:
        """Compare the most probable actions; another index with the same probability is accepted."""
        other = np.concatenate((mode[:, : self.signature.continuous], found.astype(np.float32)), -1)
        policy = self.agent.family(torch.from_numpy(statistics))
        difference = policy.log_prob(torch.from_numpy(mode)) - policy.log_prob(torch.from_numpy(other))
        if difference.abs().max() > TOLERANCE:
            self._report(DISCRETE_MODE)

    def _report(self, name: str, size: str = "") -> None:
        """Add the violation of an output, unless it has one."""
        if not any(line.startswith(name) for line in self.violations):
            self.violations.append(f"{name} differs from the agent's{size}")

    def _check_masks(self) -> None:
        """Check that no masked action is chosen."""
        obs, memory = sample_observations(self.role, self._rng, SAMPLES), np.zeros((SAMPLES, self.signature.memory))
        feed = self.signature.make_feed(obs, memory.astype(np.float32))
        feed[MASKS] = sample_masks(self.signature.branches, self._rng, SAMPLES)
        outputs, ends = self._run(feed), np.cumsum(self.signature.branches)
        for branch, allowed in enumerate(np.split(feed[MASKS], ends[:-1], 1)):
            for name in (DISCRETE, DISCRETE_MODE):
                taken = np.take_along_axis(allowed, outputs[name][:, branch : branch + 1].astype(np.int64), 1)
                if not taken.all():
                    count = f"{(taken == 0).sum()} of {SAMPLES}"
                    self.violations.append(f"{name} chose a masked action of branch {branch} in {count} cases")


def sample_observations(role: Role, rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    """Return random observations {name: [n, ...]} of a role, in which some actions are masked."""
    obs = {name: _sample_observation(spec, rng, n) for name, spec in role.obs_specs.items()}
    if ACTION_MASK in obs:
        obs[ACTION_MASK] = sample_masks(role.action_spec.branches, rng, n).astype(np.uint8)
    return obs


def _sample_observation(spec: ObsSpec, rng: np.random.Generator, n: int) -> np.ndarray:
    if spec.n_values:
        return _sample_one_hot(spec.n_values, rng, n).astype(spec.dtype)
    if spec.dtype == "uint8":
        return rng.integers(int(spec.high) + 1, size=(n, *spec.shape), dtype=np.uint8)
    return rng.standard_normal((n, *spec.shape)).astype(spec.dtype)


def sample_masks(branches: tuple[int, ...], rng: np.random.Generator, n: int) -> np.ndarray:
    """Return random masks [n, sum of branches] that allow at least one action of each branch."""
    return np.maximum(_sample_one_hot(branches, rng, n), rng.random((n, sum(branches))) < 0.5).astype(np.float32)


def _sample_one_hot(counts: tuple[int, ...], rng: np.random.Generator, n: int) -> np.ndarray:
    return np.concatenate([np.eye(count)[rng.integers(count, size=n)] for count in counts], 1)
