"""Memories: a float32 state per lane, after the body (Gru, Lstm, Attention) or within an encoder (FrameStack)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, replace
from math import log, prod, sqrt
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.fast_products import Linear
from algorithm.networks.layers import check_sizes, make_orthogonal_linear
from algorithm.networks.modules import EncoderFactory
from algorithm.specs import ObsSpec


@dataclass(frozen=True)
class Gru:
    """A factory of a gated recurrent unit (GRU; Cho et al. 2014, arXiv 1406.1078): `Gru(64)`.

    Features [..., F] -> [..., units]. The memory of a lane has `units` values.

    Args:
        units: Size of the output and of the memory, at least 1.

    Raises:
        ValueError: A size below 1.
    """

    units: int

    def __post_init__(self) -> None:
        check_sizes("Gru", self.units)

    def __call__(self, size: int) -> GruMemory:
        return GruMemory(size, self.units)


@dataclass(frozen=True)
class Lstm:
    """A factory of a long short-term memory (LSTM; Hochreiter and Schmidhuber 1997): `Lstm(64)`.

    Features [..., F] -> [..., units]. The memory of a lane has 2 * `units` values: output and cell. The bias of the
    forget gate starts at 1 (Jozefowicz et al. 2015).

    Args:
        units: Size of the output, at least 1.

    Raises:
        ValueError: A size below 1.
    """

    units: int

    def __post_init__(self) -> None:
        check_sizes("Lstm", self.units)

    def __call__(self, size: int) -> LstmMemory:
        return LstmMemory(size, self.units)


class RecurrentMemory(nn.Module):
    """A recurrent cell with `gates` blocks of `units` and a memory of `vectors` * `units` values per lane.

    The cell runs row by row; its product with the features is one operation for all rows. Torch's fused modules cannot
    reset the memory within a sequence, at the rows where `first` is True.
    """

    gates: int
    vectors: int

    def __init__(self, size: int, units: int):
        super().__init__()
        self.size, self.units, self.state_size = units, units, self.vectors * units
        self.inputs = Linear(size, self.gates * units)
        self.recurrent = Linear(units, self.gates * units)
        for linear in (self.inputs, self.recurrent):
            for block in linear.weight.data.split(units):
                nn.init.orthogonal_(block)
            nn.init.zeros_(linear.bias)

    @abstractmethod
    def cell(self, inputs: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Map one row: product with the features [B, gates * units], memory [B, state_size] -> output, next memory."""

    def step(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Map one row: features [B, F], memory [B, state_size] -> features [B, size], next memory."""
        return self.cell(self.inputs(features).to(memory.dtype), memory)

    def unroll(self, features: Tensor, first: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Map T rows: [T, B, F], first [T, B], memory before row 0 -> [T, B, size], memory after the last row."""
        not_first = (~first).to(memory.dtype).unsqueeze(-1)
        outputs = []
        rows = self.inputs(features).to(memory.dtype)  # products may be bfloat16, the memory is float32
        for inputs, keep in zip(rows.unbind(), not_first.unbind(), strict=True):
            output, memory = self.cell(inputs, memory * keep)
            outputs.append(output)
        return torch.stack(outputs), memory


class GruMemory(RecurrentMemory):
    """The memory of a Gru: h <- z h + (1 - z) tanh(W x + r (U h + b)), with gates r and z of x and h."""

    gates, vectors = 3, 1

    def cell(self, inputs: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        gates, candidate = inputs.tensor_split([2 * self.units], -1)
        memory_gates, memory_candidate = self.recurrent(memory).to(memory.dtype).tensor_split([2 * self.units], -1)
        reset, update = torch.sigmoid(gates + memory_gates).chunk(2, -1)
        candidate = torch.tanh(torch.addcmul(candidate, reset, memory_candidate))
        memory = torch.lerp(candidate, memory, update)
        return memory, memory


class LstmMemory(RecurrentMemory):
    """The memory of an Lstm: c <- f c + i tanh(g), h <- o tanh(c), all of x and h; the state is (h, c)."""

    gates, vectors = 4, 2

    def __init__(self, size: int, units: int):
        super().__init__(size, units)
        # A forget gate that starts open keeps the memory at first (Jozefowicz et al. 2015).
        nn.init.ones_(self.inputs.bias.data[units : 2 * units])

    def cell(self, inputs: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        hidden, cell = memory.chunk(2, -1)
        gates = inputs + self.recurrent(hidden).to(hidden.dtype)
        input_gate, forget_gate, output_gate = torch.sigmoid(gates[..., : 3 * self.units]).chunk(3, -1)
        cell = torch.addcmul(forget_gate * cell, input_gate, torch.tanh(gates[..., 3 * self.units :]))
        hidden = output_gate * torch.tanh(cell)
        return hidden, torch.cat((hidden, cell), -1)


@dataclass(frozen=True)
class Attention:
    """A factory of a transformer memory: causal attention to the last rows of the episode: `Attention(64)`.

    Transformer layers with normalization first (pre-norm; Vaswani et al. 2017, arXiv 1706.03762). The memory of a lane
    has (window - 1) * (2 * units * layers + 1) values. Features [..., F] -> [..., units].

    Args:
        units: Size of the features, a multiple of `heads`.
        heads: Attention heads, 4 by default.
        window: Number of rows that a row attends to, itself included; at least 2, 16 by default.
        layers: Transformer layers, 1 by default.
        positions: distance: a learned bias of the scores for each distance (default); absolute: the number of the step
            in its episode, as sines and cosines that are added to the features (Vaswani et al. 2017); rotary: queries
            and keys are rotated by that number (RoPE; Su et al. 2021, arXiv 2104.09864).
        gate: Whether a gated unit replaces each residual sum (GTrXL; Parisotto et al. 2019, arXiv 1910.06764, GRU-type
            gating); False by default.

    Raises:
        ValueError: A size below 1, units that are not a multiple of heads, a window of one row, unknown positions, or
            absolute or rotary ones with an odd size.
    """

    units: int
    _: KW_ONLY
    heads: int = 4
    window: int = 16
    layers: int = 1
    positions: Literal["distance", "absolute", "rotary"] = "distance"
    gate: bool = False

    def __post_init__(self) -> None:
        check_sizes("Attention", self.units, self.heads, self.window, self.layers)
        if self.positions not in ("distance", "absolute", "rotary"):
            raise ValueError(f"Attention has the positions {self.positions!r}; use distance, absolute or rotary")
        size = {"absolute": self.units, "rotary": self.units // self.heads}.get(self.positions, 0)
        if size % 2:
            raise ValueError(f"Attention has {self.positions} positions of {size} values; their number must be even")
        if self.units % self.heads:
            raise ValueError(f"Attention has {self.units} units for {self.heads} heads; heads must divide them")
        if self.window < 2:
            raise ValueError(f"Attention has a window of {self.window}; it must be at least 2")

    def __call__(self, size: int) -> AttentionMemory:
        return AttentionMemory(size, self)


class AttentionMemory(nn.Module):
    """The memory of an Attention: pre-norm transformer layers over cached keys and values.

    The state of a lane is a queue of `window` - 1 entries, oldest first. An entry has the keys and values of one row in
    every layer, and the number of the row in its episode, from 1 on; 0 if it holds no row. Keys and values depend on
    this number at most, so entries stay valid as they age.
    """

    def __init__(self, size: int, config: Attention):
        super().__init__()
        self.size, self.past_rows, self.positions = config.units, config.window - 1, config.positions
        self.inputs = make_orthogonal_linear(size, config.units, gain=1.0)
        self.layers: Any = nn.ModuleList(AttentionLayer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.units)
        self.entry_size = 2 * config.units * config.layers + 1
        self.state_size = self.past_rows * self.entry_size

    def step(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Map one row: features [B, F], memory [B, state_size] -> features [B, size], next memory."""
        first = torch.zeros((1, len(features)), dtype=torch.bool, device=features.device)
        outputs, memory = self.unroll(features.unsqueeze(0), first, memory)
        return outputs[0], memory

    def unroll(self, features: Tensor, first: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Map T rows: [T, B, F], first [T, B], memory before row 0 -> [T, B, size], memory after the last row."""
        rows = len(features)
        entries = memory.unflatten(-1, (self.past_rows, self.entry_size))
        cached, numbers = entries[..., :-1].tensor_split(2 * len(self.layers), -1), entries[..., -1]
        is_present, numbers = numbers > 0, self._number_rows(first.T, numbers[:, -1])
        episode = torch.cat((torch.zeros_like(is_present, dtype=torch.int64), first.T.long().cumsum(-1)), -1)
        is_present = torch.cat((is_present, torch.ones_like(first.T)), -1)  # [B, past + T]
        distance = torch.arange(rows, device=first.device).unsqueeze(-1) + self.past_rows
        distance = distance - torch.arange(self.past_rows + rows, device=first.device)  # [T, past + T] rows back
        is_near = (distance >= 0) & (distance <= self.past_rows)
        is_visible = (
            is_near & is_present.unsqueeze(1) & (episode[:, self.past_rows :, None] == episode[:, None])
        )  # [B, T, past + T]

        x, columns = self.embed(features.transpose(0, 1), numbers), []
        for index, layer in enumerate(self.layers):
            x, keys, values = layer(x, cached[2 * index], cached[2 * index + 1], is_visible, distance, numbers)
            columns += [keys[:, rows:], values[:, rows:]]
        same_episode = (is_present & (episode == episode[:, -1:]))[:, rows:].unsqueeze(-1).to(memory.dtype)
        numbers = torch.cat((entries[..., -1], numbers), 1)[:, rows:].unsqueeze(-1)
        memory = torch.cat((torch.cat(columns, -1) * same_episode, numbers * same_episode), -1).flatten(1)
        return self.norm(x).transpose(0, 1), memory

    def embed(self, features: Tensor, numbers: Tensor) -> Tensor:
        """Return the input of the layers [B, T, units], given the numbers [B, T] of the rows in their episodes."""
        x = self.inputs(features)
        if self.positions != "absolute":
            return x
        angles = compute_angles(numbers, self.size)
        return x + torch.cat((angles.sin(), angles.cos()), -1).to(x.dtype)

    @staticmethod
    def _number_rows(first: Tensor, last: Tensor) -> Tensor:
        """Return the numbers [B, T] of rows in their episodes, after a row with the number `last` [B]."""
        count = torch.arange(1, first.shape[1] + 1, device=first.device)
        start = (first * count).cummax(1).values  # the row at which the episode of each row starts, from 1; 0: before
        return torch.where(start > 0, count - start + 1, count + last.unsqueeze(1)).float()


class AttentionLayer(nn.Module):
    """A transformer layer: attention, then a hidden layer twice as wide."""

    def __init__(self, config: Attention):
        super().__init__()
        units = config.units
        self.heads, self.is_rotary = config.heads, config.positions == "rotary"
        self.norms: Any = nn.ModuleList(nn.LayerNorm(units) for _ in range(2))
        self.project = make_orthogonal_linear(units, 3 * units, gain=1.0)
        self.output = make_orthogonal_linear(units, units, gain=1.0)
        self.hidden = nn.Sequential(
            make_orthogonal_linear(units, 2 * units, gain=sqrt(2)),
            nn.ReLU(),
            make_orthogonal_linear(2 * units, units, gain=1.0),
        )
        # By distance; without parameters for other positions.
        self.bias = nn.Parameter(torch.zeros(config.heads, config.window)) if config.positions == "distance" else None
        self.gates: Any = nn.ModuleList(Gate(units) for _ in range(2)) if config.gate else [torch.add, torch.add]

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, is_visible: Tensor, distance: Tensor, numbers: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attend to past and present rows, then apply the hidden layer.

        Args:
            x: Features [B, T, units].
            keys: Keys [B, past, units] of past rows.
            values: Values [B, past, units] of past rows.
            is_visible: Whether a row may attend to a past or present row [B, T, past + T].
            distance: Rows between them [T, past + T].
            numbers: Numbers of the present rows in their episodes [B, T].

        Returns:
            Features [B, T, units], and keys and values [B, past + T, units] of past and present rows.
        """
        queries, new_keys, new_values = self.project(self.norms[0](x)).chunk(3, -1)
        if self.is_rotary:
            queries, new_keys = (rotate(part, numbers, self.heads) for part in (queries, new_keys))
        keys, values = torch.cat((keys, new_keys), 1), torch.cat((values, new_values), 1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (queries, keys, values))
        scores = q @ k.transpose(-1, -2) / sqrt(q.shape[-1])
        if self.bias is not None:
            scores = scores + self.bias[:, distance.clamp(0, self.bias.shape[1] - 1)]
        weights = scores.masked_fill(~is_visible.unsqueeze(1), -1e9).softmax(-1)
        x = self.gates[0](x, self.output((weights @ v).transpose(1, 2).flatten(-2)))
        return self.gates[1](x, self.hidden(self.norms[1](x))), keys, values


class Gate(nn.Module):
    """A gated unit in place of a residual sum: it maps x and the output y of a layer, after relu, to (1 - z) x + z h.

    r = sigmoid(W y + U x), z = sigmoid(W y + U x - 2), h = tanh(W y + U (r x)), each with its own matrices. It begins
    near x (GTrXL, equation of the GRU-type gating; the bias is that of the paper).
    """

    def __init__(self, units: int):
        super().__init__()
        self.of_layer = make_orthogonal_linear(units, 3 * units, gain=1.0)
        self.of_input = make_orthogonal_linear(units, 2 * units, gain=1.0)
        self.of_reset = make_orthogonal_linear(units, units, gain=1.0)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        reset, update, new = self.of_layer(y.relu()).chunk(3, -1)
        x_reset, x_update = self.of_input(x).chunk(2, -1)
        new = (new + self.of_reset((reset + x_reset).sigmoid() * x)).tanh()
        return x + (update + x_update - 2).sigmoid() * (new - x)


def compute_angles(numbers: Tensor, size: int) -> Tensor:
    """Return the angle of each number for each pair of `size` values, [..., size / 2]."""
    frequencies = torch.exp(torch.arange(0, size, 2, device=numbers.device) * (-log(10_000) / size))
    return numbers.unsqueeze(-1) * frequencies


def rotate(x: Tensor, numbers: Tensor, heads: int) -> Tensor:
    """Rotate the pairs of values of each head [B, T, units] by the angles of the numbers [B, T] of their rows."""
    parts = x.unflatten(-1, (heads, -1))
    first, second = parts.chunk(2, -1)
    angles = compute_angles(numbers, parts.shape[-1]).unsqueeze(2)
    sin, cos = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).flatten(-2)


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
        shape = (channels * self.frames, *others)
        stacked = replace(spec, shape=shape, env_shape=None, rows=spec.rows * self.frames)
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
        return self.encoder(stacked), frames[:, -self.state_size :]

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
