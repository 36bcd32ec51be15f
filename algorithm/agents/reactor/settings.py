"""The settings of Reactor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from algorithm.agents.settings import CategoricalSettings, ReplaySettings, SingleGroupSettings
from algorithm.annotations import AnyOf, OnlyIf, Range


@dataclass(frozen=True, kw_only=True)
class ReactorSettings(SingleGroupSettings, CategoricalSettings, ReplaySettings):
    """The section `reactor_config`; default_config.yaml has the defaults, units and meanings."""

    value_coef: Annotated[float, Range(at_least=0)]
    entropy_coef: Annotated[float, Range(at_least=0)]
    policy_gradient: Literal["leave_one_out", "truncated_importance"]
    loo_beta: Annotated[  # beta (Eq. 8)
        Literal["one", "inverse", "truncated"], OnlyIf(policy_gradient="leave_one_out")
    ]
    importance_clip: Annotated[  # c (section 3.1)
        float,
        Range(at_least=1),
        AnyOf(
            OnlyIf(policy_gradient="leave_one_out", loo_beta="truncated"),
            OnlyIf(policy_gradient="truncated_importance"),
        ),
    ]
    policy_uniform_fraction: Annotated[float, Range(at_least=0, below=1)]
    distributional: Annotated[Literal["direct", "recursive"], OnlyIf(critic="categorical")]
    trace_lambda: Annotated[float, Range(at_least=0, at_most=1)]  # lambda
    update_target_per_step: Annotated[int, Range(at_least=1)]
    replay_ratio: Annotated[float, Range(above=0, at_most=10_000)]
