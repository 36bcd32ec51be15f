"""Errors of a critic."""

from jaxtyping import Float
from torch import Tensor


def squared_error(target: Float[Tensor, "*B"], value: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """1/2 (target - value)^2 (Wang et al. 2017, the loss behind Eq. 6)."""
    return 0.5 * (target - value).square()
