"""Losses of critics, and the value of a state under maximum entropy."""

import torch
from jaxtyping import Float
from torch import Tensor


def squared_error(target: Float[Tensor, "*B"], value: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Return 1/2 (target - value)^2 of each element, the loss whose gradient is Wang et al. 2017, Eq. 6."""
    return 0.5 * (target - value).square()


def cross_entropy(target: Float[Tensor, "*B N"], log_probs: Float[Tensor, "*B N"]) -> Float[Tensor, "*B"]:
    """Return -sum_i target_i log q_i of each distribution, in nats.

    Its gradient with respect to the logits of q is q - target if the entries of the target sum to 1.
    """
    return -(target * log_probs).sum(-1)


def clipped_error(
    target: Float[Tensor, "*B"], value: Float[Tensor, "*B"], target_value: Float[Tensor, "*B"], clip: float
) -> Float[Tensor, "*B"]:
    """Return the negative gradient of a clipped squared error.

    Q-clip of Zhou et al. 2022 (arXiv 2209.10081, section 4.2). The loss is
    max((target - value)^2, (target - clipped)^2) / 2, where `clipped` is the value limited to `target_value` +- `clip`.
    Its negative gradient with respect to `value` is target - value, or 0 where the value is further than `clip` from
    `target_value` and a step would lead further away.

    Args:
        target: Targets [*B].
        value: Values of the trained critic [*B].
        target_value: Values of the target critic [*B].
        clip: Largest distance between `value` and `target_value` at which every step is taken.
    """
    difference, error = value - target_value, target - value
    clipped_value = target_value + difference.clamp(-clip, clip)
    # Within the limit `clipped_value` equals `value` up to rounding, and rounding must not change the result.
    return torch.where((difference.abs() > clip) & ((target - clipped_value).abs() > error.abs()), 0.0, error)


def soft_state_value(
    probs: Float[Tensor, "*B K"], q: Float[Tensor, "*B K"], entropy_cost: Float[Tensor, "*B K"]
) -> Float[Tensor, "*B"]:
    """Return V(x) = sum_k pi(k) (Q(x, k) - cost_k), the value of a state under maximum entropy.

    Haarnoja et al. 2018 (arXiv 1812.05905), Eq. 3; summed exactly over K discrete actions, Christodoulou 2019
    (arXiv 1910.07207), Eq. 10. K is 1 if all dimensions of the action are continuous.

    Args:
        probs: pi(k) [*B, K].
        q: Q(x, k) [*B, K].
        entropy_cost: alpha log pi(k) [*B, K]; if k has continuous dimensions c_k,
            alpha_d log pi(k) + alpha_c log pi(c_k|k).
    """
    return (probs * (q - entropy_cost)).sum(-1)
