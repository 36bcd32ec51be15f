"""Standard deviations of continuous actions: given, learned as numbers of their own, or read from the state."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

Kind = Literal["fixed", "learned", "state_dependent"]
# Of the logarithm of a learned deviation, above its floor: what is wider than tanh can show, and still finite.
BOUNDS = (-20.0, 2.0)


class Deviation(nn.Module):
    """Puts log std behind the means: [..., means, (own columns,) rest] -> [..., means, log std, rest].

    fixed: `start`, and nothing is learned. learned: one number for each mean. state: columns of the network's output.
    What is learned starts at `start` and approaches `floor` without ever reaching it: std = floor + exp(number).
    """

    def __init__(self, means: int, kind: Kind, start: float, floor: float):
        super().__init__()
        self.means = means
        self.columns = 2 * means if kind == "state_dependent" else means  # of the network's output
        self.fixed = kind == "fixed"
        self.floor = 0.0 if self.fixed else floor
        self.start = log(start - self.floor)
        self.number = nn.Parameter(torch.zeros(means)) if kind == "learned" else None

    def forward(self, outputs: Tensor) -> Tensor:
        widths = (self.means, self.columns - self.means, outputs.shape[-1] - self.columns)
        mean, number, rest = outputs.split(widths, -1)
        if self.fixed:
            return torch.cat((mean, torch.full_like(mean, self.start), rest), -1)
        if self.number is not None:
            number = self.number.expand_as(mean)
        above = (self.start + number).clamp(*BOUNDS).exp()
        return torch.cat((mean, (self.floor + above).log(), rest), -1)

    def numpy(self) -> Callable[[np.ndarray], np.ndarray]:
        """The same in numpy, on a view of the parameters."""
        own = None if self.number is None else self.number.detach().numpy()

        def forward(outputs: np.ndarray) -> np.ndarray:
            mean, rest = outputs[:, : self.means], outputs[:, self.columns :]
            if self.fixed:
                return np.concatenate((mean, np.full_like(mean, self.start), rest), -1)
            number = outputs[:, self.means : self.columns] if own is None else np.broadcast_to(own, mean.shape)
            above = np.exp(np.minimum(np.maximum(self.start + number, BOUNDS[0]), BOUNDS[1]))
            return np.concatenate((mean, np.log(self.floor + above), rest), -1)

        return forward
