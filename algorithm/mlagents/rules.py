"""What may become of a key of a trainer configuration, and what its value has to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass

USE_DEFAULT = object()  # what a conversion returns where our default is right
Converter = Callable[[Any], Any]  # gives the value back; raises ValueError, saying what it must be
Convert = Callable[[Any, "Given"], Any]


class UnsupportedValue(Exception):
    """A value without a counterpart; the message says why."""


@dataclass(frozen=True)
class MapsTo:
    """The value becomes that of `setting`, and of `other_settings`, in which `agent.` stands for the algorithm's section.

    `default` is ML-Agents' own, where leaving the key out would otherwise mean something else here. `mlagents_default` is
    ML-Agents' own, too, but ours stays where the key is left out; a note names both where they differ. `convert` may
    return KEEP, and raise UnsupportedValue, or ValueError for a value that ML-Agents would refuse too.
    """

    setting: str
    converter: Converter
    convert: Convert = lambda value, config: value
    default: Any = None
    other_settings: tuple[str, ...] = ()
    mlagents_default: Any = None


@dataclass(frozen=True)
class Consumed:
    """The value decides the algorithm, or a line of nn.py; `check` may raise UnsupportedValue."""

    converter: Converter
    check: Convert = lambda value, config: None


@dataclass(frozen=True)
class Unsupported:
    """No counterpart, for this reason; at one of the values `supported_values`, nothing is lost.

    `converter` is what ML-Agents needs the value to be. Of a section, ML-Agents refuses keys that no row has if it is
    `strict`, and it needs those `required`.
    """

    reason: str
    supported_values: tuple[Any, ...] = ()
    converter: Converter = lambda value: value
    strict: bool = False
    required: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rejected:
    """ML-Agents refuses the key, for this reason."""

    reason: str


Rule = MapsTo | Consumed | Unsupported | Rejected
Rules = Mapping[str, Rule]


def to_number(value: Any) -> float:
    """Any number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("it must be a number")
    return value


def to_integer(value: Any) -> int:
    """A whole number, also where it is written as 5.0e6."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
        raise ValueError("it must be a whole number")
    return int(value)


def make_positive(converter: Converter) -> Converter:
    """Those of a kind that are above 0."""

    def check(value: Any) -> Any:
        if converter(value) <= 0:
            raise ValueError("it must be above 0")
        return converter(value)

    return check


def to_bool(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("it must be true or false")
    return value


def to_text(value: Any) -> str:
    """Any text; a bare number is one."""
    if isinstance(value, (bool, dict, list)):
        raise ValueError("it must be text")
    return str(value)


def to_text_list(value: Any) -> list[str]:
    """A list of texts."""
    if not isinstance(value, list):
        raise ValueError("it must be a list")
    return [to_text(item) for item in value]


def make_choice(*words: str) -> Converter:
    """Return a kind that accepts one of these words, in lower case as ML-Agents requires."""

    def check(value: Any) -> str:
        if value not in words:
            raise ValueError(f"there is {', '.join(words)}")
        return value

    return check


def make_unsupported_section(
    path: str, reason: str, *, strict: bool = False, required: tuple[str, ...] = (), **keys: Converter
) -> Rules:
    """Return the rows of a section that is lost as a whole, with the kind of each of its keys."""
    own = {f"{path}.{key}": Unsupported(reason, converter=converter) for key, converter in keys.items()}
    return {path: Unsupported(reason, strict=strict, required=required), **own}
