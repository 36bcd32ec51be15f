"""Reading and running ONNX files: inputs, outputs, constants, and the operators that Unity imports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.errors import UserError
from algorithm.program import get_install_command

PACKAGES = ("onnx", "onnxruntime")
# Operators that Unity's packages import, from their manuals.
# com.unity.sentis 2.1 and com.unity.ai.inference 2.2, for versions 3.x and 4.x of ML-Agents' package:
SENTIS = frozenset(
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Bernoulli Cast CastLike
    Ceil Celu Clip Compress Concat Constant ConstantOfShape Conv ConvTranspose Cos Cosh CumSum DepthToSpace Div
    Dropout Einsum Elu Equal Erf Exp Expand Flatten Floor Gather GatherElements GatherND Gelu Gemm GlobalAveragePool
    GlobalMaxPool Greater GreaterOrEqual GridSample Hardmax HardSigmoid HardSwish Identity InstanceNormalization IsInf
    IsNaN LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LRN LSTM MatMul Max MaxPool Mean Min Mish Mod
    Mul Multinomial Neg NonMaxSuppression NonZero Not OneHot Or Pad Pow PRelu RandomNormal RandomNormalLike
    RandomUniform RandomUniformLike Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax
    ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize RoiAlign Round ScatterElements
    ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt
    Squeeze Sub Sum Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Upsample Where Xor
    """.split()
)
# com.unity.barracuda 2.0, for versions 1.x and 2.x:
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


def check_packages() -> None:
    """Raise UserError, with the command that installs it, if a package that an export needs is missing."""
    for name in PACKAGES:
        try:
            import_module(name)
        except ImportError as error:
            line = " ".join(str(error).split())
            raise UserError(f"an export needs the extra onnx ({line}): {get_install_command('onnx')}") from error


@dataclass(frozen=True)
class TensorInfo:
    """The type and shape of an input or an output.

    Attributes:
        kind: Name of the element type, for example FLOAT.
        shape: Length of each axis, or its name if it may have any length; None for an axis with neither.
    """

    kind: str
    shape: tuple[int | str | None, ...]

    def __str__(self) -> str:
        return f"{self.kind} [{', '.join(map(str, self.shape))}]"


class OnnxModel:
    """An ONNX file that has been read. The constructor raises what `onnx.load` raises."""

    def __init__(self, path: Path):
        import onnx

        self.path = path
        self.proto: Any = onnx.load(str(path), load_external_data=False)
        graph = self.proto.graph
        self.nodes = list(graph.node)
        self.initializers: dict[str, Any] = {constant.name: constant for constant in graph.initializer}
        self.inputs = {
            value.name: _read_tensor_info(value) for value in graph.input if value.name not in self.initializers
        }
        self.outputs = {value.name: _read_tensor_info(value) for value in graph.output}

    def get_opset(self) -> int:
        """Return the version of ONNX's own operators; 0 if the file has none."""
        return next((entry.version for entry in self.proto.opset_import if entry.domain in ("", "ai.onnx")), 0)

    def find_constant(self, name: str) -> np.ndarray | None:
        """Return the value of an initializer; None without one."""
        from onnx import numpy_helper

        return numpy_helper.to_array(self.initializers[name]) if name in self.initializers else None

    def iterate_constants(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield name and value of every constant that the file itself holds."""
        from onnx import TensorProto, numpy_helper

        of_nodes = [
            (node.output[0], attribute.t)
            for node in self.nodes
            for attribute in node.attribute
            if attribute.HasField("t")
        ]
        for name, tensor in [*self.initializers.items(), *of_nodes]:
            if tensor.data_location != TensorProto.EXTERNAL and tensor.data_type != TensorProto.STRING:
                yield name, numpy_helper.to_array(tensor)


def _read_tensor_info(value: Any) -> TensorInfo:
    from onnx import TensorProto

    tensor = value.type.tensor_type
    kind = TensorProto.DataType.Name(tensor.elem_type) if value.type.HasField("tensor_type") else "no tensor"
    axes = [axis.dim_value if axis.HasField("dim_value") else axis.dim_param or None for axis in tensor.shape.dim]
    return TensorInfo(kind, tuple(axes))


def make_session(content: bytes) -> Any:
    """Return an onnxruntime session for the content of a file, with one thread and without log output."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run_session(session: Any, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a session and return its outputs by name."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))
