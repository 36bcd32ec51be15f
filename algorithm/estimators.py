"""The estimators of returns by the name in the setting `estimator`, and what each needs from an agent.

To add an estimator, add its function and its entry in `ESTIMATORS`. Its name is then a value of `estimator` in the
settings of the agents that can use it, by what the entry declares. A function is imported on first use, so that
settings are checked without torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pkgutil import resolve_name
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """An estimator of returns, with what it needs from an agent.

    Args:
        function: Its function as `module:function`, which returns `Targets`, given `EstimatorInputs` and
            `TraceClipping` (algorithm/returns/estimators.py).
        needs_action_values: It reads Q(x_t, a_t), so that a critic of state values is not enough.
        needs_probabilities: It reads pi(a_t|x_t), so that actions must be discrete.
        clips: The fields of TraceClipping that it reads, in addition to `trace_lambda` and `horizon`.
        sampled_critic_estimator: Name of the estimator of the policy's targets if Q is estimated with sampled actions,
            as by a stochastic dueling critic; None for this one.
    """

    function: str
    needs_action_values: bool = False
    needs_probabilities: bool = False
    clips: tuple[Literal["trace_clip", "rho_clip"], ...] = ()
    sampled_critic_estimator: str | None = None

    @cached_property
    def estimate(self) -> Callable[..., Any]:
        """The function that computes the targets."""
        function: Callable[..., Any] = resolve_name(self.function)
        return function


ESTIMATORS: dict[str, Estimator] = {
    "retrace": Estimator(
        function="algorithm.returns.estimators:estimate_retrace",
        needs_action_values=True,
        clips=("trace_clip",),
        sampled_critic_estimator="q_lambda",  # Q^opc (Wang et al. 2017, Eq. 16 and 21)
    ),
    "vtrace": Estimator(function="algorithm.returns.estimators:estimate_vtrace", clips=("trace_clip", "rho_clip")),
    "n_step": Estimator(function="algorithm.returns.estimators:estimate_n_step"),
    "tree_backup": Estimator(
        function="algorithm.returns.estimators:estimate_tree_backup", needs_action_values=True, needs_probabilities=True
    ),
    "q_lambda": Estimator(function="algorithm.returns.estimators:estimate_q_lambda", needs_action_values=True),
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
