"""The section `tune`: a search for settings, and the space in which it searches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from algorithm.config.yaml_layers import OPEN_MAPPINGS, Layer, find_source, format_value, iterate_paths, load_defaults
from algorithm.errors import UserError

SPACE = "tune.space"  # path of the space
NUMBER_KEYS, CHOICE_KEYS = {"low", "high", "log"}, {"choices"}
DIGITS = 4  # significant digits of sampled numbers, so that a variant with them can be read


@dataclass(frozen=True, kw_only=True)
class NumberRange:
    """A setting that is searched between two numbers."""

    path: str
    source: str  # of this part of the space, for messages
    low: float
    high: float
    log: bool  # whether the logarithm is uniform, instead of the number

    @property
    def values(self) -> list[Any]:
        """Return the values that stand for the range in checks: its limits."""
        return [self.low, self.high]

    def sample(self, trial: Any) -> Any:
        """Return a value for a trial of Optuna: an integer if both limits are integers, else with `DIGITS` digits."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(self.path, self.low, self.high, log=self.log)
        value = trial.suggest_float(self.path, self.low, self.high, log=self.log)
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)


@dataclass(frozen=True, kw_only=True)
class Choices:
    """A setting that is searched among values."""

    path: str
    source: str  # of this part of the space, for messages
    values: list[Any]

    def sample(self, trial: Any) -> Any:
        """Return a value for a trial of Optuna, which records the value as YAML."""
        by_text = {format_value(value): value for value in self.values}
        return by_text[trial.suggest_categorical(self.path, list(by_text))]


Dimension = NumberRange | Choices


def read_space(tree: Mapping[str, Any], layers: Sequence[Layer]) -> list[Dimension]:
    """Return the dimensions of a space; choices come first, since other settings may depend on them.

    Args:
        tree: the setting `tune.space`; paths may be nested, as --set nests them.
        layers: layers of the settings, which errors name as the source.

    Raises:
        UserError: a dimension is neither a range of numbers nor a list of choices, or null for an unknown setting.
    """
    entries, known = dict(iterate_dimensions(tree)), set(iterate_paths(load_defaults()))
    for path, value in entries.items():
        if value is None and path not in known and not path.startswith(OPEN_MAPPINGS):
            raise UserError(f"{find_source(list(layers), f'{SPACE}.{path}')}: {SPACE}: unknown setting {path}")
    found = [_read_dimension(path, value, layers) for path, value in entries.items() if value is not None]
    return sorted(found, key=lambda dimension: isinstance(dimension, NumberRange))


def iterate_dimensions(
    tree: Mapping[str, Any], prefix: str = "", keys: Collection[str] = NUMBER_KEYS | CHOICE_KEYS
) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each dimension of a space, whose paths may be nested; a dimension has some of `keys`."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and not set(value) & set(keys):
            yield from iterate_dimensions(value, f"{path}.", keys)
        else:
            yield path, value


def _read_dimension(path: str, value: Any, layers: Sequence[Layer]) -> Dimension:
    """Return a dimension. Raises UserError."""
    source = find_source(list(layers), f"{SPACE}.{path}")
    keys = set(value) if isinstance(value, Mapping) else set()
    place = f"{source}: {SPACE}: {path}"
    if keys == CHOICE_KEYS:
        values = value["choices"]
        if not isinstance(values, list) or len(values) < 2:
            raise UserError(f"{place}: choices is {format_value(values)}; it must be a list of at least two values")
        texts = [format_value(each) for each in values]
        if repeated := [text for text in texts if texts.count(text) > 1]:
            raise UserError(f"{place}: choices contains {repeated[0]} twice")
        return Choices(path=path, source=source, values=values)
    if not {"low", "high"} <= keys or not keys <= NUMBER_KEYS:
        raise UserError(
            f"{place} is {format_value(value)}; it must be {{low: ..., high: ...}}, with log: true for a search in "
            "the logarithm, or {choices: [...]}"
        )
    low, high, log = value["low"], value["high"], value.get("log", False)
    for name, limit in (("low", low), ("high", high)):
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not isfinite(limit):
            raise UserError(f"{place}: {name} is {format_value(limit)}; it must be a number")
    if not isinstance(log, bool):
        raise UserError(f"{place}: log is {format_value(log)}; it must be true or false")
    if low >= high:
        raise UserError(f"{place}: low {format_value(low)} must be below high {format_value(high)}")
    if log and low <= 0:
        raise UserError(f"{place}: low is {format_value(low)}; with log: true it must be above 0")
    return NumberRange(path=path, source=source, low=low, high=high, log=log)
