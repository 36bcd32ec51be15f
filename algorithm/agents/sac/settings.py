"""The settings of SAC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from algorithm.annotations import CONTINUOUS, DISCRETE, OnlyIf, Unless
from algorithm.returns import find_estimators


@dataclass(frozen=True, kw_only=True)
class SacSettings:
    """The section `sac_config`; default_config.yaml has the defaults, units and meanings.

    Raises:
        ValueError: Settings exclude one another.
    """

    learning_rate_critic: float
    learning_rate_policy: Annotated[float, Unless(discrete_dqn_like=True)]
    learning_rate_alpha: Annotated[float, OnlyIf(use_auto_alpha=True, discrete_dqn_like=False)]
    learning_rate_schedule: Literal["constant", "linear"]
    optimizer_beta1: float
    optimizer_decay: float
    optimizer_epsilon: float
    max_grad_norm_critic: float
    max_grad_norm_policy: Annotated[float, Unless(discrete_dqn_like=True)]
    max_grad_norm_alpha: Annotated[float, OnlyIf(use_auto_alpha=True, discrete_dqn_like=False)]
    gamma: float
    reward_scale: float
    reward_clip: float | None
    reward_normalization: Literal["return_std"] | None
    tau: float  # of the critics' parameters in an update of the target critics
    update_target_per_step: int  # optimizer steps between updates of the target critics
    ensemble_q_num: int  # N critics
    ensemble_q_sample: int  # M critics, sampled for each update, of which targets and policy use the values
    ensemble_q_reduce: Annotated[Literal["auto", "min", "mean"], Unless(ensemble_q_sample=1)]
    use_auto_alpha: Annotated[bool, Unless(discrete_dqn_like=True)]
    init_log_alpha: Annotated[float, Unless(discrete_dqn_like=True)]
    target_c_alpha: Annotated[float, CONTINUOUS, OnlyIf(use_auto_alpha=True, discrete_dqn_like=False)]  # times -1 nat
    target_d_alpha: Annotated[float, DISCRETE, OnlyIf(use_auto_alpha=True, discrete_dqn_like=False)]  # of the largest
    alpha_critic_scale: Annotated[float, Unless(discrete_dqn_like=True)]  # of alpha in the critics' targets
    discrete_dqn_like: bool
    discrete_dqn_epsilon: Annotated[float, OnlyIf(discrete_dqn_like=True)]
    clip_epsilon: float | None  # largest distance of Q from the target critic's
    rescale_values: bool  # h (Pohlen et al. 2018)
    n_step: int  # rewards of a target
    use_n_step_is: Annotated[bool, Unless(n_step=1)]  # correct the rewards after the first for the policy
    estimator: Annotated[Literal[find_estimators(reads="trace_clip")], Unless(n_step=1, use_n_step_is=False)]
    v_lambda: Annotated[float, Unless(n_step=1)]  # lambda
    v_rho: Annotated[  # rho-bar
        float, OnlyIf(use_n_step_is=True, estimator=find_estimators(reads="rho_clip")), Unless(n_step=1)
    ]
    v_c: Annotated[float, Unless(n_step=1, use_n_step_is=False)]  # c-bar
    std_init: Annotated[float, CONTINUOUS, Unless(discrete_dqn_like=True)]
    std_min: Annotated[float, CONTINUOUS, Unless(discrete_dqn_like=True)]
    rollout_length: int
    sequence_length: int  # rows of a replayed sequence, without burn-in
    burn_in_step: int
    batch_size: int
    replay_ratio: float
    learning_starts: int

    def __post_init__(self) -> None:
        if self.n_step > self.sequence_length:
            raise ValueError(f"n_step {self.n_step} must not be above sequence_length {self.sequence_length}")
        if self.ensemble_q_sample > self.ensemble_q_num:
            raise ValueError(
                f"ensemble_q_sample {self.ensemble_q_sample} is above ensemble_q_num {self.ensemble_q_num}"
            )
        if self.estimator in find_estimators(reads="rho_clip") and self.v_rho < self.v_c:
            raise ValueError(f"v_rho {self.v_rho} must not be below v_c {self.v_c}")
        if not self.replay_ratio:
            raise ValueError("replay_ratio 0 leaves nothing to learn from")
        if self.std_init <= self.std_min:
            raise ValueError(f"std_init {self.std_init} must be above std_min {self.std_min}")
