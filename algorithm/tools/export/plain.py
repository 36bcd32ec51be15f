"""Export for programs other than Unity: a policy as ONNX with the names of its observations, and its weights."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from algorithm.agents.agent import Agent
from algorithm.atomic_io import replace_bytes
from algorithm.errors import summarize_error
from algorithm.specs import Role
from algorithm.tools.export.graph import OPSET, ExportModule, make_metadata, make_model
from algorithm.tools.export.parity import ParityCheck
from algorithm.tools.export.requirements import (
    BATCH,
    CONTINUOUS,
    CONTINUOUS_MODE,
    DISCRETE,
    DISCRETE_MODE,
    MASKS,
    MEMORY_IN,
    MEMORY_OUT,
    Signature,
)
from algorithm.tools.export.result import ExportFailed, ExportResult, check_file_name

# By the names for Unity.
NAMES = {
    MASKS: "action_mask",
    MEMORY_IN: "memory",
    MEMORY_OUT: "next_memory",
    CONTINUOUS_MODE: "continuous_action",
    DISCRETE_MODE: "discrete_action",
    CONTINUOUS: "sampled_continuous_action",
    DISCRETE: "sampled_discrete_action",
}
INTERNAL = "internal/"  # prefix of the names inside of the graph


def export_plain(agent: Agent, name: str, role: Role, env_steps: int, target: Path) -> ExportResult:
    """Write `<name>.onnx` and `<name>.safetensors` of one role, after a comparison of the file with the agent.

    The inputs have the names of the observations, `action_mask` and `memory`; the outputs are `continuous_action` and
    `discrete_action`, the most probable ones, the same with `sampled_`, and `next_memory`.

    Args:
        agent: Agent of the role.
        name: Name of the role.
        role: Observations and actions.
        env_steps: Env steps of the checkpoint, for the file's metadata.
        target: Folder for the files.

    Raises:
        ExportFailed: If the file differs from the agent.
        UserError: If the network cannot be expressed, or the name is not that of a file.
    """
    from safetensors.torch import save

    check_file_name(name)
    start, signature = time.perf_counter(), Signature.of(role, agent.state_size)
    model = make_model(ExportModule(agent, signature), OPSET, make_metadata(name, role, signature, env_steps))
    comparison = ParityCheck(agent, role, signature, model.SerializeToString())
    if comparison.violations:
        raise ExportFailed(name, comparison.violations)
    names = {f"obs_{index}": sensor.name for index, sensor in enumerate(signature.sensors)} | NAMES
    rename_ports(model, signature, names)
    if violation := find_error(model):
        raise ExportFailed(name, [violation])
    weights = {key: value.detach().cpu().clone().contiguous() for key, value in agent.policy.state_dict().items()}
    contents = {f"{name}.onnx": model.SerializeToString(), f"{name}.safetensors": save(weights)}
    for file_name, content in contents.items():
        replace_bytes(target / file_name, content)
    return ExportResult(
        role=name,
        path=target / f"{name}.onnx",
        size=len(contents[f"{name}.onnx"]),
        opset=OPSET,
        inputs={names[port]: [BATCH, *shape] for port, shape in signature.inputs().items()},
        outputs={names[port]: [BATCH, *shape] for port, shape in signature.computed_outputs().items()},
        parity=comparison.error,
        seconds=time.perf_counter() - start,
    )


def rename_ports(model: Any, signature: Signature, names: dict[str, str]) -> None:
    """Rename the inputs and outputs of a model for Unity, and remove its constants."""
    graph, constants = model.graph, signature.constants()
    for ports in (graph.output, graph.initializer):
        for port in [port for port in ports if port.name in constants]:
            ports.remove(port)
    ports = {*signature.inputs(), *signature.computed_outputs()}
    for node in graph.node:
        for places in (node.input, node.output):
            places[:] = [names[port] if port in ports else port and f"{INTERNAL}{port}" for port in places]
    for value in (*graph.input, *graph.output):
        value.name = names[value.name]
    for tensor in graph.initializer:
        tensor.name = f"{INTERNAL}{tensor.name}"
    del graph.value_info[:]


def find_error(model: Any) -> str | None:
    """Return why a model is not valid; None if it is."""
    import onnx

    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # onnx raises several types
        return f"onnx.checker rejects the file ({summarize_error(error)})"
    return None
