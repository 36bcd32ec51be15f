"""One step of a network in operators that Unity imports: of fixed shapes, without unused outputs.

A network is traced as it is, in a block of `SimpleOperators`, which replaces functions of torch. Before that,
`make_onnx_friendly` changes modules that compute something else in Unity: without a critic, with Unity's action masks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from algorithm.distributions.categorical import find_allowed_combinations, split_columns
from algorithm.distributions.distribution import MASKED_LOGIT
from algorithm.networks.actor_critic import ActorCritic, BranchedActorCritic
from algorithm.networks.encoders import InputConvolution, Normalizer
from algorithm.networks.heads import SeparateHeads
from algorithm.networks.memories import AttentionMemory
from algorithm.networks.policy import GreedyQPolicy
from algorithm.specs import ACTION_MASK

Observations = Mapping[str, Tensor]


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
    network.heads = nn.Sequential(layers, _keep_outputs(head.linear, head.sizes[0]))
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
    values = sum(critic(features) for critic in network.critics.critics)
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
    is_visible = torch.cat((flags, 0 * flags[:, :1] + 1), 1).transpose(1, 2) > 0
    distance = torch.arange(memory.past_rows, -1, -1).unsqueeze(0)
    x, columns = memory.inputs(features).unsqueeze(1), []
    for index, layer in enumerate(memory.layers):
        x, keys, values = layer(x, cached[2 * index], cached[2 * index + 1], is_visible, distance)
        columns += [keys[:, -1:], values[:, -1:]]
    entry = torch.cat((*columns, 0 * x[..., :1] + 1), -1)
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


def concatenate(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate the parts that are not empty; an empty one if all are."""
    kept = [part for part in parts if part.shape[dim]] or parts[:1]
    return kept[0] if len(kept) == 1 else torch.cat(kept, dim)


def split(x: Tensor, sizes: Sequence[int], dim: int) -> list[Tensor]:
    """Return parts of the last axis, as slices: a split has outputs that may be unused."""
    if dim not in (-1, x.dim() - 1):
        raise ValueError(f"a split of axis {dim} cannot be exported")
    return split_columns(x, [int(size) for size in sizes])


def chunk(x: Tensor, count: int, dim: int = 0) -> list[Tensor]:
    """Return equal parts of the last axis."""
    return split(x, [int(x.shape[dim]) // count] * count, dim)


def tensor_split(x: Tensor, begins: Sequence[int], dim: int = 0) -> list[Tensor]:
    """Return parts of the last axis, by where the second and later ones begin."""
    return split(x, [end - begin for begin, end in pairwise([0, *begins, int(x.shape[dim])])], dim)


def reshape_rows(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a tensor with these axes after the first."""
    return x if [*x.shape[1:]] == [*shape] else x.reshape(-1, *shape)


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Join some axes after the first."""
    sizes, start, end = [int(size) for size in x.shape], start_dim % x.dim(), end_dim % x.dim() + 1
    return reshape_rows(x, [*sizes[1:start], prod(sizes[start:end]), *sizes[end:]])


def unflatten(x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Divide an axis after the first."""
    axes, place = [int(size) for size in x.shape], dim % x.dim()
    rest = axes[place] // prod(size for size in sizes if size > 0)
    return reshape_rows(x, [*axes[1:place], *(rest if size < 0 else size for size in sizes), *axes[place + 1 :]])


def convert(x: Tensor, target: Any) -> Tensor:
    """Convert to a type or a device, if it is another one."""
    return x if target in (x.dtype, x.device) else x.to(target)


def fill(x: Tensor, mask: Tensor, value: float) -> Tensor:
    """Return x with the value where the mask is true."""
    return x * (~mask).float() + value * mask.float()


REPLACEMENTS: Mapping[Any, Callable[..., Any]] = {
    torch.cat: concatenate,
    Tensor.split: split,
    Tensor.chunk: chunk,
    Tensor.tensor_split: tensor_split,
    Tensor.flatten: flatten,
    Tensor.unflatten: unflatten,
    Tensor.to: convert,
    Tensor.float: partial(convert, target=torch.float32),
    Tensor.masked_fill: fill,
    Tensor.expand_as: lambda x, other: x + 0 * other,
    torch.full_like: lambda x, value: 0 * x + value,
    torch.addcmul: lambda x, first, second: x + first * second,
    torch.lerp: lambda start, end, weight: start + weight * (end - start),
}
