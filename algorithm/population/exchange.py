"""Exchanges between the members of a population: copies of the best checkpoints, or draws of weights.

Population-based training follows Jaderberg et al. 2017 (arXiv 1711.09846, truncation selection), the draws of weights
follow the cross-entropy method. All random numbers come from the generator that is passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from algorithm.config.sections import PopulationConfig
from algorithm.population.folder import LineageRow, MemberPlan, PopulationState
from algorithm.population.setting_spaces import SettingSpaces

Return = float | None  # the mean return of an evaluation; None: the member failed
MIN_ELITES = 2  # the standard deviation over a single elite is 0


class Exchange(Protocol):
    """A way in which members exchange weights and settings after each interval."""

    def plan(self, rows: Sequence[LineageRow], rng: np.random.Generator) -> PopulationState:
        """Return the start of the next interval, from the rows of all members of this one, in their order."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore `PopulationState.exchange`."""


class CopyBest:
    """Population-based training: the worst members copy one of the best, and perturb its settings.

    Args:
        spaces: the settings that differ between members.
        config: fraction of the members that copy and of those that are copied, factors, probability of new samples.
    """

    def __init__(self, spaces: SettingSpaces, config: PopulationConfig):
        self.spaces, self.config = spaces, config

    def plan(self, rows: Sequence[LineageRow], rng: np.random.Generator) -> PopulationState:
        members = []
        for member, parent in enumerate(choose_parents(_list_returns(rows), self.config.exchange_fraction, rng)):
            settings = rows[parent].settings
            if member != parent:
                factors, probability = self.config.perturb_factors, self.config.resample_probability
                settings = self.spaces.perturb(settings, factors, probability, rng)
            members.append(MemberPlan(parent=parent + 1, settings=settings))
        return PopulationState(interval=rows[0].interval + 1, members=members, is_transferred=False)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Do nothing: it has no state."""


class DrawWeights:
    """The cross-entropy method: the weights of all members are drawn from a distribution over those of the elites.

    It is the evolver of Advanced-Soft-Actor-Critic, with these changes: only members with enough evaluations are
    elites, there are at least two of them, and a failed evaluation counts as none.

    Args:
        spaces: the settings that differ between members.
        config: the settings `evolver_*`.
        clock: returns the time in seconds.
    """

    def __init__(self, spaces: SettingSpaces, config: PopulationConfig, clock: Callable[[], float] = time.monotonic):
        self.spaces, self.config, self.clock = spaces, config, clock
        self._returns: list[list[float]] = []  # of each member, since the last draw
        self._selected: list[int] = []  # the number of draws in which each member was an elite
        self._counts = {path: [1] * len(space.choices) for path, space in spaces.by_path.items() if space.choices}
        self._started = clock()

    def plan(self, rows: Sequence[LineageRow], rng: np.random.Generator) -> PopulationState:
        self._returns = self._returns or [[] for _ in rows]
        self._selected = self._selected or [0] * len(rows)
        for returns, row in zip(self._returns, rows, strict=True):
            if row.mean_return is None:
                returns.clear()  # the member starts again, with the weights of another one
            else:
                returns.append(row.mean_return)
        minutes = (self.clock() - self._started) / 60
        counts = [len(returns) for returns in self._returns]
        config = self.config
        elites = select_elites(self._returns, config.evolver_cem_best, config.evolver_cem_min_length)
        members = self._replace_failed(rows, elites, rng)
        limits = config.evolver_cem_length, config.evolver_cem_min_length
        if not is_evolution_due(counts, *limits, minutes, config.evolver_cem_time):
            return self._make_state(rows, members, [])
        self._count_elites(rows, elites)
        removed = find_least_selected(self._selected, config.evolver_remove_worst)
        if removed is not None:
            self._selected = [int(member in elites) for member in range(len(rows))]
            members[removed] = replace(members[removed], settings=self.spaces.sample(rng, self._counts))
        self._returns = [[] for _ in rows]
        self._started = self.clock()
        return self._make_state(rows, members, elites)

    def _replace_failed(
        self, rows: Sequence[LineageRow], elites: Sequence[int], rng: np.random.Generator
    ) -> list[MemberPlan]:
        """Return plans in which members that failed copy an elite, or the best member while there is no elite."""
        best = elites or rank_members(_list_returns(rows))[:1]
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

    def _make_state(
        self, rows: Sequence[LineageRow], members: Sequence[MemberPlan], elites: Sequence[int]
    ) -> PopulationState:
        return PopulationState(
            interval=rows[0].interval + 1,
            members=members,
            elites=[member + 1 for member in elites],
            is_transferred=False,
            exchange={
                "returns": [list(returns) for returns in self._returns],
                "selected": list(self._selected),
                "counts": {path: list(counts) for path, counts in self._counts.items()},
                "seconds": self.clock() - self._started,
            },
        )

    def restore(self, state: Mapping[str, Any]) -> None:
        if state:
            self._returns, self._selected = state["returns"], state["selected"]
            self._counts = state["counts"]
            self._started = self.clock() - state["seconds"]


def _list_returns(rows: Sequence[LineageRow]) -> list[Return]:
    return [row.mean_return for row in rows]


def rank_members(returns: Sequence[Return]) -> list[int]:
    """Return the members from best to worst; failed members are last, and equal returns keep their order."""
    return sorted(range(len(returns)), key=lambda member: (returns[member] is None, -(returns[member] or 0.0)))


def choose_parents(returns: Sequence[Return], fraction: float, rng: np.random.Generator) -> list[int]:
    """Return for each member the member whose checkpoint it continues with, most often itself.

    The worst `fraction` of the members, at least one if it is positive, copy members drawn uniformly from the best
    `fraction`. A failed member always copies one of the best.

    Raises:
        ValueError: all members have failed.
    """
    ranked = rank_members(returns)
    healthy = [member for member in ranked if returns[member] is not None]
    if not healthy:
        raise ValueError("all members have failed")
    count = min(max(1, int(len(ranked) * fraction)), len(ranked) // 2) if fraction else 0
    best = healthy[: max(1, count)]
    replaced = {member for member in ranked[len(ranked) - count :] if member not in best}
    replaced |= set(ranked) - set(healthy)
    return [int(rng.choice(best)) if member in replaced else member for member in range(len(returns))]


def is_evolution_due(
    counts: Sequence[int], length: int, min_length: int, minutes: float, minutes_required: float
) -> bool:
    """Return whether the members have enough evaluations for a step of the cross-entropy method.

    Args:
        counts: evaluations of each member since the last step.
        length: evaluations of each member that are always enough.
        min_length: evaluations of each member that are enough after `minutes_required`.
        minutes: time since the last step.
        minutes_required: see above.
    """
    fewest = min(counts)
    return len(counts) >= MIN_ELITES and (
        fewest >= length or (fewest >= max(1, min_length) and minutes >= minutes_required)
    )


def select_elites(returns: Sequence[Sequence[float]], fraction: float, min_length: int) -> list[int]:
    """Return the elites, from best to worst: the best `fraction` of the members by mean return, at least two.

    Args:
        returns: returns of each member since the last step.
        fraction: fraction of all members.
        min_length: returns that a member needs to be an elite.
    """
    means = [float(np.mean(each)) if len(each) >= max(1, min_length) else None for each in returns]
    ranked = [member for member in rank_members(means) if means[member] is not None]
    return ranked[: max(MIN_ELITES, int(len(returns) * fraction))]


def find_least_selected(selected: Sequence[int], threshold: int) -> int | None:
    """Return the member to replace: the least selected, if its count is `threshold` below the mean count.

    Args:
        selected: the number of steps in which each member was an elite.
        threshold: the difference; -1: never.
    """
    least = int(np.argmin(selected))
    return least if threshold != -1 and np.mean(selected) - selected[least] >= threshold else None
