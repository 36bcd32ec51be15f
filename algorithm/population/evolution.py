"""The mathematics of a population: ranks, elites, perturbed settings, and draws of weights.

Population-based training follows Jaderberg et al. 2017 (arXiv 1711.09846, truncation selection), the draws of weights
follow the cross-entropy method. Every function is pure: random numbers come from the generator that is passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Return = float | None  # the mean return of an evaluation; None: the member failed
MAX_STD, MIN_STD = 1.0, 1e-4  # bounds of the standard deviation of a drawn weight
MIN_ELITES = 2  # the standard deviation over a single elite is 0


@dataclass(frozen=True, kw_only=True)
class SettingSpace:
    """The values that the members of a population try for one setting.

    Attributes:
        default: the value in the settings of the population.
        choices: the values to choose from (`in`); None if the setting is a number.
        bounds: the lowest and the highest value (`truncated`); None: no bounds.
        std: the standard deviation of a normal distribution around the default; None: uniform within the bounds.
    """

    default: Any
    choices: tuple[Any, ...] | None = None
    bounds: tuple[float, float] | None = None
    std: float | None = None

    @property
    def has_distribution(self) -> bool:
        """Return whether values can be sampled; otherwise members start from the default, and only perturb it."""
        return any(part is not None for part in (self.choices, self.bounds, self.std))

    @property
    def is_integer(self) -> bool:
        """Return whether the values are integers: the default and the bounds are written as integers."""
        return all(isinstance(number, int) for number in (self.default, *(self.bounds or ())))

    def sample(self, rng: np.random.Generator, counts: Sequence[int] | None = None) -> Any:
        """Return a random value.

        Args:
            rng: the generator.
            counts: parameters of the Dirichlet distribution of the probabilities of `choices`; None: all 1.
        """
        if self.choices is not None:
            probabilities = rng.dirichlet(counts or [1] * len(self.choices))
            return self.choices[int(rng.choice(len(self.choices), p=probabilities))]
        if self.std is not None:
            return self._limit(rng.normal(self.default, self.std))
        if self.bounds is not None:
            low, high = self.bounds
            return int(rng.integers(int(low), int(high) + 1)) if self.is_integer else float(rng.uniform(low, high))
        return self.default

    def perturb(self, value: Any, factors: Sequence[float], rng: np.random.Generator) -> Any:
        """Return a value near `value`: a number times one of the factors, or a neighbor in `choices`."""
        if self.choices is not None:
            step = int(rng.choice((-1, 1)))
            position = self.choices.index(value) + step if value in self.choices else 0
            return self.choices[min(max(position, 0), len(self.choices) - 1)]
        return self._limit(value * float(rng.choice(factors)))

    def _limit(self, number: float) -> float | int:
        """Return the nearest number within the bounds, rounded if the setting is an integer."""
        low, high = self.bounds or (-np.inf, np.inf)
        limited = min(max(number, low), high)
        return round(limited) if self.is_integer else float(limited)


@dataclass(frozen=True, kw_only=True)
class SettingSpaces:
    """The spaces of all settings that differ between the members of a population.

    Attributes:
        by_path: the space of each setting, by its path.
        accepts: returns whether a setting, given its path, can have a value.
    """

    by_path: Mapping[str, SettingSpace]
    accepts: Callable[[str, Any], bool] = lambda path, value: True

    def sample(self, rng: np.random.Generator, counts: Mapping[str, Sequence[int]] | None = None) -> dict[str, Any]:
        """Return a random value of each setting; the default where the setting cannot have the value.

        Args:
            rng: the generator.
            counts: counts of the choices by path, as in `SettingSpace.sample`.
        """
        return {path: self._sample_one(path, rng, (counts or {}).get(path)) for path in self.by_path}

    def perturb(
        self,
        settings: Mapping[str, Any],
        factors: Sequence[float],
        resample_probability: float,
        rng: np.random.Generator,
    ) -> dict[str, Any]:
        """Return the settings of a member that has copied another one: each is perturbed or, at times, sampled again.

        Args:
            settings: the settings of the member that was copied; a setting that cannot have the new value keeps these.
            factors: a number is multiplied by one of these factors.
            resample_probability: probability that a setting is sampled again instead, if it has a distribution.
            rng: the generator.
        """
        changed = {}
        for path, space in self.by_path.items():
            if rng.random() < resample_probability and space.has_distribution:
                changed[path] = self._sample_one(path, rng)
            else:
                value = space.perturb(settings[path], factors, rng)
                changed[path] = value if self.accepts(path, value) else settings[path]
        return changed

    def _sample_one(self, path: str, rng: np.random.Generator, counts: Sequence[int] | None = None) -> Any:
        space = self.by_path[path]
        value = space.sample(rng, counts)
        return value if self.accepts(path, value) else space.default


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


def fit_weights(
    elites: Iterable[np.ndarray], max_std: float = MAX_STD, min_std: float = MIN_STD
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return mean and standard deviation over the weights of elites; None if fewer than two are finite.

    Elites with weights that are NaN or infinite are skipped.

    Args:
        elites: the weights of each elite, of the same shape.
        max_std: upper limit of each standard deviation.
        min_std: lower limit of each standard deviation.
    """
    finite = [weights for weights in elites if np.isfinite(weights).all()]
    if len(finite) < MIN_ELITES:
        return None
    stacked = np.stack(finite).astype(np.float64)
    return stacked.mean(axis=0), stacked.std(axis=0).clip(min_std, max_std)


def draw_weights(mean: np.ndarray, std: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return weights that are drawn from a normal distribution."""
    return rng.normal(mean, std).astype(np.float32)


def find_least_selected(selected: Sequence[int], threshold: int) -> int | None:
    """Return the member to replace: the least selected, if its count is `threshold` below the mean count.

    Args:
        selected: the number of steps in which each member was an elite.
        threshold: the difference; -1: never.
    """
    least = int(np.argmin(selected))
    return least if threshold != -1 and np.mean(selected) - selected[least] >= threshold else None
