"""The settings that differ between the members of a population, and their values, as `random_params` describes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from algorithm.annotations import FixedOnResume
from algorithm.config.loader import Settings, resolve
from algorithm.config.unused_settings import find_failure, iterate_annotations
from algorithm.config.yaml_layers import Tree, iterate_leaves, nest
from algorithm.errors import UserError
from algorithm.population.evolution import SettingSpace, SettingSpaces

SPACE_KEYS = ("in", "truncated", "std")  # the keys of a space in `random_params`
# Settings and sections whose values the population determines.
NOT_RANDOM = (
    *(f"base_config.{name}" for name in ("seed", "name", "max_step", "runtime")),
    *("goal", "population_config", "cluster_config"),
)


def make_spaces(settings: Settings) -> SettingSpaces:
    """Return the settings that differ between members. Raises UserError if members cannot exchange them."""
    by_path = _read_spaces(settings.population.random_params, settings.tree)
    for path, space in by_path.items():
        where = f"population_config.random_params.{path}"
        if failure := find_failure(settings, path):
            raise UserError(f"{where}: {path} {failure}")
        for note, owner in iterate_annotations(settings, path):
            if isinstance(note, FixedOnResume) and note.forbids(space.default, None, owner):
                raise UserError(f"{where}: members that exchange weights need the same value: {note.reason}")
        for value in (*(space.choices or ()), *(space.bounds or ())):
            resolve([("settings", settings.tree), (where, nest(path, value))])  # raises UserError
    return SettingSpaces(by_path=by_path, accepts=partial(_accepts, settings))


def _accepts(settings: Settings, path: str, value: Any) -> bool:
    """Return whether a setting of a population can have a value."""
    try:
        resolve([("settings", settings.tree), ("random_params", nest(path, value))])
    except UserError:
        return False
    return True


def _read_spaces(random_params: Mapping[str, Any], tree: Tree) -> dict[str, SettingSpace]:
    """Return the space of each setting in `random_params`, whose paths may be nested or joined by dots.

    Args:
        random_params: the setting.
        tree: the complete settings of the population, with the default of each space.

    Raises:
        UserError: a setting is unknown, or a space cannot be used.
    """
    known = set(iterate_leaves(tree))
    spaces = {}
    for path, values in _iterate_spaces(random_params, ""):
        where = f"population_config.random_params.{path}"
        if {path, path.partition(".")[0]} & set(NOT_RANDOM) or not _is_setting(path, known, tree):
            raise UserError(f"{where}: members cannot have different values of {path}; name a setting of the run")
        spaces[path] = _read_space(where, values, _get_value(tree, path))
    return spaces


def _iterate_spaces(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield path and space of each setting."""
    for key, value in values.items():
        path = f"{prefix}{key}"
        if value is None or (isinstance(value, Mapping) and set(value) <= set(SPACE_KEYS)):
            yield path, value or {}
        elif isinstance(value, Mapping):
            yield from _iterate_spaces(value, f"{path}.")
        else:
            raise UserError(
                f"population_config.random_params.{path} is {value!r}; it must be a mapping with in, truncated or std"
            )


def _is_setting(path: str, known: set[str], tree: Tree) -> bool:
    """Return whether a path names a setting, or a value in a section with arbitrary keys."""
    if path in known:
        return True
    parents = [path[:position] for position, letter in enumerate(path) if letter == "."]
    return any(parent in known for parent in parents) and _get_value(tree, path) is not None


def _get_value(tree: Mapping[str, Any], path: str) -> Any:
    """Return the value of a setting in a tree; None if it has none."""
    value: Any = tree
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _read_space(where: str, values: Mapping[str, Any], default: Any) -> SettingSpace:
    """Return the space of a setting. Raises UserError if its values do not fit."""
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
