"""Gated recurrent memories: GRU (Cho et al. 2014) and LSTM (Hochreiter and Schmidhuber 1997)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from algorithm.networks.mlp import check_sizes


@dataclass(frozen=True)
class Gru:
    """Factory of a gated recurrent unit: `Gru(64)` remembers and puts out 64 numbers."""

    units: int

    def __post_init__(self) -> None:
        check_sizes("Gru", self.units)

    def __call__(self, size: int) -> nn.Module:
        return GruMemory(size, self.units)


@dataclass(frozen=True)
class Lstm:
    """Factory of a long short-term memory: `Lstm(64)` puts out 64 numbers and remembers 128 (output and cell)."""

    units: int

    def __post_init__(self) -> None:
        check_sizes("Lstm", self.units)

    def __call__(self, size: int) -> nn.Module:
        return LstmMemory(size, self.units)


class RecurrentMemory(nn.Module):
    """A cell of `gates` blocks of `units`, run row by row; what the features bring comes from one product for all rows.

    Row by row rather than by torch's fused modules: these start every column from one state and know no `first`.
    """

    def __init__(self, size: int, units: int, gates: int, vectors: int):
        super().__init__()
        self.size, self.units, self.state_size = units, units, vectors * units
        self.inputs = nn.Linear(size, gates * units)
        self.recurrent = nn.Linear(units, gates * units)
        for linear in (self.inputs, self.recurrent):
            for block in linear.weight.data.split(units):
                nn.init.orthogonal_(block)
            nn.init.zeros_(linear.bias)

    @abstractmethod
    def cell(self, inputs: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """One row: the features' part of all gates [B, gates * units], memory [B, state] -> output, memory."""

    def step(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """One row: [B, F], [B, state] -> [B, size], [B, state]."""
        return self.cell(self.inputs(features).to(memory.dtype), memory)

    def unroll(self, features: Tensor, first: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """[T, B, F], first [T, B], memory [B, state] before row 0 -> [T, B, size], [B, state] behind the last row."""
        not_first = (~first).to(memory.dtype).unsqueeze(-1)
        outputs = []
        rows = self.inputs(features).to(memory.dtype)  # products may be bfloat16, what is remembered is not
        for inputs, keep in zip(rows.unbind(), not_first.unbind(), strict=True):
            output, memory = self.cell(inputs, memory * keep)
            outputs.append(output)
        return torch.stack(outputs), memory


class GruMemory(RecurrentMemory):
    """h <- z h + (1 - z) tanh(W x + r (U h + b)), with gates r and z of x and h."""

    def __init__(self, size: int, units: int):
        super().__init__(size, units, gates=3, vectors=1)

    def cell(self, inputs: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        gates, candidate = inputs.tensor_split([2 * self.units], -1)
        memory_gates, memory_candidate = self.recurrent(memory).to(memory.dtype).tensor_split([2 * self.units], -1)
        reset, update = torch.sigmoid(gates + memory_gates).chunk(2, -1)
        candidate = torch.tanh(torch.addcmul(candidate, reset, memory_candidate))
        memory = torch.lerp(candidate, memory, update)
        return memory, memory


class LstmMemory(RecurrentMemory):
    """c <- f c + i tanh(g), h <- o tanh(c), with all four of x and h; memory is h | c."""

    def __init__(self, size: int, units: int):
        super().__init__(size, units, gates=4, vectors=2)
        # Jozefowicz et al. 2015: what is not yet known to be useless is kept.
        nn.init.ones_(self.inputs.bias.data[units : 2 * units])

    def cell(self, inputs: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        hidden, cell = memory.chunk(2, -1)
        gates = inputs + self.recurrent(hidden).to(hidden.dtype)
        input_gate, forget_gate, output_gate = torch.sigmoid(gates[..., : 3 * self.units]).chunk(3, -1)
        cell = torch.addcmul(forget_gate * cell, input_gate, torch.tanh(gates[..., 3 * self.units :]))
        hidden = output_gate * torch.tanh(cell)
        return hidden, torch.cat((hidden, cell), -1)
