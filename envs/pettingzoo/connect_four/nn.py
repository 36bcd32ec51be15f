"""Layers with the same weights for each line of four cells, whose results meet in the cells where a piece can fall."""

import torch
from torch import Tensor, nn

from algorithm.networks import Blueprint, Mlp
from algorithm.specs import ObsSpec

DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))


def find_lines(rows: int, columns: int) -> list[list[int]]:
    """Return the numbers of the cells of each line of four."""
    lines = []
    for row in range(rows):
        for column in range(columns):
            for down, right in DIRECTIONS:
                if row + 3 * down < rows and 0 <= column + 3 * right < columns:
                    lines.append([(row + step * down) * columns + column + step * right for step in range(4)])
    return lines


class Lines(nn.Module):
    """An encoder of boards [batch, 2, rows, columns]: features of each column's cell where a piece can fall.

    A line is its cells, each own, other or next to be filled; the layers return a message to each of its cells.
    """

    def __init__(self, spec: ObsSpec, units: int):
        super().__init__()
        _, self.rows, self.columns = spec.shape
        lines = find_lines(self.rows, self.columns)
        self.lines = torch.tensor(lines)
        # For each cell, the numbers of its messages, filled up with that of a message of zeros.
        count = 4 * len(lines)
        through = [
            [4 * number + line.index(cell) for number, line in enumerate(lines) if cell in line]
            for cell in range(self.rows * self.columns)
        ]
        most = max(map(len, through))
        self.messages_of_cell = torch.tensor([[*numbers, *[count] * (most - len(numbers))] for numbers in through])
        self.layers = nn.Sequential(nn.Linear(12, units), nn.ReLU(), nn.Linear(units, 4 * units))
        self.units, self.size = units, (self.columns + 1) * units

    def forward(self, obs: Tensor) -> Tensor:
        taken = obs.sum(1)  # [batch, rows, columns]
        height = self.rows - 1 - taken.sum(1).long()  # the row in which the next piece of each column comes to rest
        is_next = torch.arange(self.rows).unsqueeze(-1) == height.unsqueeze(1)
        cells = torch.cat((obs, is_next.unsqueeze(1).to(obs.dtype)), 1).flatten(2)  # [batch, 3, cells]
        of_lines = cells[:, :, self.lines].permute(0, 2, 3, 1).flatten(2)  # [batch, lines, 12]
        messages = self.layers(of_lines).unflatten(-1, (4, self.units)).flatten(1, 2).relu()
        mean = messages.mean(1)
        messages = nn.functional.pad(messages, (0, 0, 0, 1))
        cell = height.clamp(min=0) * self.columns + torch.arange(self.columns)  # [batch, columns]
        numbers = self.messages_of_cell[cell].flatten(1).unsqueeze(-1).expand(-1, -1, self.units)
        by_cell = messages.gather(1, numbers).unflatten(1, (self.columns, -1)).sum(2)
        by_cell = by_cell * (height >= 0).unsqueeze(-1)
        return torch.cat((by_cell.flatten(1), mean), -1)


def blueprint(units: int = 32):
    """Return the network; the number of units comes from nn_config."""
    return Blueprint(encoders={"observation": lambda spec: Lines(spec, units)}, body=Mlp(256))
