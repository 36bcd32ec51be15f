"""The value under maximum entropy (Haarnoja et al. 2018, arXiv 1812.05905; Christodoulou 2019, 1910.07207).

`K` are the choices that are summed over exactly: every action of a discrete space, one where all is continuous.
"""

from jaxtyping import Float
from torch import Tensor


def soft_state_value(
    probs: Float[Tensor, "*B K"], q: Float[Tensor, "*B K"], entropy_cost: Float[Tensor, "*B K"]
) -> Float[Tensor, "*B"]:
    """V(x) = sum_k pi(k) (Q(x, k) - cost_k), the cost being alpha log pi (1812.05905, Eq. 3; 1910.07207, Eq. 10).

    Of a choice k with numbers c_k of its own the cost is alpha_d log pi(k) + alpha_c log pi(c_k|k).
    """
    return (probs * (q - entropy_cost)).sum(-1)
