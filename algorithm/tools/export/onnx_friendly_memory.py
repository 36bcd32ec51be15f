"""Replacements of the memories for the export: one step, in operators that Unity imports."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from algorithm.networks.memories import AttentionLayer, AttentionMemory, GruMemory, LstmMemory


class OnnxGru(nn.Module):
    """One step of a GruMemory."""

    def __init__(self, memory: GruMemory):
        super().__init__()
        self.inputs, self.recurrent, self.units = memory.inputs, memory.recurrent, memory.units

    def step(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        inputs, recurrent, units = self.inputs(features), self.recurrent(memory), self.units
        reset = torch.sigmoid(inputs[:, :units] + recurrent[:, :units])
        update = torch.sigmoid(inputs[:, units : 2 * units] + recurrent[:, units : 2 * units])
        new = torch.tanh(inputs[:, 2 * units :] + reset * recurrent[:, 2 * units :])
        memory = new + update * (memory - new)
        return memory, memory


class OnnxLstm(nn.Module):
    """One step of an LstmMemory; the memory is hidden state and cell."""

    def __init__(self, memory: LstmMemory):
        super().__init__()
        self.inputs, self.recurrent, self.units = memory.inputs, memory.recurrent, memory.units

    def step(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        units = self.units
        hidden, cell = memory[:, :units], memory[:, units:]
        gates = self.inputs(features) + self.recurrent(hidden)
        inward, forget, outward = (torch.sigmoid(gates[:, k * units : (k + 1) * units]) for k in range(3))
        cell = forget * cell + inward * torch.tanh(gates[:, 3 * units :])
        hidden = outward * torch.tanh(cell)
        return hidden, torch.cat((hidden, cell), -1)


class OnnxAttention(nn.Module):
    """One step of an AttentionMemory; an entry of the memory is the keys and values of one step, and a 1."""

    def __init__(self, memory: AttentionMemory):
        super().__init__()
        self.inputs, self.layers, self.norm = memory.inputs, memory.layers, memory.norm
        self.past, self.entry_size, self.units = memory.past_rows, memory.entry_size, memory.size

    def step(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        x, row = self.inputs(features), []
        entries, units = memory.reshape(-1, self.past, self.entry_size), self.units
        present = entries[:, :, self.entry_size - 1 :].reshape(-1, 1, 1, self.past)
        for number, layer in enumerate(self.layers):
            keys, values = (entries[:, :, units * k : units * (k + 1)] for k in (2 * number, 2 * number + 1))
            x, *own = layer.step(x, keys, values, present)
            row += own
        flag = 0 * x[:, :1] + 1
        return self.norm(x), torch.cat((memory[:, self.entry_size :], *row, flag), -1)


class OnnxAttentionLayer(nn.Module):
    """An AttentionLayer for one step, which attends to the past steps and to this step."""

    def __init__(self, layer: AttentionLayer):
        super().__init__()
        self.norms, self.project, self.output, self.hidden = layer.norms, layer.project, layer.output, layer.hidden
        heads, window = layer.bias.shape
        self.heads, self.window, self.units = heads, window, layer.output.in_features
        self.sqrt_units = (self.units // heads) ** 0.5
        self.bias = nn.Parameter(layer.bias.detach().flip(-1).reshape(1, heads, 1, window), requires_grad=False)

    def step(self, x: Tensor, keys: Tensor, values: Tensor, present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs of the layer for one step, and the key and the value of this step, each [B, units].

        Args:
            x: Features [B, units].
            keys: Keys of the past steps [B, past, units].
            values: Values of the past steps [B, past, units].
            present: 1 for entries that hold a step, 0 for empty ones, [B, 1, 1, past].
        """
        projected, units = self.project(self.norms[0](x)), self.units
        query, key, value = (projected[:, k * units : (k + 1) * units] for k in range(3))
        rows = [torch.cat((kept, own.reshape(-1, 1, units)), 1) for kept, own in ((keys, key), (values, value))]
        k, v = (part.reshape(-1, self.window, self.heads, units // self.heads).transpose(1, 2) for part in rows)
        q = query.reshape(-1, self.heads, 1, units // self.heads)
        scores = torch.matmul(q, k.transpose(2, 3)) / self.sqrt_units + self.bias
        seen = torch.cat((present, 0 * present[:, :, :, :1] + 1), -1)
        weights = (scores * seen - 1e9 * (1 - seen)).softmax(-1)
        x = x + self.output(torch.matmul(weights, v).reshape(-1, units))
        return x + self.hidden(self.norms[1](x)), key, value
