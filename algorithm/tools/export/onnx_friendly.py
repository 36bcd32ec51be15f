"""Replacements of modules for the export, in operators that Unity imports: fixed shapes, one step, no unused outputs.

A module without a replacement, such as a module in nn.py, is traced as it is. `step` of a module with a memory takes
features [B, features] and a memory [B, size], and returns outputs and the next memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from algorithm.distributions.combinations import find_allowed_combinations
from algorithm.networks.actor_critic import ActorCritic
from algorithm.networks.branched import Branch, BranchedActorCritic
from algorithm.networks.encoders.image import InputConvolution
from algorithm.networks.encoders.vector import Normalizer, VectorEncoder
from algorithm.networks.heads import SeparateHeads
from algorithm.networks.memory.attention import AttentionLayer, AttentionMemory
from algorithm.networks.memory.frame_stack import FrameStackEncoder
from algorithm.networks.memory.recurrent import GruMemory, LstmMemory
from algorithm.networks.mlp import NormalizedStack
from algorithm.networks.normalization import BatchNorm, BatchRenorm, LayerNorm, RmsNorm
from algorithm.networks.policy import GreedyQPolicy
from algorithm.networks.residual import ResidualBlock, ResidualLayers
from algorithm.networks.torso import Torso
from algorithm.specs import ACTION_MASK
from algorithm.tools.export.onnx_friendly_memory import OnnxAttention, OnnxAttentionLayer, OnnxGru, OnnxLstm
from algorithm.tools.export.onnx_friendly_norms import (
    OnnxBatchNorm,
    OnnxLayerNorm,
    OnnxNormalizedStack,
    OnnxResidual,
    OnnxResidualBlock,
    OnnxRmsNorm,
)


def to_onnx_friendly(module: Any) -> nn.Module:
    """Return the replacement of a module for the export; its submodules are replaced in place."""
    converted = REPLACEMENTS[type(module)](module) if type(module) in REPLACEMENTS else module
    for name, child in list(converted.named_children()):
        setattr(converted, name, to_onnx_friendly(child))
    return converted


class Affine(nn.Module):
    """The first `outputs` outputs of a linear layer: [B, features] -> [B, outputs]."""

    def __init__(self, linear: nn.Linear, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(linear.weight[:outputs].clone(), requires_grad=False)
        self.bias = nn.Parameter(linear.bias[:outputs].clone(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


class OnnxActorCritic(nn.Module):
    """The policy of an ActorCritic, without its critic and without action masks, which ExportModule applies."""

    def __init__(self, network: ActorCritic):
        super().__init__()
        self.torso = network.torso
        heads: Any = network.heads
        separate = isinstance(heads, SeparateHeads)
        self.layers = heads.layers[0] if separate else nn.Identity()
        shared = heads.heads[0] if separate else heads
        self.head = Affine(shared.linear, shared.sizes[0])
        self.std_head: Any = network.std_head
        self.rest = network.statistics_size - 2 * self.std_head.n_means if self.std_head else 0

    def forward(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        features, memory = self.torso.step(obs, memory)
        outputs = self.head(self.layers(features))
        if not self.std_head:
            return outputs, memory
        parts = [self.std_head.bound_means(outputs[:, : self.std_head.n_means]), self._log_std(outputs)]
        if self.rest:
            parts.append(outputs[:, self.std_head.n_columns :])
        return torch.cat(parts, -1), memory

    def _log_std(self, outputs: Tensor) -> Tensor:
        head, means = self.std_head, outputs[:, : self.std_head.n_means]
        if head.fixed_log_std is not None:
            return 0 * means + head.fixed_log_std
        number = (
            outputs[:, head.n_means : head.n_columns] if head.log_std is None else 0 * means + head.log_std.detach()
        )
        return head.compute_log_std(number)


class OnnxGreedyQPolicy(nn.Module):
    """An epsilon-greedy policy of action values: log probabilities of the actions of every branch."""

    def __init__(self, network: GreedyQPolicy):
        super().__init__()
        self.torso, self.critics = network.torso, network.critics.critics
        ends = accumulate(network.family.branches, initial=0)
        self.branches, self.epsilon = [slice(*branch) for branch in pairwise(ends)], network.epsilon
        self.codes: Tensor
        self.register_buffer("codes", network.combination_codes)

    def forward(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        features, memory = self.torso.step(obs, memory)
        values = sum(critic(features) for critic in self.critics)
        masks = (obs[ACTION_MASK][:, branch] for branch in self.branches)
        # If all actions of a branch are masked, all are allowed.
        free = [mask + (1 - mask.sum(-1, keepdim=True).clamp(max=1)) for mask in masks]
        # 1 for a combination without masked actions, 0 otherwise.
        possible = (1 - (1 - torch.cat(free, -1)) @ self.codes.T).clamp(min=0)
        best = (values * possible - 1e8 * (1 - possible)).argmax(-1)
        chosen = nn.functional.one_hot(best, len(self.codes)).float() @ self.codes
        mixed = [
            (1 - self.epsilon) * chosen[:, branch] + self.epsilon * part / part.sum(-1, keepdim=True)
            for branch, part in zip(self.branches, free, strict=True)
        ]
        return torch.cat(mixed, -1).clamp(min=1e-30).log(), memory


class OnnxBranch(nn.Module):
    """One step of a Branch, without its output."""

    def __init__(self, branch: Branch):
        super().__init__()
        self.layers: Any = branch.layers
        self.state_size = branch.state_size

    def step(self, features: Tensor, state: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Map one row: features [B, F], the state [B, state_size] if there is one -> features, next state."""
        if not state:
            return self.layers(features), []
        features, after = self.layers.step(features, *state)
        return features, [after]


