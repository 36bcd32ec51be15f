"""The performance of groups of runs: statistics of their scores, and the probability that one exceeds another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import comb, prod

import numpy as np

from algorithm.tools.reports.statistics import (
    Estimate,
    Scores,
    compute_improvement,
    compute_iqm,
    compute_mean,
    compute_profile,
    estimate,
)
from algorithm.training.metrics import format_number

THRESHOLDS = 101  # of a performance profile


@dataclass(frozen=True, kw_only=True)
class Performance:
    """The performance of a group: statistics of the scores of its runs.

    Attributes:
        scores: the score of each run, by environment: each [runs].
        mean, iqm: mean and interquartile mean.
        profile: fraction of the runs above each threshold [thresholds].
    """

    scores: Scores
    mean: Estimate
    iqm: Estimate
    profile: Estimate


@dataclass(frozen=True, kw_only=True)
class Improvement:
    """The probability that a run of one group scores above a run of another one.

    Attributes:
        label, other: labels of both groups; the first is the one with the larger probability.
        probability: the probability, 0.5 to 1.
        chance: probability that every run of a group is above every run of the other one, on each task, if both groups
            are equally good.
    """

    label: str
    other: str
    probability: Estimate
    chance: float

    @property
    def is_complete(self) -> bool:
        """Return whether every run is above every run of the other group, in which case the interval has no width."""
        return bool(self.probability.value == 1)

    def __str__(self) -> str:
        """Return the probability with its interval; without a width, the chance of this order instead."""
        if self.is_complete:
            return f"{format_number(1.0)} (every run; by chance {self.chance:.2g})"
        return str(self.probability)


def measure(scores: Scores, thresholds: np.ndarray) -> Performance:
    """Return the statistics of a group, with its performance profile at these thresholds."""
    return Performance(
        scores=scores,
        mean=estimate(compute_mean, scores),
        iqm=estimate(compute_iqm, scores),
        profile=estimate(partial(compute_profile, thresholds=thresholds), scores),
    )


def make_thresholds(groups: Iterable[Scores]) -> np.ndarray:
    """Return evenly spaced thresholds from the lowest to the highest score of all groups; around equal scores."""
    runs = np.concatenate([task for scores in groups for task in scores])
    low, high = float(runs.min()), float(runs.max())
    margin = (0.05 * abs(low) or 0.5) if low == high else 0.0
    return np.linspace(low - margin, high + margin, THRESHOLDS)


def compare_pairs(scores: Mapping[str, Scores]) -> list[Improvement]:
    """Return the probability of improvement of each pair of groups."""
    return [_compare_pair(scores, *labels) for labels in combinations(scores, 2)]


def _compare_pair(scores: Mapping[str, Scores], label: str, other: str) -> Improvement:
    if compute_improvement(scores[label], scores[other]) < 0.5:
        label, other = other, label
    counts = [(len(task), len(rival)) for task, rival in zip(scores[label], scores[other], strict=True)]
    return Improvement(
        label=label,
        other=other,
        probability=estimate(compute_improvement, scores[label], scores[other]),
        chance=2 * prod(1 / comb(runs + others, runs) for runs, others in counts),
    )
