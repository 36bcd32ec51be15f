"""One step of an agent as a torch module with Unity's inputs and outputs, and as an ONNX model.

A policy is traced as it is, in a block of `SimpleOperators`, which replaces functions of torch by operators that Unity
imports, of fixed shapes and without unused outputs. Before that, `make_onnx_friendly` changes modules that compute
something else in Unity: without a critic, with Unity's action masks.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from functools import partial, reduce
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from algorithm.adapters.wrappers import PREVIOUS_ACTION
from algorithm.agents.agent import Agent
from algorithm.distributions import MODE, SAMPLE, ExportedAction
from algorithm.distributions.categorical import find_allowed_combinations, split_columns
from algorithm.distributions.distribution import MASKED_LOGIT
from algorithm.errors import UserError, summarize_error
from algorithm.networks.actor_critic import ActorCritic, BranchedActorCritic, GreedyQPolicy
from algorithm.networks.encoders import InputConvolution, Normalizer
from algorithm.networks.heads import SeparateHeads
from algorithm.networks.memories import AttentionMemory
from algorithm.specs import ACTION_MASK, Role
from algorithm.tools.export.requirements import BATCH, MASKS, MEMORY_IN, ObservationInput, Signature

OPSET = 15  # for Sentis and the Inference Engine, in versions 3.x and 4.x of ML-Agents' package
DYNAMO_OPSET = 21  # for Sentis 2.6 and newer; onnxruntime draws no random numbers in opset 22 and later
BARRACUDA_OPSET = 9  # for Barracuda, in versions 1.x and 2.x

Observations = Mapping[str, Tensor]


class ExportModule(nn.Module):
    """A module that computes one step of an agent: it maps the inputs of a Signature, in order, to its outputs.

    It owns a copy of the weights. If the agent observes its previous action, the memory contains the sampled action,
    which Unity executes unless Behavior Parameters request deterministic inference.
    """

    def __init__(self, agent: Agent, signature: Signature):
        super().__init__()
        self.policy = deepcopy(agent.policy).eval().requires_grad_(False)
        make_onnx_friendly(self.policy)
        self.family, self.signature = agent.family, signature
        self.names = list(signature.inputs())

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of `Signature.computed_outputs` for the inputs of `Signature.inputs`, each [B, ...]."""
        inputs_by_name, signature = dict(zip(self.names, inputs, strict=True)), self.signature
        obs = {
            sensor.name: _to_observation(inputs_by_name[f"obs_{index}"], sensor)
            for index, sensor in enumerate(signature.sensors)
        }
        empty = inputs[0].flatten(1)[:, :0]  # unused, so the graph does not contain it
        allowed = obs[ACTION_MASK] = inputs_by_name.get(MASKS, empty)
        memory = inputs_by_name[MEMORY_IN].flatten(1) if signature.memory else empty
        agent_size = signature.memory - signature.previous
        if signature.previous:
            obs[PREVIOUS_ACTION] = memory[:, agent_size:]
            memory = memory[:, :agent_size]
        statistics, memory = self.policy(obs, memory)
        sampled = self.family.export_action(statistics, allowed, SAMPLE)
        mode = self.family.export_action(statistics, allowed, MODE)
        kinds = zip(sampled, mode, strict=True)  # continuous, then discrete actions, each sampled and most probable
        outputs = [torch.cat(parts, -1) for kind in kinds for parts in kind if parts]
        if signature.memory:
            previous = [self._encode_action(sampled)] if signature.previous else []
            outputs.append(torch.cat((memory, *previous), -1).reshape(-1, 1, signature.memory))
        return tuple(outputs)

    def _encode_action(self, executed: ExportedAction) -> Tensor:
        """Return the action as an agent observes its previous one: continuous values, then every branch one-hot."""
        pairs = zip(executed.indices, self.signature.branches, strict=True)
        one_hot = [nn.functional.one_hot(index[:, 0], count).float() for index, count in pairs]
        return torch.cat((*executed.continuous, *one_hot), -1)


def _to_observation(value: Tensor, sensor: ObservationInput) -> Tensor:
    """Convert an input to the observation of the agent's encoder."""
    if sensor.shape != sensor.agent_shape:
        value = value.flatten(1)
    return value if sensor.scale == 1 else value * sensor.scale


