"""Errors of a critic."""

import torch
from jaxtyping import Float
from torch import Tensor


def squared_error(target: Float[Tensor, "*B"], value: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """1/2 (target - value)^2 (Wang et al. 2017, the loss behind Eq. 6)."""
    return 0.5 * (target - value).square()


def clipped_error(
    target: Float[Tensor, "*B"], value: Float[Tensor, "*B"], target_value: Float[Tensor, "*B"], clip: float
) -> Float[Tensor, "*B"]:
    """What `value` climbs on max((target - value)^2, (target - near)^2) / 2, near being at most `clip` from `lagging`.

    Q-clip of Zhou et al. 2022 (arXiv 2209.10081, section 4.2): the error, or 0 where it would lead further away.
    """
    difference, error = value - target_value, target - value
    clipped_value = target_value + difference.clamp(-clip, clip)
    # Within reach `near` is the value but for rounding, which must not decide.
    return torch.where((difference.abs() > clip) & ((target - clipped_value).abs() > error.abs()), 0.0, error)
