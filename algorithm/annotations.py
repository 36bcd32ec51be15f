"""Annotations for the fields of settings: when a setting has an effect, and other spellings of its values.

`Annotated[float, OnlyIf(estimator="vtrace")]` is a setting that only this estimator reads.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any


class Condition(ABC):
    """Values of other settings in the same section, any of several values where they are a tuple."""

    def __init__(self, **values: Any):
        self.values = {name: value if isinstance(value, tuple) else (value,) for name, value in values.items()}

    @abstractmethod
    def explain_failure(self, settings: Any) -> str | None:
        """Return why a setting has no effect with `settings`, to follow its name; None if it has one."""


class OnlyIf(Condition):
    """A setting has an effect only if every named setting has such a value."""

    def explain_failure(self, settings: Any) -> str | None:
        for name, values in self.values.items():
            value = getattr(settings, name)
            if not _is_among(value, values):
                needed = " or ".join(map(_text, values))
                return f"is for {name} {needed}, not for {_text(value)}, and so has no effect"
        return None


class Unless(Condition):
    """A setting has no effect if any named setting has such a value."""

    def explain_failure(self, settings: Any) -> str | None:
        for name, values in self.values.items():
            value = getattr(settings, name)
            if _is_among(value, values):
                return f"has no effect, since {name} is {_text(value)}"
        return None


class ForActions:
    """A setting has an effect only where an agent has actions of a `kind`, as its ActionSpec names them."""

    def __init__(self, kind: str, name: str):
        self.kind, self.name = kind, name

    def explain_failure(self, specs: Iterable[Any]) -> str | None:
        """Return why a setting has no effect on agents with such action specs, to follow its name."""
        if any(getattr(spec, self.kind) for spec in specs):
            return None
        return f"is for {self.name} actions, which the environment does not have, and so has no effect"


class Spellings:
    """Other spellings of the values of a setting, in lower case: `Spellings(q="action_value")`."""

    def __init__(self, **words: str):
        self.words = words


CONTINUOUS, DISCRETE = ForActions("continuous", "continuous"), ForActions("branches", "discrete")


def _is_among(value: Any, values: tuple[Any, ...]) -> bool:
    """Return whether `value` is one of `values`; words match without case."""
    return _fold(value) in map(_fold, values)


def _fold(value: Any) -> Any:
    return value.casefold() if isinstance(value, str) else value


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)