def make_model(export_module: ExportModule, opset: int, metadata: Mapping[str, str]) -> Any:
    """Return the onnx.ModelProto of an agent.

    Args:
        export_module: One step of the agent.
        opset: Version of ONNX's operators.
        metadata: Texts that are stored in the file.

    Raises:
        UserError: If the network cannot be expressed in this opset.
    """
    import onnx

    try:
        serialized = (_trace_dynamo if opset >= DYNAMO_OPSET else _trace)(export_module, opset)
    except Exception as error:  # a module in nn.py, and the exporter, may raise any error
        raise UserError(f"this network cannot be expressed in opset {opset}: {summarize_error(error)}") from error
    model = onnx.load_from_string(serialized)
    _simplify(model.graph)
    _add_outputs(model.graph, export_module.signature)
    model.producer_name, model.producer_version = "samara", ""
    onnx.helper.set_model_props(model, dict(metadata))
    return model


def _trace(export_module: ExportModule, opset: int) -> bytes:
    """Return the serialized trace of a module, from torch's older exporter: the newer one writes no opset below 18."""
    inputs, outputs = export_module.signature.inputs(), list(export_module.signature.computed_outputs())
    memory = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad(), SimpleOperators():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            export_module,
            tuple(torch.zeros((1, *shape)) for shape in inputs.values()),
            memory,  # type: ignore[arg-type]
            dynamo=False,
            opset_version=opset,
            input_names=list(inputs),
            output_names=outputs,
            dynamic_axes={name: {0: BATCH} for name in (*inputs, *outputs)},
        )
    return memory.getvalue()


def _trace_dynamo(export_module: ExportModule, opset: int) -> bytes:
    """Return the serialized graph of a module, from torch's newer exporter, which needs onnxscript."""
    inputs, outputs = export_module.signature.inputs(), list(export_module.signature.computed_outputs())
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), torch.no_grad(), ExitStack() as stack:
        stack.callback(logging.disable, disabled)
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            export_module,
            tuple(torch.zeros((2, *shape)) for shape in inputs.values()),
            dynamo=True,
            opset_version=opset,
            input_names=list(inputs),
            output_names=outputs,
            dynamic_shapes={"inputs": tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs)},
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    del model.functions[:], model.metadata_props[:], model.graph.metadata_props[:], model.graph.value_info[:]
    for node in model.graph.node:
        del node.metadata_props[:]  # the places of the code on this machine
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = BATCH
    return bytes(model.SerializeToString())


def _simplify(graph: Any) -> None:
    """Refer to initializers by their own names, as Barracuda requires, and remove unused nodes and constants."""
    constants, used = {constant.name for constant in graph.initializer}, {output.name for output in graph.output}
    aliases = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Identity" and node.input[0] in constants and node.output[0] not in used
    }
    for node in reversed(list(graph.node)):  # a node precedes those that read its outputs
        node.doc_string = ""
        node.input[:] = [aliases.get(name, name) for name in node.input]
        if used.isdisjoint(node.output):
            graph.node.remove(node)
        else:
            used.update(node.input)
    for constant in [constant for constant in graph.initializer if constant.name not in used]:
        graph.initializer.remove(constant)


def _add_outputs(graph: Any, signature: Signature) -> None:
    """Add the constants to the outputs, and put all outputs, with their shapes, in the order of ML-Agents' files.

    A constant is an initializer that is itself an output: Barracuda reads it by its name, later packages as an output.
    """
    from onnx import TensorProto, helper, numpy_helper

    kinds = {output.name: output.type.tensor_type.elem_type for output in graph.output}
    del graph.output[:]
    for name, output in signature.outputs().items():
        shape: Any = (BATCH, *output) if isinstance(output, tuple) else output.shape
        graph.output.append(helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), shape))
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in signature.constants().items())


def make_metadata(role: str, spec: Role, signature: Signature, env_steps: int) -> dict[str, str]:
    """Return the metadata of the file of a role: its name, env steps, observations and actions."""
    observed = {
        f"obs_{index}": {"name": sensor.name, "one_is": sensor.scale} for index, sensor in enumerate(signature.sensors)
    }
    return {
        "role": role,
        "env_steps": str(env_steps),
        "observations": json.dumps(observed),
        "actions": str(spec.action_spec),
    }


