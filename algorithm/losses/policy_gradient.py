"""From an ascent direction for what a network puts out to a loss."""

from jaxtyping import Float
from torch import Tensor


def surrogate(direction: Float[Tensor, "*B S"], outputs: Float[Tensor, "*B S"]) -> Float[Tensor, "*B"]:
    """-<direction, outputs>: sends a constant ascent `direction` through the network (Wang et al. 2017, Eq. 12).

    Its value means nothing; only its gradient does.
    """
    return -(direction * outputs).sum(-1)
