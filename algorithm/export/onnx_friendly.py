"""The same networks in the operators that Unity imports: fixed shapes, one step, nothing that nobody reads.

A module that has no plain form here, such as one of the user's own, is traced as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from algorithm.export.onnx_friendly_memory import PlainAttention, PlainGru, PlainLayer, PlainLstm
from algorithm.networks.actor_critic import ActorCritic
from algorithm.networks.encoders.image import First
from algorithm.networks.encoders.vector import VectorEncoder
from algorithm.networks.heads import SeparateHeads, SharedHeads
from algorithm.networks.memory.attention import AttentionMemory, Layer
from algorithm.networks.memory.frame_stack import StackedEncoder
from algorithm.networks.memory.recurrent import GruMemory, LstmMemory
from algorithm.networks.q_policy import Greedy
from algorithm.networks.running_statistics import Normalization
from algorithm.networks.std_head import BOUNDS
from algorithm.networks.torso import Torso
from algorithm.specs import MASK


def plain(module: Any) -> nn.Module:
    """A copy of a module, and of all in it, in its plain form. What it is made of is replaced in place."""
    made = PLAIN[type(module)](module) if type(module) in PLAIN else module
    for name, child in list(made.named_children()):
        setattr(made, name, plain(child))
    return made


class Affine(nn.Module):
    """[B, F] -> [B, outputs]: the first outputs of a linear layer."""

    def __init__(self, linear: nn.Linear, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(linear.weight[:outputs].clone(), requires_grad=False)
        self.bias = nn.Parameter(linear.bias[:outputs].clone(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


class PlainPolicy(nn.Module):
    """The policy alone: no critic, and no mask, which the graph knows by itself."""

    def __init__(self, network: ActorCritic):
        super().__init__()
        self.torso = network.torso
        heads: Any = network.heads
        separate = isinstance(heads, SeparateHeads)
        self.layers = heads.layers[0] if separate else nn.Identity()
        shared = heads.heads[0] if separate else heads
        self.head = Affine(shared.linear, shared.sizes[0])
        self.deviation: Any = network.deviation
        self.rest = network.statistics - 2 * self.deviation.means if self.deviation else 0

    def forward(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        features, memory = self.torso.step(obs, memory)
        outputs = self.head(self.layers(features))
        if not self.deviation:
            return outputs, memory
        parts = [outputs[:, : self.deviation.means], self._log_std(outputs)]
        if self.rest:
            parts.append(outputs[:, self.deviation.columns :])
        return torch.cat(parts, -1), memory

    def _log_std(self, outputs: Tensor) -> Tensor:
        own, means = self.deviation, outputs[:, : self.deviation.means]
        if own.fixed:
            return 0 * means + own.start
        number = outputs[:, own.means : own.columns] if own.number is None else 0 * means + own.number.detach()
        return (own.floor + (own.start + number).clamp(*BOUNDS).exp()).log()


class PlainGreedy(nn.Module):
    """Of each branch the best that is allowed, and with probability epsilon any, as logarithms of probabilities."""

    def __init__(self, network: Greedy):
        super().__init__()
        self.torso, self.members = network.torso, network.critics.members
        ends = accumulate(network.family.branches, initial=0)
        self.branches, self.epsilon = [slice(*branch) for branch in pairwise(ends)], network.epsilon
        self.register_buffer("places", network.places)

    def forward(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        features, memory = self.torso.step(obs, memory)
        values = sum(member(features) for member in self.members)
        masks = (obs[MASK][:, branch] for branch in self.branches)
        # A branch of which all is forbidden is as if nothing were.
        free = [mask + (1 - mask.sum(-1, keepdim=True).clamp(max=1)) for mask in masks]
        # 1 for a combination with nothing forbidden in it, 0 otherwise.
        possible = (1 - (1 - torch.cat(free, -1)) @ self.places.T).clamp(min=0)
        best = (values * possible - 1e8 * (1 - possible)).argmax(-1)
        codes = nn.functional.one_hot(best, len(self.places)).float() @ self.places
        mixed = [
            (1 - self.epsilon) * codes[:, branch] + self.epsilon * part / part.sum(-1, keepdim=True)
            for branch, part in zip(self.branches, free, strict=True)
        ]
        return torch.cat(mixed, -1).clamp(min=1e-30).log(), memory


class PlainHeads(nn.Module):
    """All outputs of a SharedHeads."""

    def __init__(self, heads: SharedHeads):
        super().__init__()
        self.ends = list(accumulate(heads.sizes, initial=0))
        self.joint = Affine(heads.linear, self.ends[-1])

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        outputs = self.joint(features)
        return tuple(outputs[:, begin:end] for begin, end in pairwise(self.ends))


class PlainTorso(nn.Module):
    """One row of a Torso, without the parts of the memory that are empty."""

    def __init__(self, torso: Torso):
        super().__init__()
        self.names, self.encoders, self.body, self.memory = torso.names, torso.encoders, torso.body, torso.memory
        kept, *states = pairwise(accumulate(torso._states, initial=0))
        self.kept, self.states = slice(*kept), [slice(*state) for state in states]

    def step(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        parts, after = [], []
        for name, encoder, where in zip(self.names, self.encoders, self.states, strict=True):
            if where.start == where.stop:
                parts.append(encoder(obs[name]))
                continue
            part, frames = encoder.step(obs[name], memory[:, where])
            parts.append(part)
            after.append(frames)
        features = _side_by_side(parts)
        if self.body:
            features = self.body(features)
        if self.memory:
            features, own = self.memory.step(features, memory[:, self.kept])
            after.insert(0, own)
        return features, _side_by_side(after) if after else memory


class PlainVector(nn.Module):
    """A vector in other units, where there are any."""

    def __init__(self, encoder: VectorEncoder):
        super().__init__()
        self.units: Any = encoder.units

    def forward(self, obs: Tensor) -> Tensor:
        vector = _flat(obs)
        return vector if self.units is None else self.units(vector)


class PlainNormalization(nn.Module):
    """The normalisation that was measured, as two constants."""

    def __init__(self, normalization: Normalization):
        super().__init__()
        moments = normalization.moments
        self.clip = normalization.clip
        self.register_buffer("mean", moments.mean.float())
        self.register_buffer("std", moments.std.float())

    def forward(self, x: Tensor) -> Tensor:
        return ((x - self.mean) / self.std).clamp(-self.clip, self.clip)


class PlainFirst(nn.Module):
    """A convolution that divides by `high` in its weights, once."""

    def __init__(self, layer: First):
        super().__init__()
        self.weight = nn.Parameter(layer.weight.detach() / layer.high, requires_grad=False)
        self.bias, self.stride, self.padding = layer.bias, layer.stride, layer.padding

    def forward(self, obs: Tensor) -> Tensor:
        return nn.functional.conv2d(obs, self.weight, self.bias, self.stride, self.padding)


class PlainStack(nn.Module):
    """The last frames, which stand one behind the other in the memory as along the channels."""

    def __init__(self, stack: StackedEncoder):
        super().__init__()
        self.encoder, self.frame = stack.encoder, prod(stack.shape)
        channels, *others = stack.shape
        self.shape = ((stack.past + 1) * channels, *others)

    def step(self, obs: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        frames = torch.cat((memory, _flat(obs)), -1)
        stacked = frames.reshape(-1, *self.shape) if len(self.shape) > 1 else frames
        return self.encoder(stacked), frames[:, self.frame :]


def _flat(obs: Tensor) -> Tensor:
    return obs if obs.dim() == 2 else obs.flatten(1)


def _side_by_side(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


PLAIN: Mapping[type, Callable[[Any], nn.Module]] = {
    ActorCritic: PlainPolicy,
    Greedy: PlainGreedy,
    SharedHeads: PlainHeads,
    Torso: PlainTorso,
    VectorEncoder: PlainVector,
    Normalization: PlainNormalization,
    First: PlainFirst,
    StackedEncoder: PlainStack,
    GruMemory: PlainGru,
    LstmMemory: PlainLstm,
    AttentionMemory: PlainAttention,
    Layer: PlainLayer,
}