def make_onnx_friendly(network: nn.Module) -> None:
    """Change a copied network so that it can be traced: the weights and the methods of its modules."""
    for module in list(network.modules()):
        if change := CHANGES.get(type(module)):
            change(module)


def _make_constant(value: Tensor) -> nn.Parameter:
    """Return a tensor as weights of the file."""
    return nn.Parameter(value.detach().clone(), requires_grad=False)


def _keep_outputs(linear: nn.Linear, count: int) -> nn.Linear:
    """Return a linear layer with the first outputs of another one."""
    kept = nn.Linear(linear.in_features, count)
    kept.weight, kept.bias = _make_constant(linear.weight[:count]), _make_constant(linear.bias[:count])
    return kept


# Policies. ExportModule applies the action masks to logits.


def change_actor_critic(network: ActorCritic) -> None:
    """Remove the critic and the action mask."""
    heads: Any = network.heads
    layers, head = (heads.layers[0], heads.heads[0]) if isinstance(heads, SeparateHeads) else (nn.Identity(), heads)
    policy: Any = nn.Sequential(layers, _keep_outputs(head.linear, head.sizes[0]))
    network.heads = policy
    network.n_masked_logits = 0


def change_branched_actor_critic(network: Any) -> None:
    """Remove the outputs of the critic, and apply the action mask of Unity, with or without one of the simulator."""
    network.policy.head = _keep_outputs(network.policy.head.linear, network.policy.head.sizes[0])
    network.has_mask = True
    network.mask_logits = partial(mask_combinations, network)


def change_greedy_policy(network: Any) -> None:
    """Apply the action mask of Unity, with or without one of the simulator."""
    network.has_mask = True
    network.select_best = partial(select_best, network)


def mask_combinations(network: Any, values: Tensor, obs: Observations) -> Tensor:
    """Return the values [B, K] of combinations, with MASKED_LOGIT for those with a masked action."""
    allowed = find_allowed_combinations(obs[ACTION_MASK], network.family.branches, network.combination_codes)
    return values * allowed + MASKED_LOGIT * (1 - allowed)


def select_best(network: GreedyQPolicy, features: Tensor, obs: Observations) -> Tensor:
    """Return the best allowed combination as one-hot actions of all branches."""
    shape = (network.critics.n_values, *network.critics.value_shape)
    outputs = (reshape_rows(critic(features), shape) for critic in network.critics.critics)
    values = reduce(torch.add, map(network.compute_values, outputs))
    return network.combination_codes[mask_combinations(network, values, obs).argmax(-1)]


# Encoders and memories.


def change_normalizer(normalizer: Normalizer) -> None:
    """Add mean and standard deviation, of which training keeps sums, to the weights."""
    moments = nn.Module()
    moments.register_buffer("mean", normalizer.moments.mean.float())
    moments.register_buffer("std", normalizer.moments.std.float())
    normalizer.moments = moments  # type: ignore[assignment]


def change_convolution(layer: InputConvolution) -> None:
    """Divide the weights by `high` once, and keep the layout of the images."""
    layer.weight = _make_constant(layer.weight / layer.high)
    layer.forward = partial(nn.Conv2d.forward, layer)  # type: ignore[method-assign]


def change_attention(memory: AttentionMemory) -> None:
    """Attend to the entries of the memory and this step, instead of steps of several episodes."""
    memory.step = partial(step_attention, memory)  # type: ignore[method-assign]


