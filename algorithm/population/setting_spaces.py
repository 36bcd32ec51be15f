"""The settings that differ between the members of a population, and their values, as `random_params` describes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from algorithm.annotations import FixedOnResume
from algorithm.config.loader import Settings, find_failure, iterate_annotations, resolve
from algorithm.config.search import iterate_dimensions
from algorithm.config.sections import PopulationConfig
from algorithm.config.yaml_layers import Tree, find_value, iterate_settings, nest
from algorithm.errors import UserError

SPACE_KEYS = ("in", "truncated", "std")  # the keys of a space in `random_params`
# Settings and sections whose values the population determines.
NOT_RANDOM = (
    *(f"base_config.{name}" for name in ("seed", "name", "max_step", "runtime")),
    *("goal", "population_config", "cluster_config"),
)


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

        `counts` are the parameters of the Dirichlet distribution of the probabilities of `choices`; None: all 1.
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
        """Return a random value of each setting; the default where the setting cannot have the value."""
        return {path: self._sample_one(path, rng, (counts or {}).get(path)) for path in self.by_path}

    def perturb(
        self, settings: Mapping[str, Any], config: PopulationConfig, rng: np.random.Generator
    ) -> dict[str, Any]:
        """Return the settings of a member that has copied another one, with `settings`.

        Each is perturbed by `perturb_factors`, unless it cannot have the new value. A setting with a distribution is
        sampled again instead with `resample_probability`.
        """
        changed = {}
        for path, space in self.by_path.items():
            if rng.random() < config.resample_probability and space.has_distribution:
                changed[path] = self._sample_one(path, rng)
            else:
                value = space.perturb(settings[path], config.perturb_factors, rng)
                changed[path] = value if self.accepts(path, value) else settings[path]
        return changed

    def _sample_one(self, path: str, rng: np.random.Generator, counts: Sequence[int] | None = None) -> Any:
        space = self.by_path[path]
        value = space.sample(rng, counts)
        return value if self.accepts(path, value) else space.default


def make_spaces(settings: Settings) -> SettingSpaces:
    """Return the settings that differ between members, whose paths may be nested or joined by dots.

    Raises:
        UserError: a setting is unknown, a space cannot be used, or members cannot exchange the values.
    """
    by_path = {}
    for path, values in iterate_dimensions(settings.population.random_params, keys=SPACE_KEYS):
        where = f"population_config.random_params.{path}"
        if {path, path.partition(".")[0]} & set(NOT_RANDOM) or not _is_setting(path, settings.tree):
            raise UserError(f"{where}: members cannot have different values of {path}; name a setting of the run")
        by_path[path] = space = _read_space(where, values, find_value(settings.tree, path))
        if failure := find_failure(settings, path):
            raise UserError(f"{where}: {path} {failure}")
        for note, owner in iterate_annotations(settings, path):
            if isinstance(note, FixedOnResume) and note.forbids(space.default, None, owner):
                raise UserError(f"{where}: members that exchange weights need the same value: {note.reason}")
        for value in (*(space.choices or ()), *(space.bounds or ())):
            resolve([("settings", settings.tree), (where, nest(path, value))])
    return SettingSpaces(by_path=by_path, accepts=partial(_accepts, settings))


def _accepts(settings: Settings, path: str, value: Any) -> bool:
    """Return whether a setting of a population can have a value."""
    try:
        resolve([("settings", settings.tree), ("random_params", nest(path, value))])
    except UserError:
        return False
    return True


def _is_setting(path: str, tree: Tree) -> bool:
    """Return whether a path names a setting, or a value in a section with arbitrary keys."""
    known = {leaf for leaf, _ in iterate_settings(tree)}
    parents = [path[:position] for position, letter in enumerate(path) if letter == "."]
    return path in known or (not known.isdisjoint(parents) and find_value(tree, path) is not None)


def _read_space(where: str, values: Any, default: Any) -> SettingSpace:
    """Return the space of a setting. Raises UserError if its values do not fit."""
    values = {} if values is None else values
    if not isinstance(values, Mapping) or not set(values) <= set(SPACE_KEYS):
        raise UserError(f"{where} is {values!r}; it must be a mapping with in, truncated or std")
    choices, bounds, std = (values.get(key) for key in SPACE_KEYS)
    if choices is not None:
        if not isinstance(choices, list) or len(choices) < 2:
            raise UserError(f"{where}.in is {choices!r}; it must be a list of at least two values")
        if bounds is not None or std is not None:
            raise UserError(f"{where} has in; truncated and std are for numbers without it")
        return SettingSpace(default=default, choices=tuple(choices))
    if not _is_number(default):
        raise UserError(f"{where}: the setting is {default!r}, not a number; give its values with in: [...]")
    if bounds is not None:
        if not isinstance(bounds, list) or len(bounds) != 2 or not all(map(_is_number, bounds)):
            raise UserError(f"{where}.truncated is {bounds!r}; it must be a list of two numbers")
        if not bounds[0] < bounds[1]:
            raise UserError(f"{where}.truncated is {bounds!r}; its first number must be below its second")
        bounds = (bounds[0], bounds[1])
    if std is not None and not (_is_number(std) and std > 0):
        raise UserError(f"{where}.std is {std!r}; it must be a number above 0")
    return SettingSpace(default=default, bounds=bounds, std=std)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