class OnnxBranchedActorCritic(nn.Module):
    """The policy of a BranchedActorCritic with masks, whose uniform part is over the allowed actions only."""

    def __init__(self, network: BranchedActorCritic):
        super().__init__()
        self.head = Affine(network.policy.head.linear, network.policy.head.sizes[0])
        self.torso, self.policy, self.critic = network.torso, OnnxBranch(network.policy), OnnxBranch(network.critic)
        self.branches, self.uniform_fraction = network.family.branches, network.uniform_fraction
        self.sizes = [*network.stored_sizes, network.state_size - network.stored_state_size]
        self.codes: Tensor
        self.register_buffer("codes", network.combination_codes)

    def forward(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        torso_state, policy_state, critic_state, frames = _split(memory, self.sizes)
        torso_memory = torso_state + frames
        features, after = self.torso.step(obs, _concatenate(torso_memory) if torso_memory else memory)
        torso_state, frames = _split(after, [self.sizes[0], self.sizes[3]])
        hidden, policy_state = self.policy.step(features, policy_state)
        if critic_state:
            _, critic_state = self.critic.step(features, critic_state)
        states = torso_state + policy_state + critic_state + frames
        allowed = find_allowed_combinations(obs[ACTION_MASK], self.branches, self.codes)
        probs = (self.head(hidden) * allowed - 1e8 * (1 - allowed)).softmax(-1)
        uniform = allowed / allowed.sum(-1, keepdim=True)
        mixed = (1 - self.uniform_fraction) * probs + self.uniform_fraction * uniform
        return mixed.clamp(min=1e-30).log(), _concatenate(states) if states else memory


class OnnxTorso(nn.Module):
    """One step of a Torso, without empty parts of the memory."""

    def __init__(self, torso: Torso):
        super().__init__()
        self.names, self.encoders, self.body, self.memory = torso.names, torso.encoders, torso.body, torso.memory
        body_memory, *states = pairwise(accumulate(torso._state_sizes, initial=0))
        self.body_memory, self.states = slice(*body_memory), [slice(*state) for state in states]

    def step(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        parts, after = [], []
        for name, encoder, where in zip(self.names, self.encoders, self.states, strict=True):
            if where.start == where.stop:
                parts.append(encoder(obs[name]))
                continue
            part, frames = encoder.step(obs[name], memory[:, where])
            parts.append(part)
            after.append(frames)
        features = _concatenate(parts)
        if self.body:
            features = self.body(features)
        if self.memory:
            features, own = self.memory.step(features, memory[:, self.body_memory])
            after.insert(0, own)
        return features, _concatenate(after) if after else memory


class OnnxVectorEncoder(nn.Module):
    """The replacement of a VectorEncoder."""

    def __init__(self, encoder: VectorEncoder):
        super().__init__()
        self.transform: Any = encoder.transform

    def forward(self, obs: Tensor) -> Tensor:
        vector = _flatten(obs)
        return vector if self.transform is None else self.transform(vector)


class OnnxNormalizer(nn.Module):
    """A Normalizer whose mean and standard deviation are constants."""

    def __init__(self, normalizer: Normalizer):
        super().__init__()
        moments = normalizer.moments
        self.clip = normalizer.clip
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", moments.mean.float())
        self.register_buffer("std", moments.std.float())

    def forward(self, x: Tensor) -> Tensor:
        return ((x - self.mean) / self.std).clamp(-self.clip, self.clip)


class OnnxInputConvolution(nn.Module):
    """An InputConvolution whose weights are divided by `high` once, instead of its inputs."""

    def __init__(self, layer: InputConvolution):
        super().__init__()
        self.weight = nn.Parameter(layer.weight.detach() / layer.high, requires_grad=False)
        self.bias, self.stride, self.padding = layer.bias, layer.stride, layer.padding

    def forward(self, obs: Tensor) -> Tensor:
        return nn.functional.conv2d(obs, self.weight, self.bias, self.stride, self.padding)


class OnnxFrameStack(nn.Module):
    """One step of a FrameStackEncoder; the memory [B, past frames * frame] holds the last frames, oldest first."""

    def __init__(self, stack: FrameStackEncoder):
        super().__init__()
        self.encoder, self.frame = stack.encoder, prod(stack.shape)
        channels, *others = stack.shape
        self.shape = ((stack.past_frames + 1) * channels, *others)

    def step(self, obs: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        frames = torch.cat((memory, _flatten(obs)), -1)
        stacked = frames.reshape(-1, *self.shape) if len(self.shape) > 1 else frames
        return self.encoder(stacked), frames[:, self.frame :]


def _flatten(obs: Tensor) -> Tensor:
    return obs if obs.dim() == 2 else obs.flatten(1)


def _split(columns: Tensor, sizes: list[int]) -> list[list[Tensor]]:
    """Return each part of some columns as a list, empty for a part of size 0."""
    ends = accumulate(sizes, initial=0)
    return [[columns[:, begin:end]] if begin < end else [] for begin, end in pairwise(ends)]


def _concatenate(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


REPLACEMENTS: Mapping[type, Callable[[Any], nn.Module]] = {
    ActorCritic: OnnxActorCritic,
    BranchedActorCritic: OnnxBranchedActorCritic,
    GreedyQPolicy: OnnxGreedyQPolicy,
    Torso: OnnxTorso,
    VectorEncoder: OnnxVectorEncoder,
    Normalizer: OnnxNormalizer,
    InputConvolution: OnnxInputConvolution,
    FrameStackEncoder: OnnxFrameStack,
    GruMemory: OnnxGru,
    LstmMemory: OnnxLstm,
    AttentionMemory: OnnxAttention,
    AttentionLayer: OnnxAttentionLayer,
    NormalizedStack: OnnxNormalizedStack,
    ResidualLayers: OnnxResidual,
    ResidualBlock: OnnxResidualBlock,
    BatchNorm: OnnxBatchNorm,
    BatchRenorm: OnnxBatchNorm,
    LayerNorm: OnnxLayerNorm,
    RmsNorm: OnnxRmsNorm,
}