def step_attention(memory: AttentionMemory, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Map one row; an entry of the memory is the keys and values of one step, and a 1."""
    entries = state.reshape(-1, memory.past_rows, memory.entry_size)
    *cached, flags = split_columns(entries, [*[memory.size] * (2 * len(memory.layers)), 1])
    number = flags[:, -1:] + 1  # of this step in its episode
    is_visible = torch.cat((flags, number), 1).transpose(1, 2) > 0
    distance = torch.arange(memory.past_rows, -1, -1).unsqueeze(0)
    x, columns = memory.embed(features.unsqueeze(1), number[..., 0]), []
    for index, layer in enumerate(memory.layers):
        x, keys, values = layer(x, cached[2 * index], cached[2 * index + 1], is_visible, distance, number[..., 0])
        columns += [keys[:, -1:], values[:, -1:]]
    entry = torch.cat((*columns, number), -1)
    after = torch.cat((entries[:, 1:], entry), 1)
    return memory.norm(x)[:, 0], after.reshape(-1, memory.state_size)


CHANGES: Mapping[type, Callable[[Any], None]] = {
    ActorCritic: change_actor_critic,
    BranchedActorCritic: change_branched_actor_critic,
    GreedyQPolicy: change_greedy_policy,
    Normalizer: change_normalizer,
    InputConvolution: change_convolution,
    AttentionMemory: change_attention,
}


class SimpleOperators(TorchFunctionMode):
    """A block in which functions of torch have other operators, with the same results.

    The operators are in opset 9, the sizes of all axes after the first are constants, and no tensor is empty.
    """

    def __torch_function__(
        self, func: Any, types: Collection[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return REPLACEMENTS.get(func, func)(*args, **(kwargs or {}))


def concatenate(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate the tensors that are not empty; an empty one if all are."""
    kept = [part for part in tensors if part.shape[dim]] or [tensors[0]]
    return kept[0] if len(kept) == 1 else torch.cat(kept, dim)


def split(x: Tensor, sizes: int | Sequence[int], dim: int = 0) -> list[Tensor]:
    """Return parts of an axis, as slices: a split has outputs that may be unused."""
    length = int(x.shape[dim])
    if isinstance(sizes, int):
        sizes = [min(sizes, length - begin) for begin in range(0, length, sizes)]
    bounds = pairwise(accumulate(map(int, sizes), initial=0))
    return [x.narrow(dim, begin, end - begin) for begin, end in bounds]


def chunk(x: Tensor, chunks: int, dim: int = 0) -> list[Tensor]:
    """Return equal parts of an axis."""
    return split(x, -(-int(x.shape[dim]) // chunks), dim)


def tensor_split(x: Tensor, where: int | Sequence[int], dim: int = 0) -> Sequence[Tensor]:
    """Return parts of an axis, by where the second and later ones begin."""
    if isinstance(where, int):
        return x.tensor_split(where, dim)
    return split(x, [end - begin for begin, end in pairwise([0, *where, int(x.shape[dim])])], dim)


def reshape_rows(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a tensor with these axes after the first."""
    return x if [*x.shape[1:]] == [*shape] else x.reshape(-1, *shape)


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Join some axes."""
    sizes, start, end = [int(size) for size in x.shape], start_dim % x.dim(), end_dim % x.dim() + 1
    if not start:
        return x.flatten(start_dim, end_dim)
    return reshape_rows(x, [*sizes[1:start], prod(sizes[start:end]), *sizes[end:]])


def unflatten(x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Divide an axis."""
    axes, place = [int(size) for size in x.shape], dim % x.dim()
    if not place:
        return x.unflatten(dim, sizes)
    rest = axes[place] // prod(size for size in sizes if size > 0)
    return reshape_rows(x, [*axes[1:place], *(rest if size < 0 else size for size in sizes), *axes[place + 1 :]])


def convert(x: Tensor, *target: Any, **options: Any) -> Tensor:
    """Convert to a type or a device, if it is another one."""
    is_same = len(target) == 1 and not options and target[0] in (x.dtype, x.device)
    return x if is_same else x.to(*target, **options)


def fill(x: Tensor, mask: Tensor, value: float) -> Tensor:
    """Return x with the value where the mask is true."""
    return x * (~mask).to(x.dtype) + value * mask.to(x.dtype)


def multiply_and_add(x: Tensor, first: Tensor, second: Tensor, *, value: float = 1) -> Tensor:
    """Return x + value * first * second."""
    return x + first * second * value if value != 1 else x + first * second


REPLACEMENTS: Mapping[Any, Callable[..., Any]] = {
    torch.cat: concatenate,
    Tensor.split: split,
    Tensor.chunk: chunk,
    Tensor.tensor_split: tensor_split,
    Tensor.flatten: flatten,
    Tensor.unflatten: unflatten,
    Tensor.to: convert,
    Tensor.float: lambda x: convert(x, torch.float32),
    Tensor.masked_fill: fill,
    Tensor.expand_as: lambda x, other: x + 0 * other,
    torch.full_like: lambda x, value, **options: 0 * x.to(**options) + value,
    torch.addcmul: multiply_and_add,
    torch.lerp: lambda start, end, weight: start + weight * (end - start),
}
