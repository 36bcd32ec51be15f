"""One step of a network in operators that Unity imports: of fixed shapes, without unused outputs.

The functions here take the place of methods of a copied network; each has the module as its first argument. A module of
another class, such as a module in nn.py, is traced as it is. `step` of a module with a memory takes features
[B, features] and a memory [B, size], and returns outputs and the next memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from algorithm.distributions.categorical import find_allowed_combinations, split_columns
from algorithm.networks.actor_critic import ActorCritic
from algorithm.networks.branched import Branch, BranchedActorCritic
from algorithm.networks.encoders import InputConvolution, Normalizer, VectorEncoder
from algorithm.networks.heads import SeparateHeads
from algorithm.networks.layers import LayerStack, ResidualBlock
from algorithm.networks.memories import AttentionLayer, AttentionMemory, FrameStackEncoder, GruMemory, LstmMemory
from algorithm.networks.normalization import BatchNorm
from algorithm.networks.policy import GreedyQPolicy
from algorithm.networks.torso import Torso
from algorithm.specs import ACTION_MASK

Observations = Mapping[str, Tensor]


def make_onnx_friendly(network: nn.Module) -> None:
    """Change a network so that it can be exported: the weights and the methods of its modules."""
    for module in list(network.modules()):  # a module before those in it, which it may replace
        form = FORMS.get(type(module), Form())
        if form.prepare:
            form.prepare(module)
        for method, function in (("forward", form.forward), ("step", form.step)):
            if function:
                setattr(module, method, partial(function, module))


def _keep_outputs(linear: nn.Linear, count: int) -> None:
    """Remove all outputs of a linear layer but the first ones."""
    linear.weight = _make_constant(linear.weight[:count])
    linear.bias = _make_constant(linear.bias[:count])


def _make_constant(value: Tensor) -> nn.Parameter:
    """Return a tensor as weights of the file."""
    return nn.Parameter(value.detach().clone(), requires_grad=False)


def _split(columns: Tensor, sizes: Sequence[int]) -> list[list[Tensor]]:
    """Return each part of some columns as a list, empty for a part of size 0."""
    ends = accumulate(sizes, initial=0)
    return [[columns[:, begin:end]] if begin < end else [] for begin, end in pairwise(ends)]


def _concatenate(parts: list[Tensor], otherwise: Tensor | None = None) -> Any:
    """Return the parts as one tensor; without parts, `otherwise`."""
    return torch.cat(parts, -1) if len(parts) > 1 else parts[0] if parts else otherwise


def _flatten(obs: Tensor) -> Tensor:
    return obs if obs.dim() == 2 else obs.flatten(1)


# Policies: (observations, memory) -> (statistics, next memory). ExportModule applies the action masks.


def prepare_actor_critic(network: Any) -> None:
    """Remove the critic, and set the layers and the head of the policy."""
    heads = network.heads
    separate = isinstance(heads, SeparateHeads)
    network.layers, network.head = (heads.layers[0], heads.heads[0]) if separate else (nn.Identity(), heads)
    _keep_outputs(network.head.linear, network.head.sizes[0])


def run_actor_critic(network: Any, obs: Observations, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Return the statistics of an ActorCritic, with all logits."""
    features, memory = network.torso.step(obs, memory)
    outputs, std = network.head.linear(network.layers(features)), network.std_head
    if not std:
        return outputs, memory
    means = outputs[:, : std.n_means]
    if std.fixed_log_std is not None:
        log_std = 0 * means + std.fixed_log_std
    elif std.log_std is not None:
        log_std = std.compute_log_std(0 * means + std.log_std.detach())
    else:
        log_std = std.compute_log_std(outputs[:, std.n_means : std.n_columns])
    rest = [outputs[:, std.n_columns :]] if network.statistics_size > 2 * std.n_means else []
    return torch.cat((std.bound_means(means), log_std, *rest), -1), memory


