"""An encoder of integer codes, such as the cells of a grid, as one-hot vectors."""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.linear import NumpyFunction
from algorithm.networks.mlp import check_sizes
from algorithm.specs import ObsSpec


class OneHot:
    """A factory of an encoder without layers: integer codes as one-hot vectors, for codes that have no order.

    `OneHot(11, 6, 3)` encodes a view of MiniGrid, whose cells have an object, a color and a state. A code
    without a value is encoded as zeros. [rows, channels, ...] of any dtype -> [rows, size], where size is
    the sum of `n_values` times the number of cells.

    Args:
        n_values: Number of values of the codes in each channel, which is an index of the observation's first axis.

    Raises:
        ValueError: No channel, or a number below 1; when the encoder is made: another number of channels.
    """

    def __init__(self, *n_values: int):
        if not n_values:
            raise ValueError("OneHot needs the number of values of at least one channel, as in OneHot(11, 6, 3)")
        check_sizes("OneHot", *n_values)
        self.n_values = n_values

    def __call__(self, spec: ObsSpec) -> OneHotEncoder:
        channels, *cells = spec.shape
        if channels != len(self.n_values):
            raise ValueError(
                f"OneHot has {len(self.n_values)} channels for an observation {list(spec.shape)} of {channels}"
            )
        return OneHotEncoder(self.n_values, prod(cells))


class OneHotEncoder(nn.Module):
    """The encoder of a OneHot: [rows, channels, ...] -> [rows, size] float32, ordered by channel, code and cell."""

    def __init__(self, n_values: tuple[int, ...], cells: int):
        super().__init__()
        self.size = sum(n_values) * cells
        # For each output, the index of its value in the flattened observation, and the code for which it is 1.
        channels = [channel for channel, count in enumerate(n_values) for _ in range(count)]
        codes = [code for count in n_values for code in range(count)]
        self.indices = (torch.tensor(channels).unsqueeze(-1) * cells + torch.arange(cells)).flatten()
        self.codes = torch.tensor(codes, dtype=torch.int32).repeat_interleave(cells)

    def forward(self, obs: Tensor) -> Tensor:
        self.indices, self.codes = self.indices.to(obs.device), self.codes.to(obs.device)
        return (obs.flatten(1).int().index_select(1, self.indices) == self.codes).float()

    def numpy(self) -> NumpyFunction:
        """Return `forward` in numpy."""
        indices, codes = self.indices.cpu().numpy(), self.codes.cpu().numpy()
        return lambda obs: (obs.reshape(len(obs), -1)[:, indices] == codes).astype(np.float32)
