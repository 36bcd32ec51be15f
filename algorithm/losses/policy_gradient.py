"""From an ascent direction for a policy's statistics to a loss."""

from jaxtyping import Float
from torch import Tensor


def surrogate(direction: Float[Tensor, "*B S"], statistics: Float[Tensor, "*B S"]) -> Float[Tensor, "*B"]:
    """-<direction, statistics>: sends a constant ascent `direction` through the network (Wang et al. 2017, Eq. 12).

    Its value means nothing; only its gradient does.
    """
    return -(direction * statistics).sum(-1)
