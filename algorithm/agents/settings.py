"""The settings that algorithms share, whose sections inherit them; without torch, so that commands check them early.

The sections of default_config.yaml inherit the settings of the optimizer in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from algorithm.annotations import CONTINUOUS, AnyOf, FixedOnResume, OnlyIf, Range, Unless

ATOMS = FixedOnResume("the saved critic has these atoms", OnlyIf(critic="categorical"))
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

    value_coef: Annotated[float, Range(at_least=0)]  # of the critic's error (Wang et al. 2017, Eq. 6)
    entropy_coef: Annotated[float, Range(at_least=0)]  # beta; in ACER outside of the projection
    gamma: Annotated[float, Range(at_least=0, at_most=1)]
    reward_scale: Annotated[float | None, Range(above=0)]
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
