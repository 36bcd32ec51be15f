"""Which target follows from replayed rows: the estimators by their names in the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from algorithm.returns import n_step_return, retrace, vtrace


@dataclass(frozen=True)
class Rows:
    """What an estimator reads; [T, B] each but `v` [T+1, B]."""

    reward: Tensor
    discount: Tensor  # gamma * alive
    valid: Tensor
    v: Tensor
    q_taken: Tensor  # of a critic of states: v of the row
    rho: Tensor  # pi / mu of the taken action
    root: Tensor  # rho^(1/d), d the continuous numbers and discrete branches of an action
    prob_taken: Callable[[], Tensor]  # pi of the taken action; one estimator reads it


@dataclass(frozen=True)
class Truncation:
    """Where ratios are cut in the targets, and how the trace decays."""

    trace: float  # c-bar
    correction: float  # rho-bar of V-trace
    decay: float  # lambda
    horizon: int | None = None  # rewards of a target; all that there are


class Targets(NamedTuple):
    """Estimates [T, B] of Q(x_t, a_t), and the target of V(x_t), which not every critic wants."""

    q: Tensor
    v: Callable[[], Tensor]


Estimator = Callable[[Rows, Truncation], Targets]


def _of_action_values(trace: Callable[[Rows, Truncation], Tensor]) -> Estimator:
    """Retrace or a relative of it. Its target is one of an action's value; that of the state is Eq. 14."""

    def estimate(rows: Rows, truncation: Truncation) -> Targets:
        coefficient = truncation.decay * trace(rows, truncation)
        target = retrace(rows.reward, rows.discount, rows.valid, rows.q_taken, rows.v, coefficient, truncation.horizon)
        return Targets(target, lambda: torch.addcmul(rows.v[:-1], rows.rho.clamp(max=1), target - rows.q_taken))

    return estimate


def _vtrace(rows: Rows, truncation: Truncation) -> Targets:
    rho, trace = rows.rho.clamp(max=truncation.correction), rows.rho.clamp(max=truncation.trace)
    v, q = vtrace(rows.reward, rows.discount, rows.valid, rows.v, rho, trace, truncation.decay, truncation.horizon)
    return Targets(q, lambda: v)


def _n_step(rows: Rows, truncation: Truncation) -> Targets:
    target = n_step_return(rows.reward, rows.discount, rows.valid, rows.v, truncation.decay, truncation.horizon)
    return Targets(target, lambda: target)


ESTIMATORS: Mapping[str, Estimator] = {
    # The trace is truncated at 1 as in ACER's Algorithm 2, and not at the policy gradient's c.
    # Of several numbers the ratio's root: the product would cut traces at once (section 5.1).
    "retrace": _of_action_values(lambda rows, truncation: rows.root.clamp(max=truncation.trace)),
    "vtrace": _vtrace,
    "n_step": _n_step,
    "tree_backup": _of_action_values(lambda rows, truncation: rows.prob_taken()),
    "q_lambda": _of_action_values(lambda rows, truncation: torch.ones_like(rows.rho)),
}
OF_STATES = ("vtrace", "n_step")  # those that a critic of states can learn from
