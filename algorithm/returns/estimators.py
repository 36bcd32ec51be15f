"""The estimators that `algorithm/estimators.py` names, their backward recursions, and the rescaling of values.

All recursions have the form y_t = a_t + b_t y_{t+1} over arrays [T, *B] whose first axis is time. `discount` is
gamma * alive: 0 after a termination. `valid` is False for a step whose successor is missing; such a step keeps its
value and passes nothing to the steps before it. So sequences may contain ends of episodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

RESCALING_EPSILON = 1e-3


def reverse_scan(
    a: Float[Tensor, T * B], b: Float[Tensor, T - 1 * B], horizon: int | None = None
) -> Float[Tensor, T * B]:
    """Solve y_t = a_t + b_t y_{t+1} with y_{T-1} = a_{T-1}.

    Hillis-Steele doubling: log2(T) operations on whole arrays, exact and without divisions, so that zeros in `b` (ends
    of episodes) need no special case.

    Args:
        a: Terms [T, *B].
        b: Coefficients [T-1, *B]; the last step has no successor.
        horizon: Number of terms in each y_t; None sums all terms up to the last step.

    Returns:
        y [T, *B].
    """
    if horizon is not None and horizon < len(a):
        y = torch.zeros_like(a)
        for _ in range(horizon):
            y = torch.cat((a[:-1] + b * y[1:], a[-1:]))
        return y
    # Before each pass a_t is the sum of the steps t .. t+reach-1, and b_t is the coefficient of the sum after them.
    n_steps, reach = len(a), 1
    while reach < n_steps:
        merged = torch.addcmul(a[:-reach], b, a[reach:])
        a = torch.cat((merged, a[-reach:]))
        if 2 * reach < n_steps:
            b = b[:-reach] * b[reach:]
        reach *= 2
    return a


def retrace(
    reward: Float[Tensor, T * B],
    discount: Float[Tensor, T * B],
    valid: Bool[Tensor, T * B],
    q_taken: Float[Tensor, T * B],
    v: Float[Tensor, T + 1 * B],
    trace: Float[Tensor, T * B],
    horizon: int | None = None,
) -> Float[Tensor, T * B]:
    """Return the target of Q(x_t, a_t) by Retrace (Munos et al. 2016) or a relative, which differ in the trace only.

        G_t = Q_t + E_t,   E_t = valid_t (r_t + d_t V_{t+1} - Q_t + d_t c_{t+1} E_{t+1})

        trace c_t              estimator            source
        lambda min(1, rho_t)   Retrace(lambda)      Munos et al. 2016, Eq. 4; Wang et al. 2017, Eq. 5 and Algorithm 2
        lambda pi(a_t|x_t)     tree-backup          Precup et al. 2000
        lambda                 Q(lambda), Q^opc     Harutyunyan et al. 2016; Wang et al. 2017, Eq. 21
        lambda rho_t           importance sampling  Precup et al. 2000
        0                      expected SARSA

    Args:
        reward: r [T, *B].
        discount: d [T, *B].
        valid: Whether the successor of a step is known [T, *B].
        q_taken: Q(x_t, a_t) [T, *B].
        v: V(x_t) [T+1, *B].
        trace: c [T, *B]; each step has its own coefficient, the recursion reads the coefficient of the next step.
        horizon: Number of rewards in each target; None for all.

    Returns:
        G [T, *B]; Q_t at steps that are not valid.
    """
    error = valid * (reward + discount * v[1:] - q_taken)
    return q_taken + reverse_scan(error, (valid * discount)[:-1] * trace[1:], horizon)


def vtrace(
    reward: Float[Tensor, T * B],
    discount: Float[Tensor, T * B],
    valid: Bool[Tensor, T * B],
    v: Float[Tensor, T + 1 * B],
    rho: Float[Tensor, T * B],
    trace: Float[Tensor, T * B],
    trace_lambda: float = 1.0,
    horizon: int | None = None,
) -> tuple[Float[Tensor, T * B], Float[Tensor, T * B]]:
    """Return the V-trace target of V(x_t), and the estimate of Q(x_t, a_t) that follows from it (Espeholt et al. 2018).

        v_t = V_t + E_t,   E_t = valid_t (rho_t (r_t + d_t V_{t+1} - V_t) + d_t lambda c_t E_{t+1})
        q_t = r_t + d_t (V_{t+1} + lambda E_{t+1})

    The recursion is from Remark 1. q_t does not contain rho_t. v_t does: it is the target of a
    state value, and would be wrong as the target of an action value.

    Args:
        reward: r [T, *B].
        discount: d [T, *B].
        valid: Whether the successor of a step is known [T, *B].
        v: V(x_t) [T+1, *B].
        rho: min(rho-bar, rho_t) [T, *B] (Eq. 1).
        trace: min(c-bar, rho_t) [T, *B] (Eq. 1).
        trace_lambda: lambda (Remark 2).
        horizon: Number of rewards in each target; None for all.

    Returns:
        v and q, [T, *B] each; both are V_t at steps that are not valid.
    """
    error = valid * (reward + discount * v[1:] - v[:-1])
    decayed_discount = valid * discount * trace_lambda
    terms = (rho * error, (decayed_discount * trace)[:-1])
    correction = reverse_scan(*terms, horizon)
    shorter_correction = correction if horizon is None else reverse_scan(*terms, horizon - 1)
    next_correction = torch.cat((shorter_correction[1:], torch.zeros_like(shorter_correction[:1])))
    return v[:-1] + correction, v[:-1] + error + decayed_discount * next_correction


def sum_rewards(
    reward: Float[Tensor, T * B], discount: Float[Tensor, T * B], valid: Bool[Tensor, T * B], horizon: int
) -> tuple[Float[Tensor, T * B], Float[Tensor, T * B], Int[Tensor, T * B]]:
    """Return the parts of n-step returns without off-policy correction (`n_step_return` with lambda 1).

    The return of step t is R_t + D_t V_{end_t}: R_t is the sum of up to `horizon` discounted rewards, D_t the product
    of their discounts, and end_t the step after them. Fewer rewards are summed before the end of the sequence, and
    before a step that is not valid.

    Args:
        reward: r [T, *B].
        discount: d [T, *B].
        valid: Whether the successor of a step is known [T, *B].
        horizon: Number of rewards in each return.

    Returns:
        R, D and end, [T, *B] each.
    """
    next_step = torch.arange(1, len(reward) + 1, device=reward.device)
    next_step = next_step.reshape(-1, *[1] * (reward.ndim - 1)).expand(reward.shape)
    sums, products, end = reward, discount, next_step
    is_extended = torch.cat((valid[1:], torch.zeros_like(valid[:1])))
    for _ in range(horizon - 1):
        sums = reward + is_extended * discount * sums.roll(-1, 0)
        products = torch.where(is_extended, discount * products.roll(-1, 0), discount)
        end = torch.where(is_extended, end.roll(-1, 0), next_step)
    return sums, products, end


def n_step_return(
    reward: Float[Tensor, T * B],
    discount: Float[Tensor, T * B],
    valid: Bool[Tensor, T * B],
    v: Float[Tensor, T + 1 * B],
    trace_lambda: float = 1.0,
    horizon: int | None = None,
) -> Float[Tensor, T * B]:
    """Return the discounted rewards of the next steps and the value after them, without off-policy correction.

        G_t = V_t + E_t,   E_t = valid_t (r_t + d_t V_{t+1} - V_t + d_t lambda E_{t+1})

    With lambda 1 the n-step return of Mnih et al. 2016 (Algorithm S3); with a smaller lambda V_t + GAE(lambda)
    (Schulman et al. 2016, Eq. 16).

    Args:
        reward: r [T, *B].
        discount: d [T, *B].
        valid: Whether the successor of a step is known [T, *B].
        v: V(x_t) [T+1, *B].
        trace_lambda: lambda.
        horizon: Number of rewards in each return; None for all.

    Returns:
        G [T, *B]; V_t at steps that are not valid.
    """
    return retrace(reward, discount, valid, v[:-1], v, torch.full_like(reward, trace_lambda), horizon)


@dataclass(frozen=True, kw_only=True)
class EstimatorInputs:
    """The inputs of an estimator: tensors [T, B], `v` [T+1, B]."""

    reward: Tensor
    discount: Tensor  # gamma * alive
    valid: Tensor  # steps that may be learned from
    v: Tensor  # V(x_t)
    q_taken: Tensor  # Q(x_t, a_t); with a critic of state values V(x_t)
    rho: Tensor  # pi / mu of the taken action
    rho_per_dimension: Tensor  # rho^(1/d), d the number of continuous dimensions and discrete branches
    prob_taken: Callable[[], Tensor]  # pi of the taken action, computed for estimators with `needs_probabilities`


@dataclass(frozen=True, kw_only=True)
class TraceClipping:
    """The bounds of ratios in targets, and the decay of the trace."""

    trace_clip: float  # c-bar
    rho_clip: float  # rho-bar of V-trace
    trace_lambda: float  # lambda
    horizon: int | None = None  # number of rewards in a target; None for all


class Targets(NamedTuple):
    """The targets of Q(x_t, a_t) and V(x_t), [T, B] each; the latter is computed when it is called."""

    q_target: Tensor
    value_target: Callable[[], Tensor]


def estimate_retrace(inputs: EstimatorInputs, clipping: TraceClipping) -> Targets:
    """Return the targets of Retrace (Wang et al. 2017, Eq. 5), with the trace lambda min(c-bar, rho^(1/d)).

    The bound of the trace is 1 (Wang et al. 2017, Algorithm 2), not c of the policy gradient. Actions of d dimensions
    use rho^(1/d) (section 5.1): with the ratio itself, traces would end after few steps.
    """
    return _estimate_action_values(inputs, clipping, inputs.rho_per_dimension.clamp(max=clipping.trace_clip))


def estimate_tree_backup(inputs: EstimatorInputs, clipping: TraceClipping) -> Targets:
    """Return the targets of tree backup, with the trace lambda pi."""
    return _estimate_action_values(inputs, clipping, inputs.prob_taken())


def estimate_q_lambda(inputs: EstimatorInputs, clipping: TraceClipping) -> Targets:
    """Return the targets of Q(lambda), with the trace lambda."""
    return _estimate_action_values(inputs, clipping, torch.ones_like(inputs.rho))


def _estimate_action_values(inputs: EstimatorInputs, clipping: TraceClipping, trace: Tensor) -> Targets:
    """Return the targets of Retrace or a relative, given its trace without lambda."""
    coefficient = clipping.trace_lambda * trace
    target = retrace(
        inputs.reward, inputs.discount, inputs.valid, inputs.q_taken, inputs.v, coefficient, clipping.horizon
    )
    # The target of V: Wang et al. 2017, Eq. 14.
    return Targets(target, lambda: torch.addcmul(inputs.v[:-1], inputs.rho.clamp(max=1), target - inputs.q_taken))


def estimate_vtrace(inputs: EstimatorInputs, clipping: TraceClipping) -> Targets:
    """Return the targets of V-trace (Espeholt et al. 2018)."""
    rho, trace = inputs.rho.clamp(max=clipping.rho_clip), inputs.rho.clamp(max=clipping.trace_clip)
    v, q = vtrace(
        inputs.reward, inputs.discount, inputs.valid, inputs.v, rho, trace, clipping.trace_lambda, clipping.horizon
    )
    return Targets(q, lambda: v)


def estimate_n_step(inputs: EstimatorInputs, clipping: TraceClipping) -> Targets:
    """Return the targets of n-step returns, without a correction of the behavior."""
    target = n_step_return(
        inputs.reward, inputs.discount, inputs.valid, inputs.v, clipping.trace_lambda, clipping.horizon
    )
    return Targets(target, lambda: target)


def rescale(x: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Return h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, with epsilon = 0.001.

    It compresses large values (Pohlen et al. 2018, arXiv 1805.11593).
    """
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + RESCALING_EPSILON * x


def unscale(y: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Return x with h(x) = y."""
    magnitude = y.abs() + 1 + RESCALING_EPSILON
    # (sqrt(1 + 4 epsilon m) - 1) / (2 epsilon), written without the difference, of which float32 keeps four digits.
    root = 2 * magnitude / (1 + (1 + 4 * RESCALING_EPSILON * magnitude).sqrt())
    return y.sign() * (root.square() - 1)
