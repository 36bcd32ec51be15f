"""Recurrent memories: GRU (Cho et al. 2014) and LSTM (Hochreiter and Schmidhuber 1997)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from algorithm.networks.fast_products import Linear
from algorithm.networks.mlp import check_sizes


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

    def __init__(self, size: int, units: int, gates: int, vectors: int):
        super().__init__()
        self.size, self.units, self.state_size = units, units, vectors * units
        self.inputs = Linear(size, gates * units)
        self.recurrent = Linear(units, gates * units)
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
    """The memory of an Lstm: c <- f c + i tanh(g), h <- o tanh(c), all of x and h; the state is (h, c)."""

    def __init__(self, size: int, units: int):
        super().__init__(size, units, gates=4, vectors=2)
        # A forget gate that starts open keeps the memory at first (Jozefowicz et al. 2015).
        nn.init.ones_(self.inputs.bias.data[units : 2 * units])

    def cell(self, inputs: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        hidden, cell = memory.chunk(2, -1)
        gates = inputs + self.recurrent(hidden).to(hidden.dtype)
        input_gate, forget_gate, output_gate = torch.sigmoid(gates[..., : 3 * self.units]).chunk(3, -1)
        cell = torch.addcmul(forget_gate * cell, input_gate, torch.tanh(gates[..., 3 * self.units :]))
        hidden = output_gate * torch.tanh(cell)
        return hidden, torch.cat((hidden, cell), -1)
