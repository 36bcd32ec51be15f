"""From an ascent direction for what a network puts out to a loss."""

from jaxtyping import Float
from torch import Tensor


def surrogate_loss(direction: Float[Tensor, "*B S"], outputs: Float[Tensor, "*B S"]) -> Float[Tensor, ""]:
    """-sum <direction, outputs>: sends a constant ascent `direction` through the network (Wang et al. 2017, Eq. 12).

    Its value means nothing; only its gradient does. What each row weighs stands in the direction already.
    """
    return -(direction * outputs).sum()
