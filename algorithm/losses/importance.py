"""Truncated importance sampling with bias correction (Wang et al. 2017, Eq. 8-9)."""

import torch
from jaxtyping import Float
from torch import Tensor


def truncated_importance(
    rho_taken: Float[Tensor, "*B"], advantage: Float[Tensor, "*B"], clip: float
) -> Float[Tensor, "*B"]:
    """min(c, rho_t) A_t: the weight of the taken action's score (Wang et al. 2017, Eq. 8, first term)."""
    return rho_taken.clamp(max=clip) * advantage


def bias_correction(
    probs: Float[Tensor, "*B A"],
    behavior_probs: Float[Tensor, "*B A"],
    advantage: Float[Tensor, "*B A"],
    clip: float,
) -> Float[Tensor, "*B A"]:
    """[pi(a) - c mu(a)]_+ A(a): the weight of every action's score (Wang et al. 2017, Eq. 9, second term).

    The paper's [1 - c / rho(a)]_+ pi(a) without its division, so that mu(a) = 0 is exact.
    """
    return torch.sub(probs, behavior_probs, alpha=clip).relu() * advantage


def sampled_bias_correction(
    rho: Float[Tensor, "*B"], advantage: Float[Tensor, "*B"], clip: float
) -> Float[Tensor, "*B"]:
    """[1 - c / rho(a')]_+ A(a'): the weight of the score of a sample a' of pi (Wang et al. 2017, Eq. 15)."""
    return (1 - clip / rho).relu() * advantage
