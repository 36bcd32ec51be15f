"""Exchanges between the members of a population: copies of the best checkpoints, or draws of weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from algorithm.population.evolution import (
    SettingSpaces,
    choose_parents,
    find_least_selected,
    is_evolution_due,
    rank_members,
    select_elites,
)
from algorithm.population.lineage import LineageRow, MemberPlan


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

    def __init__(self, spaces: SettingSpaces, fraction: float, factors: Sequence[float], resample_probability: float):
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
            settings = self.spaces.perturb(settings, self.factors, self.resample_probability, rng)
        return MemberPlan(parent=parent + 1, settings=settings)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass


class DrawWeights:
    """The cross-entropy method: the weights of all members are drawn from a distribution over those of the elites.

    It is the evolver of Advanced-Soft-Actor-Critic, with these changes: only members with enough evaluations are
    elites, there are at least two of them, and a failed evaluation counts as none.

    Args:
        spaces: the settings that differ between members.
        length: evaluations of every member before a draw (`evolver_cem_length`).
        best: fraction of the members that are elites (`evolver_cem_best`).
        min_length: evaluations of every member that are enough after `minutes` (`evolver_cem_min_length`).
        minutes: time since the last draw (`evolver_cem_time`).
        remove_worst: difference of the numbers of selections at which a member is replaced (`evolver_remove_worst`).
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        *,
        spaces: SettingSpaces,
        length: int,
        best: float,
        min_length: int,
        minutes: float,
        remove_worst: int,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.spaces, self.length, self.best, self.min_length = spaces, length, best, min_length
        self.minutes, self.remove_worst, self.clock = minutes, remove_worst, clock
        self._returns: list[list[float]] = []  # of each member, since the last draw
        self._selected: list[int] = []  # the number of draws in which each member was an elite
        self._counts = {path: [1] * len(space.choices) for path, space in spaces.by_path.items() if space.choices}
        self._started = clock()

    def plan(self, rows: Sequence[LineageRow], rng: np.random.Generator) -> ExchangePlan:
        self._returns = self._returns or [[] for _ in rows]
        self._selected = self._selected or [0] * len(rows)
        for returns, row in zip(self._returns, rows, strict=True):
            if row.mean_return is None:
                returns.clear()  # the member starts again, with the weights of another one
            else:
                returns.append(row.mean_return)
        minutes = (self.clock() - self._started) / 60
        counts = [len(returns) for returns in self._returns]
        elites = select_elites(self._returns, self.best, self.min_length)
        members = self._replace_failed(rows, elites, rng)
        if not is_evolution_due(counts, self.length, self.min_length, minutes, self.minutes):
            return ExchangePlan(members=members)
        self._count_elites(rows, elites)
        removed = find_least_selected(self._selected, self.remove_worst)
        if removed is not None:
            self._selected = [int(member in elites) for member in range(len(rows))]
            members[removed] = replace(members[removed], settings=self.spaces.sample(rng, self._counts))
        self._returns = [[] for _ in rows]
        self._started = self.clock()
        return ExchangePlan(members=members, elites=[member + 1 for member in elites])

    def _replace_failed(
        self, rows: Sequence[LineageRow], elites: Sequence[int], rng: np.random.Generator
    ) -> list[MemberPlan]:
        """Return plans in which members that failed copy an elite, or the best member while there is no elite."""
        best = elites or rank_members([row.mean_return for row in rows])[:1]
        sources = [rows[member] for member in best if rows[member].mean_return is not None]
        plans = []
        for row in rows:
            parent = row if row.mean_return is not None or not sources else sources[int(rng.integers(len(sources)))]
            plans.append(MemberPlan(parent=parent.member, settings=parent.settings))
        return plans

    def _count_elites(self, rows: Sequence[LineageRow], elites: Sequence[int]) -> None:
        """Count the elites, and the choices that they have."""
        for member in elites:
            self._selected[member] += 1
            for path, counts in self._counts.items():
                choices = self.spaces.by_path[path].choices or ()
                if (value := rows[member].settings[path]) in choices:
                    counts[choices.index(value)] += 1

    def state(self) -> dict[str, Any]:
        return {
            "returns": [list(returns) for returns in self._returns],
            "selected": list(self._selected),
            "counts": {path: list(counts) for path, counts in self._counts.items()},
            "seconds": self.clock() - self._started,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        if state:
            self._returns, self._selected = state["returns"], state["selected"]
            self._counts = state["counts"]
            self._started = self.clock() - state["seconds"]
