"""Standard deviations of continuous actions: given, learned as numbers of their own, or read from the state."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

StdKind = Literal["fixed", "learned", "state_dependent"]
# Of the logarithm of a learned deviation, above its floor: what is wider than tanh can show, and still finite.
LOG_STD_BOUNDS = (-20.0, 2.0)


class StdHead(nn.Module):
    """Puts log std behind the means: [..., means, (own columns,) rest] -> [..., means, log std, rest].

    fixed: `start`, and nothing is learned. learned: one number for each mean. state: columns of the network's output.
    What is learned starts at `start` and approaches `floor` without ever reaching it: std = floor + exp(number).
    """

    def __init__(self, n_means: int, kind: StdKind, std_init: float, std_min: float):
        super().__init__()
        self.n_means = n_means
        self.n_columns = 2 * n_means if kind == "state_dependent" else n_means  # of the network's output
        self.is_fixed = kind == "fixed"
        self.std_min = 0.0 if self.is_fixed else std_min
        self.initial_log_std = log(std_init - self.std_min)
        self.log_std = nn.Parameter(torch.zeros(n_means)) if kind == "learned" else None

    def forward(self, outputs: Tensor) -> Tensor:
        widths = (self.n_means, self.n_columns - self.n_means, outputs.shape[-1] - self.n_columns)
        mean, log_std_shift, rest = outputs.split(widths, -1)
        if self.is_fixed:
            return torch.cat((mean, torch.full_like(mean, self.initial_log_std), rest), -1)
        if self.log_std is not None:
            log_std_shift = self.log_std.expand_as(mean)
        std_above_min = (self.initial_log_std + log_std_shift).clamp(*LOG_STD_BOUNDS).exp()
        return torch.cat((mean, (self.std_min + std_above_min).log(), rest), -1)

    def numpy(self) -> Callable[[np.ndarray], np.ndarray]:
        """The same in numpy, on a view of the parameters."""
        parameter = None if self.log_std is None else self.log_std.detach().numpy()

        def forward(outputs: np.ndarray) -> np.ndarray:
            mean, rest = outputs[:, : self.n_means], outputs[:, self.n_columns :]
            if self.is_fixed:
                return np.concatenate((mean, np.full_like(mean, self.initial_log_std), rest), -1)
            log_std_shift = (
                outputs[:, self.n_means : self.n_columns]
                if parameter is None
                else np.broadcast_to(parameter, mean.shape)
            )
            std_above_min = np.exp(
                np.minimum(np.maximum(self.initial_log_std + log_std_shift, LOG_STD_BOUNDS[0]), LOG_STD_BOUNDS[1])
            )
            return np.concatenate((mean, np.log(self.std_min + std_above_min), rest), -1)

        return forward