def run_greedy_policy(network: Any, obs: Observations, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log probabilities of the actions of every branch of a GreedyQPolicy."""
    features, memory = network.torso.step(obs, memory)
    values = sum(critic(features) for critic in network.critics.critics)
    branches = network.family.branches
    # If all actions of a branch are masked, all are allowed.
    free = [mask + (1 - mask.sum(-1, keepdim=True).clamp(max=1)) for mask in split_columns(obs[ACTION_MASK], branches)]
    # 1 for a combination without masked actions, 0 otherwise.
    possible = (1 - (1 - torch.cat(free, -1)) @ network.codes.T).clamp(min=0)
    best = (values * possible - 1e8 * (1 - possible)).argmax(-1)
    chosen = nn.functional.one_hot(best, len(network.codes)).float() @ network.codes
    mixed = [
        (1 - network.epsilon) * code + network.epsilon * part / part.sum(-1, keepdim=True)
        for code, part in zip(split_columns(chosen, branches), free, strict=True)
    ]
    return torch.cat(mixed, -1).clamp(min=1e-30).log(), memory


def prepare_branched_actor_critic(network: BranchedActorCritic) -> None:
    """Remove the outputs after the policy's from its head, and add the codes of combinations to the weights."""
    _keep_outputs(network.policy.head.linear, network.policy.head.sizes[0])
    _register_codes(network)


def _register_codes(network: BranchedActorCritic | GreedyQPolicy) -> None:
    network.register_buffer("codes", network.combination_codes)


def run_branched_actor_critic(network: Any, obs: Observations, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log probabilities of a BranchedActorCritic, whose uniform part is over the allowed actions only."""
    sizes = [*network.stored_sizes, network.state_size - network.stored_state_size]
    torso_state, policy_state, critic_state, frames = _split(memory, sizes)
    features, after = network.torso.step(obs, _concatenate(torso_state + frames, memory))
    torso_state, frames = _split(after, [sizes[0], sizes[3]])
    hidden, policy_state = _step_branch(network.policy, features, policy_state)
    if critic_state:
        _, critic_state = _step_branch(network.critic, features, critic_state)
    allowed = find_allowed_combinations(obs[ACTION_MASK], network.family.branches, network.codes)
    probs = (network.policy.head.linear(hidden) * allowed - 1e8 * (1 - allowed)).softmax(-1)
    uniform = allowed / allowed.sum(-1, keepdim=True)
    mixed = (1 - network.uniform_fraction) * probs + network.uniform_fraction * uniform
    return mixed.clamp(min=1e-30).log(), _concatenate(torso_state + policy_state + critic_state + frames, memory)


def _step_branch(branch: Branch, features: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    if not state:
        return branch.layers(features), []
    features, after = branch.layers.step(features, *state)
    return features, [after]


def step_torso(torso: Torso, obs: Observations, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Map one row, without empty parts of the memory."""
    body_state, *states = _split(memory, torso._state_sizes)
    parts, after = [], []
    for name, encoder, state in zip(torso.names, torso.encoders, states, strict=True):
        if state:
            part, frames = encoder.step(obs[name], *state)
            after.append(frames)
        else:
            part = encoder(obs[name])
        parts.append(part)
    features = _concatenate(parts)
    if torso.body:
        features = torso.body(features)
    if torso.memory:
        features, own = torso.memory.step(features, *body_state)
        after.insert(0, own)
    return features, _concatenate(after, memory)


# Encoders.


def encode_vector(encoder: VectorEncoder, obs: Tensor) -> Tensor:
    """Encode a vector, which is float32 already."""
    vector = _flatten(obs)
    return vector if encoder.transform is None else encoder.transform(vector)


def prepare_normalizer(normalizer: Normalizer) -> None:
    """Add mean and standard deviation to the weights."""
    normalizer.register_buffer("mean", normalizer.moments.mean.float())
    normalizer.register_buffer("std", normalizer.moments.std.float())


def normalize(normalizer: Any, x: Tensor) -> Tensor:
    """Normalize by a constant mean and standard deviation."""
    return ((x - normalizer.mean) / normalizer.std).clamp(-normalizer.clip, normalizer.clip)


def prepare_convolution(layer: InputConvolution) -> None:
    """Divide the weights by `high` once, instead of the inputs."""
    layer.weight = _make_constant(layer.weight / layer.high)


def convolve(layer: InputConvolution, obs: Tensor) -> Tensor:
    """Convolve an image of floats."""
    return nn.functional.conv2d(obs, layer.weight, layer.bias, layer.stride, layer.padding)


def step_frame_stack(stack: FrameStackEncoder, obs: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Map one row; the memory [B, past frames * frame] holds the last frames, oldest first."""
    channels, *others = stack.shape
    frames = torch.cat((memory, _flatten(obs)), -1)
    stacked = frames.reshape(-1, (stack.past_frames + 1) * channels, *others) if others else frames
    return stack.encoder(stacked), frames[:, prod(stack.shape) :]


# Memories.


def step_gru(memory: GruMemory, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Map one row."""
    inputs, recurrent, units = memory.inputs(features), memory.recurrent(state), memory.units
    reset = torch.sigmoid(inputs[:, :units] + recurrent[:, :units])
    update = torch.sigmoid(inputs[:, units : 2 * units] + recurrent[:, units : 2 * units])
    new = torch.tanh(inputs[:, 2 * units :] + reset * recurrent[:, 2 * units :])
    state = new + update * (state - new)
    return state, state


def step_lstm(memory: LstmMemory, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Map one row; the memory is hidden state and cell."""
    units = memory.units
    hidden, cell = state[:, :units], state[:, units:]
    gates = memory.inputs(features) + memory.recurrent(hidden)
    inward, forget, outward = (torch.sigmoid(gates[:, k * units : (k + 1) * units]) for k in range(3))
    cell = forget * cell + inward * torch.tanh(gates[:, 3 * units :])
    hidden = outward * torch.tanh(cell)
    return hidden, torch.cat((hidden, cell), -1)


def step_attention(memory: AttentionMemory, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Map one row; an entry of the memory is the keys and values of one step, and a 1."""
    x, row = memory.inputs(features), []
    past, entry_size, units = memory.past_rows, memory.entry_size, memory.size
    entries = state.reshape(-1, past, entry_size)
    present = entries[:, :, entry_size - 1 :].reshape(-1, 1, 1, past)
    for number, layer in enumerate(memory.layers):
        keys, values = (entries[:, :, units * k : units * (k + 1)] for k in (2 * number, 2 * number + 1))
        x, *own = layer.step(x, keys, values, present)
        row += own
    flag = 0 * x[:, :1] + 1
    return memory.norm(x), torch.cat((state[:, entry_size:], *row, flag), -1)


def prepare_attention_layer(layer: Any) -> None:
    """Order the bias by the age of a step, oldest first, instead of the distance."""
    layer.window = layer.bias.shape[-1]
    layer.bias = _make_constant(layer.bias.flip(-1).reshape(1, layer.heads, 1, layer.window))


def step_attention_layer(
    layer: Any, x: Tensor, keys: Tensor, values: Tensor, present: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs of a layer that attends to the past steps and to this step, and this step's key and value.

    Args:
        layer: The layer.
        x: Features [B, units].
        keys: Keys of the past steps [B, past, units].
        values: Values of the past steps [B, past, units].
        present: 1 for entries that hold a step, 0 for empty ones, [B, 1, 1, past].
    """
    units, heads = layer.output.in_features, layer.heads
    projected = layer.project(layer.norms[0](x))
    query, key, value = (projected[:, k * units : (k + 1) * units] for k in range(3))
    rows = [torch.cat((kept, own.reshape(-1, 1, units)), 1) for kept, own in ((keys, key), (values, value))]
    k, v = (part.reshape(-1, layer.window, heads, units // heads).transpose(1, 2) for part in rows)
    q = query.reshape(-1, heads, 1, units // heads)
    scores = torch.matmul(q, k.transpose(2, 3)) / (units // heads) ** 0.5 + layer.bias
    seen = torch.cat((present, 0 * present[:, :, :, :1] + 1), -1)
    weights = (scores * seen - 1e9 * (1 - seen)).softmax(-1)
    x = x + layer.output(torch.matmul(weights, v).reshape(-1, units))
    return x + layer.hidden(layer.norms[1](x)), key, value


# Normalized layers: batch norms are folded into the linear layers next to them.


def fold_batch_norm(linear: nn.Linear, norm: BatchNorm, *, is_before: bool) -> nn.Linear:
    """Return a linear layer in place of one and the batch norm, by its running statistics, before or after it."""
    mean, variance = norm.running[: 2 * norm.size].double().chunk(2)
    scale = norm.weight.detach().double() / (variance + norm.epsilon).sqrt()
    weight, shift = linear.weight.detach().double(), norm.bias.detach().double() - mean * scale
    bias = torch.zeros(len(weight), dtype=torch.float64) if linear.bias is None else linear.bias.detach().double()
    if is_before:
        weight, bias = weight * scale, bias + weight @ shift
    else:
        weight, bias = weight * scale.unsqueeze(1), bias * scale + shift
    folded = nn.Linear(linear.in_features, linear.out_features).requires_grad_(False)
    folded.weight.copy_(weight)
    folded.bias.copy_(bias)
    return folded


def prepare_layer_stack(stack: LayerStack) -> None:
    """Fold each batch norm into the linear layer before or after it; there is none where an activation precedes it."""
    parts: list[Any] = []
    for part in stack.parts:
        previous = parts[-1] if parts else None
        if isinstance(part, BatchNorm) and isinstance(previous, nn.Linear):
            parts[-1] = fold_batch_norm(previous, part, is_before=False)
        elif isinstance(part, nn.Linear) and isinstance(previous, BatchNorm):
            parts[-1] = fold_batch_norm(part, previous, is_before=True)
        else:
            parts.append(part)
    for name, _ in list(stack.named_children()):
        delattr(stack, name)
    stack.parts, stack.folded, stack.fuses = parts, nn.ModuleList(parts), False


@dataclass(frozen=True)
class Form:
    """The functions for a class of modules: `prepare` changes its weights, the others take the place of its methods."""

    prepare: Callable[[Any], None] | None = None
    forward: Callable[..., Any] | None = None
    step: Callable[..., Any] | None = None


FORMS: Mapping[type, Form] = {
    ActorCritic: Form(prepare_actor_critic, run_actor_critic),
    BranchedActorCritic: Form(prepare_branched_actor_critic, run_branched_actor_critic),
    GreedyQPolicy: Form(_register_codes, run_greedy_policy),
    Torso: Form(step=step_torso),
    VectorEncoder: Form(forward=encode_vector),
    Normalizer: Form(prepare_normalizer, normalize),
    InputConvolution: Form(prepare_convolution, convolve),
    FrameStackEncoder: Form(step=step_frame_stack),
    GruMemory: Form(step=step_gru),
    LstmMemory: Form(step=step_lstm),
    AttentionMemory: Form(step=step_attention),
    AttentionLayer: Form(prepare_attention_layer, step=step_attention_layer),
    LayerStack: Form(prepare_layer_stack),
    ResidualBlock: Form(prepare_layer_stack),
}
