"""What may become of a key of a trainer configuration, and what its value has to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from algorithm.mlagents.trainer_config import Given

KEEP = object()  # what a conversion returns where our default is right
Kind = Callable[[Any], Any]  # gives the value back; raises ValueError, saying what it must be
Convert = Callable[[Any, "Given"], Any]


class NotServed(Exception):
    """A value without a counterpart; the message says why."""


@dataclass(frozen=True)
class Becomes:
    """The value becomes that of `setting`, and of `also`, in which `agent.` stands for the algorithm's section.

    `default` is ML-Agents' own, where leaving the key out would otherwise mean something else here. `theirs` is
    ML-Agents' own, too, but ours stays where the key is left out; a note names both where they differ. `convert` may
    return KEEP, and raise NotServed, or ValueError for a value that ML-Agents would refuse too.
    """

    setting: str
    kind: Kind
    convert: Convert = lambda value, given: value
    default: Any = None
    also: tuple[str, ...] = ()
    theirs: Any = None


@dataclass(frozen=True)
class Read:
    """The value decides the algorithm, or a line of nn.py; `check` may raise NotServed."""

    kind: Kind
    check: Convert = lambda value, given: None


@dataclass(frozen=True)
class Lost:
    """No counterpart, for this reason; at one of the values `unless`, nothing is lost.

    `kind` is what ML-Agents needs the value to be. Of a section, ML-Agents refuses keys that no row has if it is
    `strict`, and it needs those `required`.
    """

    reason: str
    unless: tuple[Any, ...] = ()
    kind: Kind = lambda value: value
    strict: bool = False
    required: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refused:
    """ML-Agents refuses the key, for this reason."""

    reason: str


Row = Becomes | Read | Lost | Refused
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
    """Return a kind that accepts one of these words, in lower case as ML-Agents requires."""

    def check(value: Any) -> str:
        if value not in words:
            raise ValueError(f"there is {', '.join(words)}")
        return value

    return check


def section_lost(path: str, reason: str, *, strict: bool = False, required: tuple[str, ...] = (), **keys: Kind) -> Rows:
    """Return the rows of a section that is lost as a whole, with the kind of each of its keys."""
    own = {f"{path}.{key}": Lost(reason, kind=kind) for key, kind in keys.items()}
    return {path: Lost(reason, strict=strict, required=required), **own}
