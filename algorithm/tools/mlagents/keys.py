"""Sections of typed keys of a trainer configuration, each with what it becomes here.

The field of a key is `to` for a key that becomes a setting, `lost` for one without a counterpart; any other key
determines the algorithm or a line of nn.py. A default is that of ML-Agents; `UNSET` is Samara's default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WrapValidator
from pydantic_core import ErrorDetails
from typing_extensions import Self

from algorithm.annotations import Range
from algorithm.config.sections import describe_failure
from algorithm.config.yaml_layers import Layer, find_source, merge
from algorithm.errors import UserError

UNSET: Any = None
IGNORED = "ML-Agents has no such key and ignores it"
RULE = "rule"  # the name of the rule of a key in its field
USE_DEFAULT = object()  # returned by a conversion if Samara's default applies


class UnsupportedValue(Exception):
    """An error for a value without a counterpart.

    Args:
        reason: The message.
        used_value: The value of the setting; by default Samara's default.
    """

    def __init__(self, reason: str, used_value: Any = USE_DEFAULT):
        super().__init__(reason)
        self.used_value = used_value


@dataclass(frozen=True)
class To:
    """The rule of a key whose value becomes the value of a setting.

    Attributes:
        setting: Path of the setting; `agent.` means the section of the algorithm.
        convert: Returns the value of the setting, or USE_DEFAULT. It may raise UnsupportedValue.
        others: Paths of further settings with the same value.
        engine_default: ML-Agents' default, which is not written if the key is missing; a note names both defaults.
    """

    setting: str
    convert: Callable[[Any, Any], Any] = lambda value, configuration: value
    others: tuple[str, ...] = ()
    engine_default: Any = None


@dataclass(frozen=True)
class Lost:
    """The rule of a key without a counterpart.

    Attributes:
        reason: Why the key has no counterpart.
        unless: Values for which nothing is missing.
        condition: Whether the key is lost in a configuration.
    """

    reason: str
    unless: tuple[Any, ...] = ()
    condition: Callable[[Any], bool] = lambda configuration: True


def to(*arguments: Any, default: Any = UNSET, **further: Any) -> Any:
    """Return a field with the rule `To` of these arguments; the default is written if the key is missing."""
    return Field(default, json_schema_extra={RULE: To(*arguments, **further)})  # type: ignore[dict-item]


def lost(*arguments: Any, default: Any = UNSET) -> Any:
    """Return a field with the rule `Lost` of these arguments."""
    return Field(default, json_schema_extra={RULE: Lost(*arguments)})  # type: ignore[dict-item]


class Keys(BaseModel):
    """A section of keys. ML-Agents rejects unknown keys, unless the section allows them.

    Attributes:
        lost_reason: Why all keys without a rule, and all unknown ones, have no counterpart; None if they have one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    lost_reason: ClassVar[str | None] = None

    def iterate(self, above: str = "") -> Iterator[tuple[str, Any, bool, To | Lost | None]]:
        """Yield the path and value of each key, whether the file has it, and its rule."""
        default = Lost(self.lost_reason) if self.lost_reason else None
        for name, field in type(self).model_fields.items():
            path, value, is_given = f"{above}{name}", getattr(self, name), name in self.model_fields_set
            rule: Any = (field.json_schema_extra or {}).get(RULE, default)  # type: ignore[union-attr]
            if isinstance(value, Keys):
                yield from value.iterate(f"{path}.")
            else:
                yield path, value, is_given, rule
        for name, value in (self.model_extra or {}).items():
            yield f"{above}{name}", value, True, default or Lost(IGNORED)

    @classmethod
    def list_paths(cls, above: str = "") -> Iterator[str]:
        """Yield the path of each key."""
        for name, field in cls.model_fields.items():
            yield f"{above}{name}"
            for kind in (field.annotation, *get_args(field.annotation)):
                if isinstance(kind, type) and issubclass(kind, Keys):
                    yield from kind.list_paths(f"{above}{name}.")

    @classmethod
    def suggest(cls, path: str) -> str:
        """Return a question with a key of the same or a similar name, to follow a message; empty without one."""
        section, _, key = path.rpartition(".")
        known = [(other, *other.rpartition(".")[::2]) for other in cls.list_paths()]
        elsewhere = [other for other, _, name in known if name == key]
        siblings = {name: other for other, place, name in known if place == section}
        found = elsewhere or [siblings[name] for name in get_close_matches(key, list(siblings), 1)]
        return f"; did you mean {found[0]}?" if found else ""

    @classmethod
    def read(cls, file: str, layers: list[Layer]) -> Self:
        """Return the keys in some layers, of which the last has precedence, each with the prefix of its keys.

        Raises:
            UserError: For a file that ML-Agents would reject, with its name and the key.
        """
        try:
            return cls.model_validate(merge({}, *(layer for _, layer in layers)))
        except ValidationError as error:
            raise UserError(f"{file}: {cls._describe_error(error.errors()[0], layers)}") from error

    @classmethod
    def _describe_error(cls, error: ErrorDetails, layers: list[Layer]) -> str:
        location, value = [part for part in error["loc"] if isinstance(part, str)], error["input"]
        path, message = ".".join(location), describe_failure(error["msg"])
        key = f"{find_source(layers, path)}{path}"
        if error["type"] == "missing":
            return f"{'.'.join(location[:-1])} has no {location[-1]}, which ML-Agents requires"
        if error["type"] == "extra_forbidden":
            return f"{key}: {cls.explain_unknown(path)}"
        if value is None:
            return f"{key} has no value, which ML-Agents requires"
        if error["type"] in ("model_type", "dict_type"):
            message = "it must be a mapping of keys"
        return f"{key} is {value!r}; {message}"

    @classmethod
    def explain_unknown(cls, path: str) -> str:
        """Return why ML-Agents rejects an unknown key."""
        return f"ML-Agents has no such key{cls.suggest(path)}"


def make_integer(value: Any) -> Any:
    """Return an integer that is written as 5.0e6."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _keep_value(value: Any, check: Callable[[Any], object]) -> Any:
    """Return a checked number as it is: 1 stays an integer."""
    check(value)
    return value


Integer = Annotated[int, BeforeValidator(make_integer)]
Count = Annotated[Integer, Range(above=0)]
Number = Annotated[float, WrapValidator(_keep_value)]
Positive = Annotated[Number, Range(above=0)]
Text = Annotated[str, Field(strict=False, coerce_numbers_to_str=True)]
Schedule = Literal["linear", "constant"]
