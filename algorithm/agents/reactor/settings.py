"""The settings of Reactor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from algorithm.agents.actor_critic import OptimizerSettings
from algorithm.annotations import AnyOf, FixedOnResume, OnlyIf, Range

ATOMS = FixedOnResume("the saved critic has these atoms", OnlyIf(critic="categorical"))
RANGE_IS_USED = AnyOf(OnlyIf(critic="categorical"), OnlyIf(reward_normalization="return_max"))


@dataclass(frozen=True, kw_only=True)
class ReactorSettings(OptimizerSettings):
    """The section `reactor_config`; default_config.yaml has the defaults, units and meanings.

    Raises:
        ValueError: Settings exclude one another.
    """

    value_coef: Annotated[float, Range(at_least=0)]
    entropy_coef: Annotated[float, Range(at_least=0)]
    gamma: Annotated[float, Range(at_least=0, at_most=1)]
    reward_scale: Annotated[float, Range(above=0)]
    reward_clip: Annotated[float | None, Range(above=0)]
    reward_normalization: Annotated[
        Literal["return_std", "return_max"] | None,
        FixedOnResume(
            "the saved statistics of return_max contain the largest discounted sum of rewards", involving="return_max"
        ),
    ]
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
    critic: Annotated[
        Literal["categorical", "scalar"], FixedOnResume("the saved network has the outputs of this critic")
    ]
    distributional: Annotated[Literal["direct", "recursive"], OnlyIf(critic="categorical")]
    n_atoms: Annotated[int, Range(at_least=2, at_most=10_000), OnlyIf(critic="categorical"), ATOMS]
    v_min: Annotated[float, Range(at_least=-1e6, at_most=1e6), RANGE_IS_USED, ATOMS]
    v_max: Annotated[float, Range(at_least=-1e6, at_most=1e6), RANGE_IS_USED, ATOMS]
    trace_lambda: Annotated[float, Range(at_least=0, at_most=1)]  # lambda
    update_target_per_step: Annotated[int, Range(at_least=1)]
    rollout_length: Annotated[int, Range(at_least=1), FixedOnResume("the saved replay has rollouts of this length")]
    sequence_length: Annotated[int, Range(at_least=1)]
    burn_in_step: Annotated[int, Range(at_least=0)]
    batch_size: Annotated[int, Range(at_least=1)]
    replay_ratio: Annotated[float, Range(above=0, at_most=10_000)]
    learning_starts: Annotated[int, Range(at_least=0)]

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
