"""Exchanges between the members of a population: copies of the best checkpoints, or draws of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from algorithm.runtimes.evolution import Spaces, choose_parents, perturb_settings
from algorithm.runtimes.lineage import LineageRow, MemberPlan


@dataclass(frozen=True, kw_only=True)
class ExchangePlan:
    """The start of the next interval.

    Attributes:
        members: the plan of each member.
        elites: the numbers of the members from whose weights those of all members are drawn; empty: no draw.
    """

    members: Sequence[MemberPlan]
    elites: Sequence[int] = ()


class Exchange(Protocol):
    """A way in which members exchange weights and settings after each interval."""

    def plan(self, rows: Sequence[LineageRow], rng: np.random.Generator) -> ExchangePlan:
        """Return the start of the next interval, from the rows of all members of this one, in their order."""

    def state(self) -> dict[str, Any]:
        """Return the state, in values of JSON."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""


class CopyBest:
    """Population-based training: the worst members copy one of the best, and perturb its settings.

    Args:
        spaces: the settings that differ between members.
        fraction: fraction of the members that copy, and of those that are copied.
        factors: a number is multiplied by one of these factors.
        resample_probability: probability that a setting is sampled again instead.
    """

    def __init__(self, spaces: Spaces, fraction: float, factors: Sequence[float], resample_probability: float):
        self.spaces, self.fraction = spaces, fraction
        self.factors, self.resample_probability = factors, resample_probability

    def plan(self, rows: Sequence[LineageRow], rng: np.random.Generator) -> ExchangePlan:
        parents = choose_parents([row.mean_return for row in rows], self.fraction, rng)
        return ExchangePlan(members=[self._plan_member(rows, *pair, rng) for pair in enumerate(parents)])

    def _plan_member(
        self, rows: Sequence[LineageRow], member: int, parent: int, rng: np.random.Generator
    ) -> MemberPlan:
        settings = rows[parent].settings
        if member != parent:
            settings = perturb_settings(settings, self.spaces, self.factors, self.resample_probability, rng)
        return MemberPlan(parent=parent + 1, settings=settings)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass
