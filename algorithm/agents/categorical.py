"""The settings that agents with a categorical critic share: its atoms, and the scaling of rewards to their range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from algorithm.annotations import AnyOf, FixedOnResume, OnlyIf, Range
from algorithm.returns import Support

ATOMS = FixedOnResume("the saved critic has these atoms", OnlyIf(critic="categorical"))
RANGE_IS_USED = AnyOf(OnlyIf(critic="categorical"), OnlyIf(reward_normalization="return_max"))


@dataclass(frozen=True, kw_only=True)
class CategoricalSettings:
    """The settings of rewards and of the kind of critic; default_config.yaml has the defaults, units and meanings.

    Raises:
        ValueError: Settings exclude one another.
    """

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

    def make_support(self) -> Support:
        """Return the atoms of a categorical critic."""
        return Support(v_min=self.v_min, v_max=self.v_max, n_atoms=self.n_atoms)
