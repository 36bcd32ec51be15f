"""The settings of ACER."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from algorithm.agents.settings import ActorCriticSettings, ReplaySettings
from algorithm.annotations import FixedOnResume, OnlyIf, Range, Spellings
from algorithm.estimators import find_estimators


@dataclass(frozen=True, kw_only=True)
class AcerSettings(ActorCriticSettings, ReplaySettings):
    """The section `acer_config`; default_config.yaml has the defaults, units and meanings.

    Raises:
        ValueError: Settings exclude one another.
    """

    average_policy_decay: Annotated[float, Range(at_least=0, at_most=1)]  # alpha
    estimator: Literal[find_estimators()]
    critic: Annotated[
        Literal["action_value", "state_value"],
        Spellings(q="action_value", v="state_value"),
        FixedOnResume("the saved network has the outputs of this critic"),
    ]
    trace_clip: Annotated[
        float, Range(at_least=0), OnlyIf(estimator=find_estimators(reads="trace_clip"))
    ]  # c-bar (Eq. 5)
    rho_clip: Annotated[float, Range(at_least=0), OnlyIf(estimator=find_estimators(reads="rho_clip"))]  # rho-bar
    importance_clip: Annotated[float, Range(above=0)]  # c (Eq. 8-9)
    trace_lambda: Annotated[float, Range(at_least=0, at_most=1)]  # lambda
    sdn_samples: Annotated[int, Range(at_least=1), OnlyIf(critic="action_value")]  # n (Eq. 13)
    trust_region: Annotated[
        Literal["off", "efficient", "full"],
        FixedOnResume("the saved network of a full trust region has no outputs of the critic", involving="full"),
    ]
    trust_region_space: Annotated[Literal["logits", "probs"], OnlyIf(trust_region="efficient")]  # phi (Eq. 11)
    trust_region_delta: Annotated[float, Range(at_least=0), OnlyIf(trust_region="efficient")]  # delta (Eq. 11)
    trust_region_kl: Annotated[float, Range(above=0), OnlyIf(trust_region="full")]  # delta of the natural step
    trust_region_iterations: Annotated[int, Range(at_least=1), OnlyIf(trust_region="full")]
    trust_region_damping: Annotated[float, Range(above=0), OnlyIf(trust_region="full")]
    trust_region_halvings: Annotated[int, Range(at_least=0), OnlyIf(trust_region="full")]
    on_policy_updates: bool  # also learn from each collected rollout, as Algorithm 1 does

    def __post_init__(self) -> None:
        super().__post_init__()
        for_state_values = find_estimators(for_state_values=True)
        if self.critic == "state_value" and self.estimator not in for_state_values:
            raise ValueError(
                f"estimator {self.estimator} needs action values; "
                f"with critic state_value use one of {', '.join(for_state_values)}"
            )
        if self.estimator in find_estimators(reads="rho_clip") and self.rho_clip < self.trace_clip:
            raise ValueError(f"rho_clip {self.rho_clip} must not be below trace_clip {self.trace_clip}")
        if not self.on_policy_updates and self.replay_ratio == 0:
            raise ValueError("replay_ratio 0 with on_policy_updates false leaves nothing to learn from")
