"""The record of the networks of a run, networks.json: for each role a graph of parts with shapes and parameters."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from algorithm.agents.agent import Agent
from algorithm.networks import ActorCritic, Torso
from algorithm.networks.heads import SeparateHeads, SharedHeads
from algorithm.networks.precision import Placement
from algorithm.parts.torch_setup import describe_placement
from algorithm.records_io import RecordError, read_json, write_json

LOG = logging.getLogger(__name__)
NETWORKS_FILE = "networks.json"
BRANCHES = ("policy", "critic")  # the outputs of an ActorCritic, in their order
KEYS = ("name", "type", "inputs", "output", "parameters", "count", "layers")  # of a node


def record_network(folder: Path, role: str, agent: Agent, placement: Placement) -> None:
    """Write the networks of a role, and the devices that they compute on, to networks.json in a run folder.

    A damaged file is replaced: the other roles are recorded again when their agents are built.
    """
    path = folder / NETWORKS_FILE
    try:
        networks = read_json(path, dict[str, Any]) or {}
    except RecordError as error:
        LOG.warning(f"{error}: it is written again")
        networks = {}
    described = {**describe_network(agent), "device": describe_placement(placement)}
    if networks.get(role) != described:
        write_json(path, {**networks, role: described}, is_sealed=True)


def describe_network(agent: Agent) -> dict[str, Any]:
    """Return the graph of an agent's networks as values of JSON.

    Returns:
        `nodes`: for each part its `name`, `type`, `inputs` (indices of nodes), `output` (its shape as text),
        `parameters`, `count` (of equal parts in parallel), and `layers` (with `type`, `shape` as text and `parameters`
        of one of the parts); `parameters`: the number of trained parameters; `targets`: that of each target network,
        by its name.
    """
    graph, modules = _Graph(), {name: group.module for name, group in agent.groups.items()}
    has_torso = {name: any(isinstance(part, Torso) for part in module.modules()) for name, module in modules.items()}
    for name in sorted(modules, key=lambda name: not has_torso[name]):  # those with a torso first
        graph.add_parts(name, modules[name], graph.features)
    trained = {parameter for module in modules.values() for parameter in module.parameters()}
    return {
        "nodes": graph.nodes,
        "parameters": sum(parameter.numel() for parameter in trained),
        "targets": {name: count_parameters(target.network) for name, target in agent.target_networks.items()},
    }


def count_parameters(*modules: nn.Module) -> int:
    """Return the number of the parameters of modules."""
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


class _Graph:
    """A graph of the parts of networks; `features` are the nodes of the first torso's output."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.features: list[int] = []
        self._torsos: dict[int, list[int]] = {}  # by id: the nodes of the output
        self._observations: dict[str, int] = {}

    def add_parts(self, name: str, module: nn.Module, inputs: list[int]) -> None:
        """Add a module that reads the nodes `inputs`, divided into its parts."""
        if isinstance(module, Torso) or not count_parameters(module):
            return
        if isinstance(module, SeparateHeads):
            for branch, parts in enumerate(zip(module.layers, module.heads, strict=True)):
                label = BRANCHES[branch] if name == "heads" else f"{name} {branch + 1}"
                self._add(label if len(module.heads) > 1 else name, parts, inputs)
        elif isinstance(module, nn.ModuleList):
            self._add_list(name, list(module), inputs)
        elif torsos := [child for child in module.children() if isinstance(child, Torso)]:
            inputs = self._add_torso(torsos[0])
            for child_name, child in module.named_children():
                if isinstance(module, ActorCritic) and isinstance(child, SharedHeads):
                    child_name = " and ".join(BRANCHES[: len(child.sizes)])
                self.add_parts(child_name, child, inputs)
        else:
            self._add(name, [module], inputs)

    def _add_list(self, name: str, modules: Sequence[nn.Module], inputs: list[int]) -> None:
        """Add modules in parallel: one node if they are equal."""
        layers = [list(_list_layers(module)) for module in modules]
        is_branched = isinstance(modules[0], (SeparateHeads, nn.ModuleList))
        if not is_branched and all(one == layers[0] for one in layers):
            self._add(name, modules[:1], inputs, count=len(modules))
            return
        for number, module in enumerate(modules, 1):
            self.add_parts(name if len(modules) == 1 else f"{name} {number}", module, inputs)

    def _add_torso(self, torso: Torso) -> list[int]:
        """Add a torso, unless it was added before, and return the nodes of its output."""
        if id(torso) not in self._torsos:
            outputs = []
            for name, encoder in zip(torso.names, torso.encoders, strict=True):
                if name not in self._observations:
                    spec = torso.obs_specs[name]
                    self._observations[name] = self._append(name, spec.dtype, [], _join_sizes(spec.shape), 0, 1, [])
                outputs.append(self._add("encoder", [encoder], [self._observations[name]]))
            for name, part in (("body", torso.body), ("memory", torso.memory)):
                if part:
                    outputs = [self._add(name, [part], outputs)]
            self._torsos[id(torso)] = outputs
            self.features = self.features or outputs
        return self._torsos[id(torso)]

    def _add(self, name: str, parts: Sequence[nn.Module], inputs: list[int], count: int = 1) -> int:
        """Add a node for parts in a row, and return its index."""
        first, last = parts[0], parts[-1]
        kind = type(last if isinstance(first, nn.Identity) else first).__name__
        output = _find_output(last)
        is_value = output is None and any(True for _ in last.parameters(recurse=False))  # such as a temperature
        layers = [layer for part in parts for layer in _list_layers(part)]
        parameters = count * count_parameters(*parts)
        return self._append(name, kind.lstrip("_"), [] if is_value else inputs, output, parameters, count, layers)

    def _append(self, *values: Any) -> int:
        """Append a node with these values, and return its index."""
        self.nodes.append(dict(zip(KEYS, values, strict=True)))
        return len(self.nodes) - 1


def _find_output(module: nn.Module) -> str | None:
    """Return the sizes of the outputs of a module, added up; None if they are not known."""
    if isinstance(module, SharedHeads):
        return " + ".join(map(str, module.sizes))
    head = getattr(module, "head", None)
    if isinstance(head, nn.Module):
        return _find_output(head)
    size = getattr(module, "size", getattr(module, "out_features", None))
    return None if size is None else str(size)


def _list_layers(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield each layer with parameters in a module: its type, its shape as text and its number of parameters."""
    for layer in module.modules():
        own = list(layer.parameters(recurse=False))
        if not own:
            continue
        shape = " + ".join(_join_sizes(parameter.shape) for parameter in own)
        if isinstance(layer, nn.Linear):
            shape = f"{layer.in_features} \N{RIGHTWARDS ARROW} {layer.out_features}"
        elif isinstance(layer, nn.Conv2d):
            stride = "" if layer.stride == (1, 1) else f", stride {layer.stride[0]}"
            channels = f"{layer.in_channels} \N{RIGHTWARDS ARROW} {layer.out_channels}"
            shape = f"{channels}, {_join_sizes(layer.kernel_size)}{stride}"
        yield {"type": type(layer).__name__, "shape": shape, "parameters": sum(one.numel() for one in own)}


def _join_sizes(sizes: Sequence[int]) -> str:
    return "\N{MULTIPLICATION SIGN}".join(map(str, sizes)) or "1"
