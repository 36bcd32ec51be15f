"""The section `population_config`: a population of runs that train at the same time."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import model_validator

from algorithm.annotations import FixedOnResume, OnlyIf, Range
from algorithm.config.schema import MAX_SECONDS, Section

MAX_MEMBERS = 2**10

_ON_CLUSTER, _ON_RAY = OnlyIf("base_config", runtime="CLUSTER"), OnlyIf("cluster_config", host="ray")
_COPYING, _DRAWING = OnlyIf(evolver_enabled=False), OnlyIf(evolver_enabled=True)


class PopulationConfig(Section, title="population_config"):
    """The section `population_config`."""

    size: Annotated[
        int | None, Range(at_least=2, at_most=MAX_MEMBERS), FixedOnResume("each member has its own run folder")
    ]
    interval: Annotated[int, Range(at_least=1), FixedOnResume("the lineage has rows of this interval")]
    processes: Annotated[int | None, Range(at_least=1)]
    cpus_per_member: Annotated[float, Range(at_least=0), _ON_CLUSTER, _ON_RAY]
    gpus_per_member: Annotated[float, Range(at_least=0), _ON_CLUSTER, _ON_RAY]
    timeout: Annotated[float | None, Range(above=0, at_most=MAX_SECONDS)]
    max_restarts: Annotated[int, Range(at_least=0)]
    exchange_fraction: Annotated[float, Range(at_least=0, at_most=0.5), _COPYING]
    perturb_factors: Annotated[list[Annotated[float, Range(above=0)]], _COPYING]
    resample_probability: Annotated[float, Range(at_least=0, at_most=1), _COPYING]
    random_params: Annotated[dict[str, Any], FixedOnResume("the members have values of these settings")]
    evolver_enabled: Annotated[bool, FixedOnResume("the members evolve in this way")]
    evolver_cem_length: Annotated[int, Range(at_least=1), _DRAWING]
    evolver_cem_best: Annotated[float, Range(above=0, at_most=1), _DRAWING]
    evolver_cem_min_length: Annotated[int, Range(at_least=1), _DRAWING]
    evolver_cem_time: Annotated[float, Range(at_least=0, at_most=MAX_SECONDS), _DRAWING]
    evolver_remove_worst: Annotated[int, Range(at_least=-1), _DRAWING]

    @model_validator(mode="after")
    def _check_together(self) -> PopulationConfig:
        if not self.perturb_factors:
            raise ValueError("perturb_factors is empty; it must have at least one factor")
        if self.evolver_cem_min_length > self.evolver_cem_length:
            raise ValueError(
                f"evolver_cem_min_length {self.evolver_cem_min_length} must not be above evolver_cem_length "
                f"{self.evolver_cem_length}"
            )
        return self
