"""The settings of algorithms, and those that they share and inherit; without torch, so that commands check them early.

The sections of default_config.yaml inherit the settings of the optimizer in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import e, log, pi
from typing import Annotated, Literal

from algorithm.annotations import CONTINUOUS, DISCRETE, AnyOf, FixedOnResume, OnlyIf, Range, Spellings, Unless
from algorithm.estimators import find_estimators

ATOMS = FixedOnResume("the saved critic has these atoms", OnlyIf(critic="categorical"))
MAX_ENTROPY = "the largest entropy that there is"  # of equal probabilities, of a uniform density on (-1, 1)
RANGE_IS_USED = AnyOf(OnlyIf(critic="categorical"), OnlyIf(reward_normalization="return_max"))


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """The settings of an algorithm, and how it learns."""

    # Whether rollouts are stored and replayed, by the settings replay_ratio, batch_size and learning_starts; otherwise
    # each rollout is learned from before the next.
    uses_replay = False


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings(AgentSettings):
    """The settings of the optimizer that all parameter groups share; default_config.yaml has their meanings."""

    learning_rate_schedule: Literal["constant", "linear", "cosine"]
    learning_rate_final_fraction: Annotated[
        float, Range(at_least=0, at_most=1), OnlyIf(learning_rate_schedule=("linear", "cosine"))
    ]
    optimizer: Annotated[
        Literal["adam", "adamw", "rmsprop"],
        FixedOnResume("the saved moments belong to this optimizer", involving="rmsprop"),
    ]
    weight_decay: Annotated[float, Range(at_least=0), OnlyIf(optimizer="adamw")]
    optimizer_beta1: Annotated[float, Range(at_least=0, below=1), OnlyIf(optimizer=("adam", "adamw"))]
    optimizer_decay: Annotated[float, Range(at_least=0, below=1)]
    optimizer_epsilon: Annotated[float, Range(above=0)]
    epsilon_inside: Annotated[bool, OnlyIf(optimizer="rmsprop")]


@dataclass(frozen=True, kw_only=True)
class ReplaySettings(AgentSettings):
    """The settings of learning from a replay; default_config.yaml has their meanings."""

    uses_replay = True

    rollout_length: Annotated[int, Range(at_least=1), FixedOnResume("the saved replay has rollouts of this length")]
    sequence_length: Annotated[int, Range(at_least=1), Unless(replay_ratio=0)]
    burn_in_step: Annotated[int, Range(at_least=0), Unless(replay_ratio=0)]  # R2D2 (Kapturowski et al. 2019)
    batch_size: Annotated[int, Range(at_least=1), Unless(replay_ratio=0)]
    replay_ratio: Annotated[float | None, Range(at_least=0, at_most=10_000)]
    learning_starts: Annotated[int, Range(at_least=0), Unless(replay_ratio=0)]


@dataclass(frozen=True, kw_only=True)
class SingleGroupSettings(OptimizerSettings):
    """The settings of an optimizer with one learning rate; default_config.yaml has their meanings."""

    learning_rate: Annotated[float, Range(above=0)]
    max_grad_norm: Annotated[float, Range(above=0)]


@dataclass(frozen=True, kw_only=True)
class ActorCriticSettings(SingleGroupSettings):
    """The settings of the optimizer, the losses, the rewards and the policy; default_config.yaml has their meanings.

    Raises:
        ValueError: Settings exclude one another.
    """

    return_bound = None  # see CategoricalSettings

    value_coef: Annotated[float, Range(at_least=0)]  # of the critic's error (Wang et al. 2017, Eq. 6)
    entropy_coef: Annotated[float, Range(at_least=0)]  # beta; in ACER outside of the projection
    gamma: Annotated[float, Range(at_least=0, at_most=1)]
    reward_scale: Annotated[float | None, Range(at_least=0)]
    reward_clip: Annotated[float | None, Range(above=0)]
    reward_normalization: Literal["return_std"] | None
    std: Annotated[
        Literal["fixed", "learned", "state_dependent"],
        CONTINUOUS,
        FixedOnResume("the saved network has this kind of standard deviation"),
    ]
    std_init: Annotated[float, Range(above=0), CONTINUOUS]
    std_min: Annotated[float, Range(at_least=0), CONTINUOUS, Unless(std="fixed")]
    tanh_squash: Annotated[bool, CONTINUOUS, FixedOnResume("the policy was trained with this bounding of its actions")]

    def __post_init__(self) -> None:
        if self.std != "fixed" and self.std_init <= self.std_min:
            raise ValueError(f"std_init {self.std_init} must be above std_min {self.std_min}, unless std is fixed")


@dataclass(frozen=True, kw_only=True)
class StateValueSettings(ActorCriticSettings):
    """The settings of agents that learn from their own rollouts; default_config.yaml has their meanings."""

    gae_lambda: Annotated[float, Range(at_least=0, at_most=1)]
    normalize_advantages: bool
    rollout_length: Annotated[int, Range(at_least=1), FixedOnResume("the saved incomplete rollouts have this length")]


@dataclass(frozen=True, kw_only=True)
class A2CSettings(StateValueSettings):
    """The section `a2c_config`; default_config.yaml has the defaults, units and meanings."""

    epochs, minibatches = None, 1  # one update with each rollout as it was collected


@dataclass(frozen=True, kw_only=True)
class PpoSettings(StateValueSettings):
    """The section `ppo_config`; default_config.yaml has the defaults, units and meanings."""

    clip_ratio: Annotated[float, Range(above=0)]  # epsilon (Eq. 7)
    clip_ratio_schedule: Literal["constant", "linear"]
    clip_ratio_final_fraction: Annotated[float, Range(at_least=0), OnlyIf(clip_ratio_schedule="linear")]
    entropy_coef_schedule: Literal["constant", "linear"]
    entropy_coef_final_fraction: Annotated[float, Range(at_least=0), OnlyIf(entropy_coef_schedule="linear")]
    value_clip: Annotated[float | None, Range(above=0)]
    target_kl: Annotated[float | None, Range(above=0)]
    epochs: Annotated[int, Range(at_least=1)]  # K (Algorithm 1)
    minibatches: Annotated[int, Range(at_least=1)]


@dataclass(frozen=True, kw_only=True)
class PocaSettings(PpoSettings):
    """The section `poca_config`; default_config.yaml has the defaults, units and meanings."""

    team_size: Annotated[int, Range(at_least=2, at_most=1000), FixedOnResume("the saved critic has so many members")]
    team_units: Annotated[int, Range(at_least=4), FixedOnResume("the saved critic has this size")]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.team_units % 4:
            raise ValueError(f"team_units {self.team_units} must be a multiple of 4, the number of attention heads")


@dataclass(frozen=True, kw_only=True)
class CategoricalSettings:
    """The settings of rewards and of the kind of critic; default_config.yaml has the defaults, units and meanings.

    Raises:
        ValueError: Settings exclude one another.
    """

    gamma: Annotated[float, Range(at_least=0, at_most=1)]
    reward_scale: Annotated[float, Range(above=0)]
    reward_clip: Annotated[float | None, Range(above=0)]
    reward_normalization: Annotated[
        Literal["return_std", "return_max"] | None,
        FixedOnResume(
            "the saved statistics of return_max contain the largest discounted sum of rewards", involving="return_max"
        ),
    ]
    critic: Annotated[
        Literal["categorical", "scalar"], FixedOnResume("the saved network has the outputs of this critic")
    ]
    n_atoms: Annotated[int, Range(at_least=2, at_most=10_000), OnlyIf(critic="categorical"), ATOMS]
    v_min: Annotated[float, Range(at_least=-1e6, at_most=1e6), RANGE_IS_USED, ATOMS]
    v_max: Annotated[float, Range(at_least=-1e6, at_most=1e6), RANGE_IS_USED, ATOMS]

    def __post_init__(self) -> None:
        if self.v_min >= self.v_max:
            raise ValueError(f"v_min {self.v_min} must be below v_max {self.v_max}")
        if self.reward_normalization == "return_max" and not self.v_min < 0 < self.v_max:
            raise ValueError(
                f"reward_normalization return_max needs v_min below 0 and v_max above 0, not {self.v_min} and "
                f"{self.v_max}; for a known range of returns set reward_normalization to null"
            )
        largest = max(abs(self.v_min), abs(self.v_max))
        if self.critic == "categorical" and self.v_max - self.v_min < 1e-6 * self.n_atoms * largest:
            raise ValueError(f"v_min {self.v_min} and v_max {self.v_max} are too close for {self.n_atoms} atoms")

    @property
    def return_bound(self) -> float | None:
        """The largest magnitude of returns before `reward_scale` that `return_max` scales to; None without it."""
        if self.reward_normalization != "return_max":
            return None
        return min(-self.v_min, self.v_max) / self.reward_scale


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
    discrete_dqn_epsilon_steps: Annotated[int, Range(at_least=0), OnlyIf(discrete_dqn_like=True)]
    clip_epsilon: Annotated[float | None, Range(above=0)]  # of Q around the target critic's
    rescale_values: bool  # h (Pohlen et al. 2018)
    reset_every: Annotated[int | None, Range(at_least=1)]
    reset_shrink: Annotated[float, Range(at_least=0, below=1), Unless(reset_every=None)]
    random_steps: Annotated[int, Range(at_least=0)]
    n_step: Annotated[int, Range(at_least=1)]
    learned_rows: Annotated[Literal["all", "first"], Unless(n_step=1)]
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
        if self.learned_rows == "first" and (self.n_step != self.sequence_length or self.use_n_step_is):
            raise ValueError("learned_rows first needs sequence_length to be n_step, and use_n_step_is false")
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
            f"{several} has no importance ratios; set use_n_step_is to false": self.n_step > 1 and self.use_n_step_is,
            f"{several} needs v_lambda 1, not {self.v_lambda}": self.n_step > 1 and self.v_lambda != 1,
        }
        for message, is_refused in refusals.items():
            if is_refused:
                raise ValueError(message)


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
