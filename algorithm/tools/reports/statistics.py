"""Statistics over repeated runs with bootstrap intervals: performance of groups, and probabilities of improvement.

The definitions are those of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
Precipice", arXiv 2108.13264. Scores are one array [..., runs] per task; runs of a task may differ in number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import comb, prod
from statistics import NormalDist

import numpy as np

from algorithm.training.metrics import format_number
from algorithm.training.student_t import compute_t_quantile

Scores = Sequence[np.ndarray]  # of each task: [..., runs]
RESAMPLES = 2000
SEED = 0  # of the resamples, so that the same runs have the same intervals
THRESHOLDS = 101  # of a performance profile
TRIMMED = 0.25  # fraction of the runs that the interquartile mean leaves out at each end


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A statistic, and the ends of its interval, which are NaN if a task has a single run. Each: [...]."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def __str__(self) -> str:
        """Return the value and, if it has one, the interval of a single number."""
        value, low, high = (format_number(float(number)) for number in (self.value, self.low, self.high))
        return value if np.isnan(self.low) else f"{value} [{low}, {high}]"


@dataclass(frozen=True, kw_only=True)
class Performance:
    """The performance of a group: statistics of the scores of its runs.

    Attributes:
        label: label of the group.
        mean, iqm: mean and interquartile mean.
        thresholds: scores, evenly spaced.
        profile: fraction of the runs above each threshold [thresholds].
    """

    label: str
    mean: Estimate
    iqm: Estimate
    thresholds: np.ndarray
    profile: Estimate


@dataclass(frozen=True, kw_only=True)
class Improvement(Estimate):
    """The probability, 0.5 to 1, that a run of one group scores above a run of another one.

    Attributes:
        label, other: labels of both groups; the first is the one with the larger probability.
        chance: probability that every run of a group is above every run of the other one, on each task, if both groups
            are equally good.
    """

    label: str
    other: str
    chance: float

    @property
    def is_complete(self) -> bool:
        """Return whether every run is above every run of the other group, in which case the interval has no width."""
        return bool(self.value == 1)

    def __str__(self) -> str:
        """Return the probability with its interval; without a width, the chance of this order instead."""
        if self.is_complete:
            return f"{format_number(1.0)} (every run; by chance {self.chance:.2g})"
        return super().__str__()


def compute_mean(scores: Scores) -> np.ndarray:
    """Return the mean over tasks of the mean over runs, [...]."""
    return np.mean([task.mean(-1) for task in scores], 0)


def compute_iqm(scores: Scores) -> np.ndarray:
    """Return the interquartile mean [...]: the mean of the middle half of the runs of all tasks together.

    A quarter of the runs, rounded down, is left out at each end.
    """
    runs = np.sort(np.concatenate(scores, -1), -1)
    n_trimmed = int(TRIMMED * runs.shape[-1])
    return runs[..., n_trimmed : runs.shape[-1] - n_trimmed].mean(-1)


def compute_profile(scores: Scores, thresholds: np.ndarray) -> np.ndarray:
    """Return the performance profile [thresholds, ...]: the fraction of runs above each threshold, mean over tasks."""
    return np.stack([np.mean([(task > threshold).mean(-1) for task in scores], 0) for threshold in thresholds])


def compute_improvement(scores: Scores, others: Scores) -> np.ndarray:
    """Return the probability [...] that a run scores above a run of `others` on the same task, mean over tasks.

    A tie counts half, so that each task has the Mann-Whitney statistic U / (runs * other runs).
    """
    signs = [
        np.mean([np.sign(run[..., None] - other).mean(-1) for run in np.moveaxis(task, -1, 0)], 0)
        for task, other in zip(scores, others, strict=True)
    ]
    return (np.mean(signs, 0) + 1) / 2


def measure_groups(groups: Mapping[str, Scores]) -> list[Performance]:
    """Return the statistics of each group, with profiles at thresholds from the lowest to the highest score of all."""
    runs = np.concatenate([np.empty(0), *(task for scores in groups.values() for task in scores)])
    low, high = float(runs.min(initial=np.inf)), float(runs.max(initial=-np.inf))
    margin = (0.05 * abs(low) or 0.5) if low == high else 0.0  # around equal scores
    thresholds = np.linspace(low - margin, high + margin, THRESHOLDS) if len(runs) else np.empty(0)
    return [
        Performance(
            label=label,
            mean=estimate(compute_mean, scores),
            iqm=estimate(compute_iqm, scores),
            thresholds=thresholds,
            profile=estimate(partial(compute_profile, thresholds=thresholds), scores),
        )
        for label, scores in groups.items()
    ]


def compare_pairs(groups: Mapping[str, Scores]) -> list[Improvement]:
    """Return the probability of improvement of each pair of groups."""
    found = []
    for label, other in combinations(groups, 2):
        if compute_improvement(groups[label], groups[other]) < 0.5:
            label, other = other, label
        scores, others = groups[label], groups[other]
        chance = 2 * prod(1 / comb(len(a) + len(b), len(a)) for a, b in zip(scores, others, strict=True))
        probability = estimate(compute_improvement, scores, others)
        found.append(Improvement(label=label, other=other, chance=chance, **vars(probability)))
    return found


def estimate(
    statistic: Callable[..., np.ndarray], *groups: Scores, level: float | None = None, resamples: int = RESAMPLES
) -> Estimate:
    """Return a statistic of one or more groups of runs with its percentile bootstrap interval.

    The bootstrap is stratified: it draws the runs of every task of every group with replacement.

    Args:
        statistic: function of the scores of each group that returns [...].
        groups: the scores of each group.
        level: probability between the two quantiles of the resampled statistic; None for `widen_level`.
        resamples: number of resamples.
    """
    value = np.asarray(statistic(*groups))
    counts = [task.shape[-1] for tasks in groups for task in tasks]
    if min(counts) < 2:
        return Estimate(value=value, low=np.full_like(value, np.nan), high=np.full_like(value, np.nan))
    level = widen_level(counts) if level is None else level
    rng = np.random.default_rng(SEED)
    resampled = statistic(
        *(
            [task[..., rng.integers(task.shape[-1], size=(resamples, task.shape[-1]))] for task in tasks]
            for tasks in groups
        )
    )
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2], axis=-1)
    return Estimate(value=value, low=low, high=high)


def widen_level(counts: Sequence[int]) -> float:
    """Return the level at which a percentile interval of few runs covers about 95%.

    The bootstrap underestimates the variance of a mean of n runs by (n - 1) / n, and has no equivalent of Student's t.
    The level is chosen so that the quantiles of a normal distribution with this variance are those of Student's t:
    the expanded percentile interval of Hesterberg 2015, arXiv 1411.5279. With many runs it is 95%.

    Args:
        counts: the runs in each stratum of the bootstrap, each at least 2.
    """
    runs = np.asarray(counts)
    variance_ratio = (1 / runs).sum() / ((runs - 1) / runs**2).sum()
    return 2 * NormalDist().cdf(np.sqrt(variance_ratio) * compute_t_quantile((runs - 1).sum())) - 1
