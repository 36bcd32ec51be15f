"""The policy gradients of ACER, PPO and Reactor: importance weights, bias correction, trust region, surrogate loss.

The functions are in the order of the papers. They return weights and gradients of single steps, and none detaches its
inputs.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def truncated_importance(
    rho_taken: Float[Tensor, "*B"], advantage: Float[Tensor, "*B"], clip: float
) -> Float[Tensor, "*B"]:
    """Return min(c, rho_t) A_t, the weight of the taken action's score (Wang et al. 2017, Eq. 8, first term)."""
    return rho_taken.clamp(max=clip) * advantage


def clipped_importance(
    rho_taken: Float[Tensor, "*B"], advantage: Float[Tensor, "*B"], clip: float
) -> Float[Tensor, "*B"]:
    """Return the weight of the taken action's score in the gradient of PPO's objective (Schulman et al. 2017, Eq. 7).

    The objective is min(rho A, clip(rho, 1 - eps, 1 + eps) A). Its gradient is rho A times the score, or 0 where the
    ratio is outside of the clipping range and a step would lead further out.
    """
    is_outside = torch.where(advantage > 0, rho_taken > 1 + clip, rho_taken < 1 - clip)
    return torch.where(is_outside, 0.0, rho_taken * advantage)


def clipped_objective(
    rho_taken: Float[Tensor, "*B"], advantage: Float[Tensor, "*B"], clip: float
) -> Float[Tensor, "*B"]:
    """Return min(rho A, clip(rho, 1 - eps, 1 + eps) A), PPO's objective (Schulman et al. 2017, Eq. 7)."""
    return torch.minimum(rho_taken * advantage, rho_taken.clamp(1 - clip, 1 + clip) * advantage)


def bias_correction(
    probs: Float[Tensor, "*B A"],
    behavior_probs: Float[Tensor, "*B A"],
    advantage: Float[Tensor, "*B A"],
    clip: float,
) -> Float[Tensor, "*B A"]:
    """Return [pi(a) - c mu(a)]_+ A(a), the weight of every action's score (Wang et al. 2017, Eq. 9, second term).

    This is [1 - c / rho(a)]_+ pi(a) A(a) of the paper without the division, so that mu(a) = 0 is exact.
    """
    return torch.sub(probs, behavior_probs, alpha=clip).relu() * advantage


def sampled_bias_correction(
    rho: Float[Tensor, "*B"], advantage: Float[Tensor, "*B"], clip: float
) -> Float[Tensor, "*B"]:
    """Return [1 - c / rho(a')]_+ A(a'), the weight of the score of a sample a' of pi (Wang et al. 2017, Eq. 15)."""
    return (1 - clip / rho).relu() * advantage


def leave_one_out(
    q: Float[Tensor, "*B A"],
    return_taken: Float[Tensor, "*B"],
    taken: Int[Tensor, "*B 1"],
    beta: Float[Tensor, "*B"],
) -> Float[Tensor, "*B A"]:
    """Return the beta leave-one-out estimate of the gradient of J with respect to the probabilities pi(a).

        Q(a) + [a = a_t] beta (R_t - Q(a_t))

    (Gruslys et al. 2018, arXiv 1704.04651, Eq. 8.) Its bias is (1 - mu(a) beta(a)) (Q - Q^pi)(a) (Prop. 1), so that it
    is unbiased for beta = 1 / mu.

    Args:
        q: Q of every action.
        return_taken: R_t, the return after the taken action.
        taken: The index a_t of the taken action.
        beta: The weight of the return.
    """
    error = return_taken.unsqueeze(-1) - q.gather(-1, taken)
    return q.scatter_add(-1, taken, beta.unsqueeze(-1) * error)


def trust_region_multiplier(
    gradient: Float[Tensor, "*B S"], kl_gradient: Float[Tensor, "*B S"], delta: float
) -> Float[Tensor, "*B 1"]:
    """Return max(0, (k.g - delta) / |k|^2) of each step [*B, 1], which is above 0 where the trust region is active.

    g minus this multiple of k is the solution z of: maximise g.z - 1/2 |g - z|^2 subject to k.z <= delta (Wang et al.
    2017, Eq. 11-12); z = g where k = 0. The constraint holds for each step, not for the mean over a batch.

    Args:
        gradient: g, the ascent gradient with respect to the statistics of the policy [*B, S].
        kl_gradient: k, the gradient of KL[average policy || policy] with respect to the same statistics [*B, S].
        delta: Bound of the constraint.
    """
    excess = (kl_gradient * gradient).sum(-1, keepdim=True) - delta
    norm = kl_gradient.square().sum(-1, keepdim=True)
    return excess.clamp(min=0) / norm.clamp(min=torch.finfo(norm.dtype).tiny)


def surrogate_loss(direction: Float[Tensor, "*B S"], outputs: Float[Tensor, "*B S"]) -> Float[Tensor, ""]:
    """Return -sum <direction, outputs>, whose gradient with respect to `outputs` is -`direction`.

    A step of gradient descent on it moves the outputs of a network in the ascent direction (Wang et al. 2017, Eq. 12);
    the value of the loss itself has no meaning. `direction` contains the weight of each step.
    """
    return -(direction * outputs).sum()
