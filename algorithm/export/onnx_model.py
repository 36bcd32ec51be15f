"""An ONNX file as its readers see it: named inputs and outputs with shapes, and constants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TensorInfo:
    """An input or an output: the name of its number type, and its axes, of which one of any length has a name.

    An axis without either is None.
    """

    kind: str
    shape: tuple[int | str | None, ...]

    def __str__(self) -> str:
        return f"{self.kind} [{', '.join(map(str, self.shape))}]"


class OnnxModel:
    """A file that was read. Raises whatever onnx raises for what is none."""

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
        """Of the operators that have no domain; 0 where there is none."""
        return next((entry.version for entry in self.proto.opset_import if entry.domain in ("", "ai.onnx")), 0)

    def find_constant(self, name: str) -> np.ndarray | None:
        """The value of an output that is the same at every run; None where it is computed or not there."""
        from onnx import numpy_helper

        if name in self.initializers:
            return numpy_helper.to_array(self.initializers[name])
        node = next((node for node in self.nodes if name in node.output), None)
        if node is None:
            return None
        if node.op_type == "Identity":
            return self.find_constant(node.input[0])
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            return numpy_helper.to_array(node.attribute[0].t)
        return None

    def iterate_constants(self) -> Iterator[tuple[str, np.ndarray]]:
        """All that is constant and stands in this file, with its name."""
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

    def has_path(self, source: str, target: str) -> bool:
        """Whether `target` is computed from `source`."""
        producers = {name: node for node in self.nodes for name in node.output}
        seen: set[str] = set()
        pending = [target]
        while pending:
            name = pending.pop()
            if name == source:
                return True
            if name not in seen and name in producers:
                pending.extend(producers[name].input)
            seen.add(name)
        return False


def _read_tensor_info(value: Any) -> TensorInfo:
    from onnx import TensorProto

    tensor = value.type.tensor_type
    kind = TensorProto.DataType.Name(tensor.elem_type) if value.type.HasField("tensor_type") else "no tensor"
    axes = [axis.dim_value if axis.HasField("dim_value") else axis.dim_param or None for axis in tensor.shape.dim]
    return TensorInfo(kind, tuple(axes))


def make_session(content: bytes) -> Any:
    """A file as onnxruntime runs it, on one thread and without a word."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run_session(session: Any, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All outputs by name, of one run."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))
