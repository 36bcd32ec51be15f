"""The functions of the estimators that `algorithm/estimators.py` names; and the rescaling of values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from algorithm.returns.recursions import n_step_return, retrace, vtrace

RESCALING_EPSILON = 1e-3


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
