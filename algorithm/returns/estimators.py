"""Which target follows from replayed rows: the estimators by their names in the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from algorithm.returns import n_step_return, retrace, vtrace


@dataclass(frozen=True)
class EstimatorInputs:
    """What an estimator reads; [T, B] each but `v` [T+1, B]."""

    reward: Tensor
    discount: Tensor  # gamma * alive
    valid: Tensor
    v: Tensor
    q_taken: Tensor  # of a critic of states: v of the row
    rho: Tensor  # pi / mu of the taken action
    rho_per_dimension: Tensor  # rho^(1/d), d the continuous numbers and discrete branches of an action
    prob_taken: Callable[[], Tensor]  # pi of the taken action; one estimator reads it


@dataclass(frozen=True)
class TraceClipping:
    """Where ratios are cut in the targets, and how the trace decays."""

    trace_clip: float  # c-bar
    rho_clip: float  # rho-bar of V-trace
    trace_lambda: float  # lambda
    horizon: int | None = None  # rewards of a target; all that there are


class Targets(NamedTuple):
    """Estimates [T, B] of Q(x_t, a_t), and the target of V(x_t), which not every critic wants."""

    q_target: Tensor
    value_target: Callable[[], Tensor]


Estimator = Callable[[EstimatorInputs, TraceClipping], Targets]


def _make_action_value_estimator(trace: Callable[[EstimatorInputs, TraceClipping], Tensor]) -> Estimator:
    """Retrace or a relative of it. Its target is one of an action's value; that of the state is Eq. 14."""

    def estimate(inputs: EstimatorInputs, clipping: TraceClipping) -> Targets:
        coefficient = clipping.trace_lambda * trace(inputs, clipping)
        target = retrace(
            inputs.reward, inputs.discount, inputs.valid, inputs.q_taken, inputs.v, coefficient, clipping.horizon
        )
        return Targets(target, lambda: torch.addcmul(inputs.v[:-1], inputs.rho.clamp(max=1), target - inputs.q_taken))

    return estimate


def _estimate_vtrace(inputs: EstimatorInputs, clipping: TraceClipping) -> Targets:
    rho, trace = inputs.rho.clamp(max=clipping.rho_clip), inputs.rho.clamp(max=clipping.trace_clip)
    v, q = vtrace(
        inputs.reward, inputs.discount, inputs.valid, inputs.v, rho, trace, clipping.trace_lambda, clipping.horizon
    )
    return Targets(q, lambda: v)


def _estimate_n_step(inputs: EstimatorInputs, clipping: TraceClipping) -> Targets:
    target = n_step_return(
        inputs.reward, inputs.discount, inputs.valid, inputs.v, clipping.trace_lambda, clipping.horizon
    )
    return Targets(target, lambda: target)


ESTIMATORS: Mapping[str, Estimator] = {
    # The trace is truncated at 1 as in ACER's Algorithm 2, and not at the policy gradient's c.
    # Of several numbers the ratio's root: the product would cut traces at once (section 5.1).
    "retrace": _make_action_value_estimator(
        lambda inputs, clipping: inputs.rho_per_dimension.clamp(max=clipping.trace_clip)
    ),
    "vtrace": _estimate_vtrace,
    "n_step": _estimate_n_step,
    "tree_backup": _make_action_value_estimator(lambda inputs, clipping: inputs.prob_taken()),
    "q_lambda": _make_action_value_estimator(lambda inputs, clipping: torch.ones_like(inputs.rho)),
}
STATE_VALUE_ESTIMATORS = ("vtrace", "n_step")  # those that a critic of states can learn from
