"""Entropy temperatures (SAC, Haarnoja et al. 2018, arXiv 1812.05905, section 5)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Bounds of log alpha where it is used. A target entropy that no policy reaches would otherwise increase it without
# limit. The learned value itself is not bounded, so its gradient brings it back into the bounds.
LOG_ALPHA_BOUNDS = (-20.0, 5.0)


class Temperature(nn.Module):
    """Entropy temperatures alpha, stored as their logarithms.

    Args:
        count: Number of temperatures.
        log_alpha: Initial logarithm of each.
        trainable: Whether the logarithms are learned.
    """

    def __init__(self, count: int, log_alpha: float, trainable: bool):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((count,), log_alpha), requires_grad=trainable)

    def alpha(self) -> Tensor:
        """Return the temperatures [count], without gradient."""
        return self.log_alpha.detach().clamp(*LOG_ALPHA_BOUNDS).exp()
