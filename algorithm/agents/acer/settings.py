"""The settings of ACER."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from algorithm.annotations import CONTINUOUS, OnlyIf, Spellings, Unless
from algorithm.returns import find_estimators


@dataclass(frozen=True, kw_only=True)
class AcerSettings:
    """The section `acer_config`; default_config.yaml has the defaults, units and meanings.

    Raises:
        ValueError: Settings exclude one another.
    """

    learning_rate: float
    learning_rate_schedule: Literal["constant", "linear"]
    optimizer: Literal["adam", "rmsprop"]
    optimizer_beta1: Annotated[float, OnlyIf(optimizer="adam")]
    optimizer_decay: float
    optimizer_epsilon: float
    epsilon_inside: Annotated[bool, OnlyIf(optimizer="rmsprop")]
    max_grad_norm: float
    value_coef: float  # of the critic's error (Eq. 6) against the policy's
    entropy_coef: float  # beta, outside the projection
    gamma: float
    reward_scale: float
    reward_clip: float | None
    reward_normalization: Literal["return_std"] | None
    average_policy_decay: float  # alpha, of the average policy network
    estimator: Literal[find_estimators()]
    critic: Annotated[Literal["action_value", "state_value"], Spellings(q="action_value", v="state_value")]
    trace_clip: Annotated[float, OnlyIf(estimator=find_estimators(reads="trace_clip"))]  # of rho in the trace; c-bar
    rho_clip: Annotated[float, OnlyIf(estimator=find_estimators(reads="rho_clip"))]  # rho-bar
    importance_clip: float  # c, of rho in the policy gradient (Eq. 8-9)
    trace_lambda: float  # lambda, of the trace
    sdn_samples: Annotated[int, OnlyIf(critic="action_value")]  # n, of a stochastic dueling critic (Eq. 13)
    std: Annotated[Literal["fixed", "learned", "state_dependent"], CONTINUOUS]
    std_init: Annotated[float, CONTINUOUS]
    std_min: Annotated[float, CONTINUOUS, Unless(std="fixed")]
    tanh_squash: Annotated[bool, CONTINUOUS]
    trust_region: Literal["off", "efficient"]
    trust_region_space: Annotated[Literal["logits", "probs"], Unless(trust_region="off")]  # phi (Eq. 11)
    trust_region_delta: Annotated[float, Unless(trust_region="off")]  # delta (Eq. 11)
    rollout_length: int  # k, rows of a collected rollout per lane
    sequence_length: Annotated[int, Unless(replay_ratio=0)]  # rows of a replayed sequence
    batch_size: Annotated[int, Unless(replay_ratio=0)]  # sequences of a replayed batch
    replay_ratio: float  # mean number of replayed batches for each rollout
    learning_starts: Annotated[int, Unless(replay_ratio=0)]  # rows stored before the first replayed batch
    burn_in_step: Annotated[int, Unless(replay_ratio=0)]  # rows before a sequence that only update a memory (R2D2)
    on_policy_updates: bool  # also learn from each collected rollout, as Algorithm 1 does

    def __post_init__(self) -> None:
        for_state_values = find_estimators(for_state_values=True)
        if self.critic == "state_value" and self.estimator not in for_state_values:
            raise ValueError(
                f"estimator {self.estimator} needs action values; "
                f"with critic state_value use one of {', '.join(for_state_values)}"
            )
        if self.estimator in find_estimators(reads="rho_clip") and self.rho_clip < self.trace_clip:
            raise ValueError(f"rho_clip {self.rho_clip} must not be below trace_clip {self.trace_clip}")
        if self.std != "fixed" and self.std_init <= self.std_min:
            raise ValueError(f"std_init {self.std_init} must be above std_min {self.std_min}, unless std is fixed")
        if not self.on_policy_updates and not self.replay_ratio:
            raise ValueError("replay_ratio 0 with on_policy_updates false leaves nothing to learn from")
