"""The section `replay_config`: the replay and its sampler."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import model_validator

from algorithm.annotations import FixedOnResume, OnlyIf, Range, Unless
from algorithm.config.schema import Section


class ReplayConfig(Section, title="replay_config"):
    """The section `replay_config`."""

    capacity: Annotated[int, Range(at_least=1), FixedOnResume("the saved replay has this size")]
    memory_map: bool
    sampler: Annotated[
        Literal["uniform", "prioritized", "lazy"], FixedOnResume("the saved priorities belong to this sampler")
    ]
    initial_priorities: Annotated[
        Literal["td_error"] | None,
        Unless(sampler="uniform"),
        FixedOnResume("the saved replay has the TD errors of all steps, or of none"),
    ]
    alpha: Annotated[
        float,
        Range(at_least=0),
        OnlyIf(sampler="prioritized"),
        FixedOnResume("the saved priorities were raised to this power"),
    ]
    beta: Annotated[float, Range(at_least=0, at_most=1), OnlyIf(sampler="prioritized")]
    beta_increment_per_sampling: Annotated[float, Range(at_least=0), OnlyIf(sampler="prioritized")]
    td_error_min: Annotated[float, Range(above=0), Unless(sampler="uniform")]
    td_error_max: Annotated[float, Range(above=0), Unless(sampler="uniform")]
    max_error_weight: Annotated[float, Range(at_least=0, at_most=1), Unless(sampler="uniform")]
    uniform_fraction: Annotated[float, Range(above=0, at_most=1), OnlyIf(sampler="lazy")]

    @model_validator(mode="after")
    def _check_bounds(self) -> ReplayConfig:
        if self.td_error_min > self.td_error_max:
            raise ValueError(f"td_error_min {self.td_error_min} must not be above td_error_max {self.td_error_max}")
        return self
