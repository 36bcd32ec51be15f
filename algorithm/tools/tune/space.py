"""The space of a search: checked before the first trial, and sampled for each trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from algorithm.config.loader import Settings, find_failure, resolve
from algorithm.config.search import SPACE, Choices, Dimension, NumberRange, iterate_dimensions, read_space
from algorithm.config.yaml_layers import Layer, Tree, merge, nest
from algorithm.errors import UserError

# Settings that trials share, with what to use instead: otherwise trials could not be compared.
FIXED = {
    "goal": "a search compares trials by the same goal",
    "tune": "it describes the search itself",
    "base_config.name": "the study has this name",
    "base_config.seed": "tune.seeds is the number of seeds of each trial",
    "base_config.max_step": "trials are compared at the same number of env steps",
    "base_config.max_iter": "trials are compared at the same number of env steps",
    "base_config.evaluate_every": "trials are compared at the same env steps",
    "base_config.evaluate_greedy": "trials are compared by the same evaluation",
}
Values = dict[str, Any]  # by the paths of settings


class SearchSpace:
    """The space of `tune.space`, on top of the settings that all trials share.

    Args:
        layers: the settings that all trials share, with the space.
        own: those of the settings that were written for this search, and so must have an effect; other dimensions
            without an effect are left out.

    Attributes:
        dimensions: the dimensions, choices first.

    Raises:
        UserError: the space is empty, or a dimension cannot be searched: a setting that is unknown or shared by all
            trials, a value that the setting does not allow, a setting without effect.
    """

    def __init__(self, layers: Sequence[Layer], own: Sequence[Layer]):
        self.layers = list(layers)
        self.dimensions: list[Dimension] = []
        all_dimensions = read_space(resolve(self.layers).tune.space, layers)
        spaces = [(tree.get("tune") or {}).get("space") or {} for _, tree in own]
        written = {path for space in spaces for path, _ in iterate_dimensions(space)}
        for dimension in all_dimensions:
            failure = _check_dimension(dimension, all_dimensions, layers)
            if failure is None:
                self.dimensions.append(_convert_limits(dimension, layers))
            elif dimension.path in written:
                raise UserError(f"{dimension.source}: {SPACE}: {dimension.path} {failure}")
        if not self.dimensions:
            raise UserError(f"{layers[0][0]}: {SPACE} is empty; name settings there, such as acer_config.learning_rate")

    def sample(self, trial: Any) -> Values:
        """Return the values of a trial of Optuna, without settings that have no effect with the values before them."""
        values: Values = {}
        for dimension in self.dimensions:
            if self._explain_failure(dimension.path, values) is None:
                values[dimension.path] = dimension.sample(trial)
        return values

    def _explain_failure(self, path: str, values: Values) -> str | None:
        """Return why a setting has no effect with these values, to follow its name; None if it has an effect."""
        try:
            settings = resolve([*self.layers, (SPACE, make_tree(values))])
        except UserError:  # the values need others, which are sampled later
            return None
        return find_failure(settings, path)


def make_tree(values: Mapping[str, Any]) -> Tree:
    """Return the settings of a trial as a tree."""
    tree: Tree = {}
    for path, value in values.items():
        tree = merge(tree, nest(path, value))
    return tree


def _check_dimension(dimension: Dimension, all_dimensions: Sequence[Dimension], layers: Sequence[Layer]) -> str | None:
    """Return why a dimension has no effect, to follow its path; None if it has one, perhaps with another's choice.

    Raises:
        UserError: it cannot be searched.
    """
    path, place = dimension.path, f"{dimension.source}: {SPACE}"
    if reason := FIXED.get(path) or FIXED.get(path.partition(".")[0]):
        raise UserError(f"{place}: {path} cannot be searched: {reason}")
    others = [other for other in all_dimensions if isinstance(other, Choices) and other is not dimension]
    contexts = [{}, *(nest(other.path, value) for other in others for value in other.values)]
    for value in dimension.values:
        errors: list[UserError] = []
        failures: list[str | None] = []
        for context in contexts:
            try:
                settings = resolve([*layers, (place, merge(context, nest(path, value)))])
            except UserError as error:
                errors.append(error)
                continue
            failures.append(find_failure(settings, path))
            if failures[-1] is None:
                break
        if not failures:
            text = str(errors[0]).removeprefix(f"{place}: ")
            raise UserError(f"{place}: {text}") from errors[0]
        if failures[-1] is not None:
            return failures[0]
    return None


def _convert_limits(dimension: Dimension, layers: Sequence[Layer]) -> Dimension:
    """Return a dimension with limits of the type of its setting: a range of 0 to 1 may be one of numbers.

    They are unchanged if settings without these values determine the type.
    """
    if not isinstance(dimension, NumberRange):
        return dimension
    limits: list[float] = []
    for limit in dimension.values:
        try:
            found = find_value(resolve([*layers, (SPACE, nest(dimension.path, limit))]), dimension.path)
        except UserError:
            found = limit
        limits.append(found if isinstance(found, int | float) else limit)
    low, high = limits if all(isinstance(limit, int) for limit in limits) else map(float, limits)
    return replace(dimension, low=low, high=high)


def find_value(settings: Settings, path: str) -> Any:
    """Return the value of a setting in the typed settings; None if it is not among them."""
    section, *keys = path.split(".")
    owner: Any = settings
    for key in (settings.find_field(section), *keys):
        owner = owner.get(key) if isinstance(owner, Mapping) else getattr(owner, key, None)
    return owner
