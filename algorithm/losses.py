"""Losses as pure functions: weights, gradients and errors of single steps. None detaches its inputs.

Losses of critics and the value of a state under maximum entropy come first, then the policy gradients of ACER, PPO and
Reactor in the order of the papers: importance weights, bias correction, trust region, surrogate loss.
"""

import torch
from jaxtyping import Float, Int
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
