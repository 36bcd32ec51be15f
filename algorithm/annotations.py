"""Annotations for the fields of settings: bounds, conditions, values that stay on resume, spellings of values.

`Annotated[float, Range(above=0), OnlyIf(estimator="vtrace")]` is a setting with a lower bound that only this estimator
reads.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints


@dataclass(frozen=True, kw_only=True)
class Range:
    """A range of allowed numbers, which null is not checked against; `note` explains its last limit in messages."""

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    note: str = ""

    def __str__(self) -> str:
        if self.at_least is not None and self.at_most is not None:
            text = f"from {_text(self.at_least)} to {_text(self.at_most)}"
        else:
            limits = {"above": self.above, "at least": self.at_least, "below": self.below, "at most": self.at_most}
            text = " and ".join(f"{name} {_text(limit)}" for name, limit in limits.items() if limit is not None)
        return f"{text}, {self.note}" if self.note else text

    def check(self, value: float | None) -> float | None:
        """Return `value`. Raises ValueError if it is out of the range."""
        if value is not None and (
            (self.above is not None and not value > self.above)
            or (self.at_least is not None and not value >= self.at_least)
            or (self.below is not None and not value < self.below)
            or (self.at_most is not None and not value <= self.at_most)
        ):
            raise ValueError(f"it must be {self}")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        """Return pydantic's schema of the annotated type, followed by `check`."""
        from pydantic_core.core_schema import no_info_after_validator_function

        return no_info_after_validator_function(self.check, handler(source))


class Condition(ABC):
    """A condition on other settings: a value for each name, or a tuple of alternatives.

    Args:
        section: the section of the other settings; None for the section of the setting itself.
        values: their values.
    """

    section: str | None = None

    def __init__(self, section: str | None = None, /, **values: Any):
        self.section = section
        self.values = {name: value if isinstance(value, tuple) else (value,) for name, value in values.items()}

    @abstractmethod
    def explain_failure(self, settings: Any) -> str | None:
        """Return why a setting has no effect with `settings`, to follow its name; None if it has an effect."""


class OnlyIf(Condition):
    """A condition for a setting that has an effect only if every named setting has such a value."""

    def __str__(self) -> str:
        return "only with " + " and ".join(f"{name} {_join_values(values)}" for name, values in self.values.items())

    def explain_failure(self, settings: Any) -> str | None:
        for name, values in self.values.items():
            value = getattr(settings, name)
            if fold_case(value) not in map(fold_case, values):
                return f"is for {name} {_join_values(values)}, not for {_text(value)}, and so has no effect"
        return None


class Unless(Condition):
    """A condition for a setting that has no effect if any named setting has such a value."""

    def __str__(self) -> str:
        return "not with " + " or ".join(f"{name} {_join_values(values)}" for name, values in self.values.items())

    def explain_failure(self, settings: Any) -> str | None:
        for name, values in self.values.items():
            value = getattr(settings, name)
            if fold_case(value) in map(fold_case, values):
                return f"has no effect, since {name} is {_text(value)}"
        return None


class Includes(Condition):
    """A condition for a setting that has an effect only if a named setting, a list, includes a value."""

    def __str__(self) -> str:
        return "only with " + " and ".join(f"{_join_values(value)} in {name}" for name, value in self.values.items())

    def explain_failure(self, settings: Any) -> str | None:
        for name, (value,) in self.values.items():
            if value not in getattr(settings, name):
                return f"is for {name} with {_text(value)}, and so has no effect"
        return None


class AnyOf(Condition):
    """A condition for a setting that has an effect if any of several conditions holds."""

    def __init__(self, *conditions: Condition):
        self.conditions = conditions

    def __str__(self) -> str:
        return ", or ".join(map(str, self.conditions))

    def explain_failure(self, settings: Any) -> str | None:
        failures = [condition.explain_failure(settings) for condition in self.conditions]
        return None if None in failures else failures[0]


class ForActions:
    """A condition for a setting that has an effect only on agents with actions of one kind.

    Args:
        field: Field of ActionSpec that describes such actions.
        name: Name of the kind in messages.
    """

    def __init__(self, field: str, name: str):
        self.field, self.name = field, name

    def __str__(self) -> str:
        return f"only for {self.name} actions"

    def explain_failure(self, specs: Iterable[Any]) -> str | None:
        """Return why a setting has no effect on agents with these action specs, to follow its name."""
        if any(getattr(spec, self.field) for spec in specs):
            return None
        return f"is for {self.name} actions, which the environment does not have, and so has no effect"


CONTINUOUS, DISCRETE = ForActions("continuous", "continuous"), ForActions("branches", "discrete")


@dataclass(frozen=True)
class FixedOnResume:
    """A mark of a setting that `--resume` cannot change.

    Attributes:
        reason: What the saved state depends on.
        when: Condition under which it does; None for always.
        involving: Value of the setting that it cannot be changed from or to; None for any value.
    """

    reason: str
    when: Condition | None = None
    involving: str | None = None

    def __str__(self) -> str:
        change = f"from or to {self.involving}: " if self.involving else ""
        return f"{change}{self.reason} ({self.when})" if self.when else f"{change}{self.reason}"

    def forbids(self, before: Any, after: Any, settings: Any) -> bool:
        """Return whether a change is not possible; `settings` is the section of the setting after it."""
        is_involved = self.involving is None or self.involving in (before, after)
        return is_involved and (self.when is None or self.when.explain_failure(settings) is None)


class Spellings:
    """Other spellings of the values of a setting, in lower case: `Spellings(q="action_value")`."""

    def __init__(self, **words: str):
        self.words = words


@cache
def get_annotations(cls: type) -> Mapping[str, tuple[Any, ...]]:
    """Return the annotations of each field of a class, without its type."""
    hints = get_type_hints(cls, include_extras=True)
    return {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}


def fold_case(value: Any) -> Any:
    """Return a value as it is compared: words match without case."""
    return value.casefold() if isinstance(value, str) else value


def _join_values(values: tuple[Any, ...]) -> str:
    return " or ".join(map(_text, values))


def _text(value: Any) -> str:
    """Return a value as it is written in YAML, with commas in large integers."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)
