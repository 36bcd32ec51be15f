"""What may become of a key of a trainer configuration, and what its value has to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from algorithm.experiment.mlagents.given import Given

KEEP = object()  # what a conversion returns where our default is right
Kind = Callable[[Any], Any]  # gives the value back; raises ValueError, saying what it must be
Convert = Callable[[Any, "Given"], Any]


class NotServed(Exception):
    """A value without a counterpart; the message says why."""


@dataclass(frozen=True)
class Becomes:
    """The value becomes that of `setting`, and of `also`, in which `agent.` stands for the algorithm's section.

    `default` is ML-Agents' own, where leaving the key out would otherwise mean something else here. `convert` may
    return KEEP, and raise NotServed, or ValueError for a value that ML-Agents would refuse too.
    """

    setting: str
    kind: Kind
    convert: Convert = lambda value, given: value
    default: Any = None
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Read:
    """The value decides the algorithm, or a line of nn.py; `check` may raise NotServed."""

    kind: Kind
    check: Convert = lambda value, given: None


@dataclass(frozen=True)
class Lost:
    """No counterpart, for this reason; at one of the values `unless`, nothing is lost."""

    reason: str
    unless: tuple[Any, ...] = ()


Row = Becomes | Read | Lost
Rows = Mapping[str, Row]


def number(value: Any) -> float:
    """Any number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("it must be a number")
    return value


def whole(value: Any) -> int:
    """A whole number, also where it is written as 5.0e6."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
        raise ValueError("it must be a whole number")
    return int(value)


def positive(kind: Kind) -> Kind:
    """Those of a kind that are above 0."""

    def check(value: Any) -> Any:
        if kind(value) <= 0:
            raise ValueError("it must be above 0")
        return kind(value)

    return check


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("it must be true or false")
    return value


def text(value: Any) -> str:
    """Any text; a bare number is one."""
    if isinstance(value, (bool, dict, list)):
        raise ValueError("it must be text")
    return str(value)


def texts(value: Any) -> list[str]:
    """A list of texts."""
    if not isinstance(value, list):
        raise ValueError("it must be a list")
    return [text(item) for item in value]


def one_of(*words: str) -> Kind:
    """One of these words, whatever its case."""

    def check(value: Any) -> str:
        if str(value).casefold() not in words:
            raise ValueError(f"there is {', '.join(words)}")
        return str(value).casefold()

    return check
