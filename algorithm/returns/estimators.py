"""The table of estimators: the targets of critic and policy, by the name in the setting `estimator`.

To add an estimator, add its function and its entry in `ESTIMATORS`. Its name is then a value of `estimator` in the
settings of the agents that can use it, by what the entry declares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from algorithm.returns.recursions import n_step_return, retrace, vtrace


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


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """An estimator of returns, with what it needs from an agent.

    Args:
        estimate: The function that computes the targets.
        needs_action_values: It reads Q(x_t, a_t), so that a critic of state values is not enough.
        needs_probabilities: It reads pi(a_t|x_t), so that actions must be discrete.
        clips: The fields of TraceClipping that it reads, in addition to `trace_lambda` and `horizon`.
        sampled_critic_estimator: Name of the estimator of the policy's targets if Q is estimated with sampled actions,
            as by a stochastic dueling critic; None for this one.
    """

    estimate: Callable[[EstimatorInputs, TraceClipping], Targets]
    needs_action_values: bool = False
    needs_probabilities: bool = False
    clips: tuple[Literal["trace_clip", "rho_clip"], ...] = ()
    sampled_critic_estimator: str | None = None


def _make_action_value_estimate(
    trace: Callable[[EstimatorInputs, TraceClipping], Tensor],
) -> Callable[[EstimatorInputs, TraceClipping], Targets]:
    """Return the function of Retrace or a relative, given its trace without lambda."""

    def estimate(inputs: EstimatorInputs, clipping: TraceClipping) -> Targets:
        coefficient = clipping.trace_lambda * trace(inputs, clipping)
        target = retrace(
            inputs.reward, inputs.discount, inputs.valid, inputs.q_taken, inputs.v, coefficient, clipping.horizon
        )
        # The target of V: Wang et al. 2017, Eq. 14.
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


ESTIMATORS: dict[str, Estimator] = {
    # The bound of the trace is 1 (Wang et al. 2017, Algorithm 2), not c of the policy gradient. Actions of
    # d dimensions use rho^(1/d) (section 5.1): with the ratio itself, traces would end after few steps.
    "retrace": Estimator(
        estimate=_make_action_value_estimate(
            lambda inputs, clipping: inputs.rho_per_dimension.clamp(max=clipping.trace_clip)
        ),
        needs_action_values=True,
        clips=("trace_clip",),
        sampled_critic_estimator="q_lambda",  # Q^opc (Wang et al. 2017, Eq. 16 and 21)
    ),
    "vtrace": Estimator(estimate=_estimate_vtrace, clips=("trace_clip", "rho_clip")),
    "n_step": Estimator(estimate=_estimate_n_step),
    "tree_backup": Estimator(
        estimate=_make_action_value_estimate(lambda inputs, clipping: inputs.prob_taken()),
        needs_action_values=True,
        needs_probabilities=True,
    ),
    "q_lambda": Estimator(
        estimate=_make_action_value_estimate(lambda inputs, clipping: torch.ones_like(inputs.rho)),
        needs_action_values=True,
    ),
}


def find_estimators(
    *, reads: Literal["trace_clip", "rho_clip"] | None = None, for_state_values: bool = False
) -> tuple[str, ...]:
    """Return the names of estimators.

    Args:
        reads: Only those that read this field of TraceClipping.
        for_state_values: Only those for which a critic of state values is enough.
    """
    return tuple(
        name
        for name, estimator in ESTIMATORS.items()
        if (reads is None or reads in estimator.clips) and not (for_state_values and estimator.needs_action_values)
    )


def get_estimator(name: str, *, has_probabilities: bool) -> Estimator:
    """Return the estimator with this name.

    Args:
        name: A key of `ESTIMATORS`.
        has_probabilities: Whether the actions are discrete.

    Raises:
        ValueError: The estimator needs probabilities of actions, and there are none.
    """
    estimator = ESTIMATORS[name]
    if estimator.needs_probabilities and not has_probabilities:
        raise ValueError(f"estimator {name} needs probabilities of actions; continuous ones have densities")
    return estimator
