"""The settings of SAC."""

from __future__ import annotations

from dataclasses import dataclass
from math import e, log, pi
from typing import Annotated, Literal

from algorithm.agents.settings import CategoricalSettings, OptimizerSettings, ReplaySettings
from algorithm.annotations import CONTINUOUS, DISCRETE, FixedOnResume, OnlyIf, Range, Unless
from algorithm.estimators import find_estimators

MAX_ENTROPY = "the largest entropy that there is"  # of equal probabilities, of a uniform density on (-1, 1)


@dataclass(frozen=True, kw_only=True)
class SacSettings(OptimizerSettings, CategoricalSettings, ReplaySettings):
    """The section `sac_config`; default_config.yaml has the defaults, units and meanings.

    Raises:
        ValueError: Settings exclude one another.
    """

    learning_rate_critic: Annotated[float, Range(above=0)]
    learning_rate_policy: Annotated[float, Range(above=0), Unless(discrete_dqn_like=True)]
    learning_rate_alpha: Annotated[float, Range(above=0), OnlyIf(use_auto_alpha=True, discrete_dqn_like=False)]
    max_grad_norm_critic: Annotated[float, Range(above=0)]
    max_grad_norm_policy: Annotated[float, Range(above=0), Unless(discrete_dqn_like=True)]
    max_grad_norm_alpha: Annotated[float, Range(above=0), OnlyIf(use_auto_alpha=True, discrete_dqn_like=False)]
    policy_update_every: Annotated[int, Range(at_least=1), Unless(discrete_dqn_like=True)]
    target: Annotated[
        Literal["average", "none"], FixedOnResume("the saved networks have target critics if this is average")
    ]
    tau: Annotated[float, Range(at_least=0, at_most=1), OnlyIf(target="average")]
    update_target_per_step: Annotated[int, Range(at_least=1), OnlyIf(target="average")]
    ensemble_q_num: Annotated[
        int, Range(at_least=1, at_most=1000), FixedOnResume("the saved networks have this number of critics")
    ]  # N
    ensemble_q_sample: Annotated[int, Range(at_least=1, at_most=1000)]  # M of the N critics
    ensemble_q_reduce: Annotated[Literal["auto", "min", "mean"], Unless(ensemble_q_sample=1)]
    use_auto_alpha: Annotated[
        bool, Unless(discrete_dqn_like=True), FixedOnResume("the saved temperatures are learned if this is true")
    ]
    init_log_alpha: Annotated[
        float,
        Unless(discrete_dqn_like=True),
        FixedOnResume("the saved temperatures are learned ones", when=OnlyIf(use_auto_alpha=True)),
    ]
    target_c_alpha: Annotated[
        float,
        Range(at_least=-log(2), note=MAX_ENTROPY),
        CONTINUOUS,
        OnlyIf(use_auto_alpha=True, discrete_dqn_like=False, target_entropy_std=None),
    ]
    target_entropy_std: Annotated[
        float | None,
        Range(above=0, at_most=2 * (2 * pi * e) ** -0.5, note="that of a Gaussian with the largest entropy"),
        CONTINUOUS,
        OnlyIf(use_auto_alpha=True, discrete_dqn_like=False),
    ]
    target_d_alpha: Annotated[
        float,
        Range(at_least=0, at_most=1, note=MAX_ENTROPY),
        DISCRETE,
        OnlyIf(use_auto_alpha=True, discrete_dqn_like=False),
    ]
    alpha_critic_scale: Annotated[float, Range(at_least=0), Unless(discrete_dqn_like=True)]
    discrete_dqn_like: Annotated[bool, FixedOnResume("the saved networks have a policy if this is false")]
    discrete_dqn_epsilon: Annotated[float, Range(at_least=0, at_most=1), OnlyIf(discrete_dqn_like=True)]
    clip_epsilon: Annotated[float | None, Range(above=0)]  # of Q around the target critic's
    rescale_values: bool  # h (Pohlen et al. 2018)
    reset_every: Annotated[int | None, Range(at_least=1)]
    reset_shrink: Annotated[float, Range(at_least=0, below=1), Unless(reset_every=None)]
    random_steps: Annotated[int, Range(at_least=0)]
    n_step: Annotated[int, Range(at_least=1)]
    use_n_step_is: Annotated[bool, Unless(n_step=1)]
    estimator: Annotated[Literal[find_estimators(reads="trace_clip")], Unless(n_step=1, use_n_step_is=False)]
    v_lambda: Annotated[float, Range(above=0), Unless(n_step=1)]  # lambda
    v_rho: Annotated[
        float, Range(above=0), OnlyIf(use_n_step_is=True, estimator=find_estimators(reads="rho_clip")), Unless(n_step=1)
    ]  # rho-bar of V-trace
    v_c: Annotated[float, Range(above=0), Unless(n_step=1, use_n_step_is=False)]  # c-bar
    std_init: Annotated[float, Range(above=0), CONTINUOUS, Unless(discrete_dqn_like=True)]
    std_min: Annotated[float, Range(at_least=0), CONTINUOUS, Unless(discrete_dqn_like=True)]
    std_max: Annotated[float | None, Range(above=0), CONTINUOUS, Unless(discrete_dqn_like=True)]
    replay_ratio: Annotated[float, Range(above=0, at_most=10_000)]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic == "categorical":
            self._check_categorical()
        if self.n_step > self.sequence_length:
            raise ValueError(f"n_step {self.n_step} must not be above sequence_length {self.sequence_length}")
        if self.target == "none" and self.clip_epsilon is not None:
            raise ValueError("target none has no target critics for clip_epsilon; set it to null")
        if self.ensemble_q_sample > self.ensemble_q_num:
            raise ValueError(
                f"ensemble_q_sample {self.ensemble_q_sample} is above ensemble_q_num {self.ensemble_q_num}"
            )
        if self.estimator in find_estimators(reads="rho_clip") and self.v_rho < self.v_c:
            raise ValueError(f"v_rho {self.v_rho} must not be below v_c {self.v_c}")
        if self.std_init <= self.std_min:
            raise ValueError(f"std_init {self.std_init} must be above std_min {self.std_min}")
        if self.std_max is not None and not 0 < self.std_min < self.std_init < self.std_max:
            raise ValueError(
                f"std_max {self.std_max} must be above std_init {self.std_init}, and needs std_min above 0, not "
                f"{self.std_min}"
            )

    def _check_categorical(self) -> None:
        """Raise ValueError if a setting is for scalar critics only."""
        several = f"with n_step {self.n_step} critic categorical"
        refusals = {
            "critic categorical has no clip_epsilon; set it to null": self.clip_epsilon is not None,
            "critic categorical has no rescale_values; set it to false": self.rescale_values,
            "discrete_dqn_like needs critic scalar": self.discrete_dqn_like,
            f"{several} has no importance ratios; set use_n_step_is to false": self.n_step > 1 and self.use_n_step_is,
            f"{several} needs v_lambda 1, not {self.v_lambda}": self.n_step > 1 and self.v_lambda != 1,
        }
        for message, is_refused in refusals.items():
            if is_refused:
                raise ValueError(message)
