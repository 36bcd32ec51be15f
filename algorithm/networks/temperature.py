"""The weight of entropy against reward."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Of log alpha where it is used. A target entropy that no policy reaches would drive it away without end; it returns
# from beyond, since what it learns from is not bounded.
LOG_ALPHA_BOUNDS = (-20.0, 5.0)


class Temperature(nn.Module):
    """`count` numbers alpha, learned or not as their logarithms."""

    def __init__(self, count: int, log_alpha: float, trainable: bool):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((count,), log_alpha), requires_grad=trainable)

    def alpha(self) -> Tensor:
        """[count], without gradient."""
        return self.log_alpha.detach().clamp(*LOG_ALPHA_BOUNDS).exp()
