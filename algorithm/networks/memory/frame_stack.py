"""Frame stacking: the last frames of an episode as one observation of an encoder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.blueprint import EncoderFactory
from algorithm.networks.mlp import check_sizes
from algorithm.specs import ObsSpec


@dataclass(frozen=True)
class FrameStack:
    """A factory of an encoder of the last frames of an observation: `FrameStack(4, NatureCnn())`.

    The frames, oldest first, are concatenated along the first axis of the observation (the channels of an image).
    Frames from before the start of the episode are zero.

    Args:
        frames: Number of frames, the present one included; at least 2.
        encoder: Factory of the encoder of the stacked frames.

    Raises:
        ValueError: Fewer than two frames.
    """

    frames: int
    encoder: EncoderFactory

    def __post_init__(self) -> None:
        check_sizes("FrameStack", self.frames)
        if self.frames < 2:
            raise ValueError(f"FrameStack has {self.frames} frame(s); it needs at least 2")

    def __call__(self, spec: ObsSpec) -> FrameStackEncoder:
        channels, *others = spec.shape
        stacked = replace(spec, shape=(channels * self.frames, *others), env_shape=None)
        return FrameStackEncoder(spec.shape, self.frames, self.encoder(stacked))


class FrameStackEncoder(nn.Module):
    """The encoder of a FrameStack. Its state is the past frames, which as many rows rebuild: a replay stores none."""

    def __init__(self, shape: tuple[int, ...], frames: int, encoder: Any):
        super().__init__()
        self.shape, self.past_frames = shape, frames - 1
        self.encoder = encoder
        self.size: int = encoder.size
        self.state_size = self.past_frames * prod(shape)

    def step(self, obs: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Map one row: [B, *shape], memory [B, state_size] -> features [B, size], next memory."""
        frames = torch.cat((memory, obs.flatten(1).to(memory.dtype)), -1)
        stacked = frames.unflatten(-1, (-1, *self.shape)).flatten(1, 2).to(obs.dtype)
        return self.encoder(stacked), frames[:, frames.shape[1] - self.state_size :]

    def push_frame(self, obs: np.ndarray, memory: np.ndarray) -> np.ndarray:
        """Return the next memory of `step`: [B, *shape], memory [B, state_size] -> [B, state_size]."""
        frames = np.concatenate((memory, obs.reshape(len(obs), -1)), -1, dtype=memory.dtype)
        return frames[:, frames.shape[1] - self.state_size :]

    def stack(self, obs: Tensor, first: Tensor, memory: Tensor | None, begin: int, end: int) -> Tensor:
        """Return the stacked frames of rows `begin` to `end`.

        Args:
            obs: Frames [T, B, *shape].
            first: The first rows of episodes [T, B].
            memory: The memory [B, state_size] before row 0; None: frames before row 0 are zero.
            begin: The first row to return.
            end: The row after the last one to return.

        Returns:
            Stacked frames [end - begin, B, frames * shape[0], ...].
        """
        n_missing = max(self.past_frames - begin, 0)  # frames before row 0
        rows, episode = (
            obs[begin + n_missing - self.past_frames : end],
            first.long().cumsum(0)[begin + n_missing - self.past_frames : end],
        )
        if n_missing:
            earlier = obs.new_zeros((n_missing, *obs.shape[1:]))
            if memory is not None:
                earlier = (
                    memory.unflatten(-1, (self.past_frames, *self.shape)).transpose(0, 1)[-n_missing:].to(obs.dtype)
                )
            rows = torch.cat((earlier, rows))
            episode = torch.cat((episode.new_zeros((n_missing, episode.shape[1])), episode))
        count = end - begin
        frames = []
        for age in range(self.past_frames, 0, -1):
            frame = slice(self.past_frames - age, self.past_frames - age + count)
            same_episode = (episode[frame] == episode[self.past_frames :]).to(obs.dtype)
            frames.append(rows[frame] * same_episode.view(*same_episode.shape, *[1] * len(self.shape)))
        return torch.cat((*frames, rows[self.past_frames :]), 2)

    def forward(self, stacked: Tensor) -> Tensor:
        """Encode stacked frames [rows, frames * shape[0], ...] -> [rows, size]."""
        return self.encoder(stacked)

    def observe(self, obs: Tensor) -> None:
        """Update the encoder's running statistics with collected rows [n, *shape], the same for every frame."""
        if hasattr(self.encoder, "observe"):
            self.encoder.observe(torch.cat([obs] * (self.past_frames + 1), 1))
