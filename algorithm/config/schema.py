"""The basis of typed sections of settings, and the conversion of trees to them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    create_model,
    field_validator,
)

from algorithm.annotations import Spellings, get_annotations
from algorithm.config.renamed_settings import find_renamed_value
from algorithm.config.yaml_layers import Layer, Tree, find_source, iterate_paths, load_defaults
from algorithm.errors import UserError

MAX_INTEGER = 2**63 - 1
MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
MAX_SIZE = 2**31 - 1  # elements in memory
SectionType = TypeVar("SectionType", bound="Section")


class Section(BaseModel):
    """A section of typed settings without defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    max_integer: ClassVar[int] = MAX_INTEGER

    @field_validator("*")
    @classmethod
    def _check_size(cls, value: Any) -> Any:
        if isinstance(value, int) and abs(value) > cls.max_integer:
            raise ValueError(f"it must be at most {cls.max_integer:,}")
        if isinstance(value, float) and abs(value) > MAX_FLOAT32:
            raise ValueError(f"it must be at most {MAX_FLOAT32:g}, the largest float32")
        return value


class AgentSection(Section):
    """A section of an algorithm, whose integers are lengths and sizes."""

    max_integer = MAX_SIZE


def read_dataclass(cls: type, values: Tree, section: str, layers: list[Layer]) -> Any:
    """Return the settings of an algorithm from its section of the tree.

    Args:
        cls: Dataclass of the settings.
        values: Values of the section.
        section: Name of the section in messages.
        layers: Layers of the tree, which errors name as the source of a value.

    Raises:
        UserError: A value does not fit its type or bounds, or values do not fit together.
    """
    types, model = _make_model(cls)
    values = {key: _convert_value(types[key], value) for key, value in values.items() if key in types}
    try:
        checked = model.model_validate(values)
    except ValidationError as error:
        raise UserError(describe_validation_error(error, layers, section)) from error
    try:
        return cls(**dict(checked))
    except ValueError as error:
        raise UserError(f"{section}: {error}") from error


@cache
def _make_model(cls: type) -> tuple[Mapping[str, Any], type[AgentSection]]:
    """Return the types of the fields of a dataclass, and the model that checks their values."""
    fields: dict[str, Any] = {key: (hint, ...) for key, hint in get_type_hints(cls, include_extras=True).items()}
    return get_type_hints(cls), create_model(cls.__name__, __base__=AgentSection, **fields)


def normalize_spellings(cls: type, values: Tree) -> Tree:
    """Return the values of a section with the main spelling of each value that has several."""
    words = {
        key: annotation.words
        for key, annotations in get_annotations(cls).items()
        for annotation in annotations
        if isinstance(annotation, Spellings)
    }
    return {key: words.get(key, {}).get(str(value).casefold(), value) for key, value in values.items()}


def read_section(model: type[SectionType], values: Tree) -> SectionType:
    """Return a typed section of the tree. Raises ValidationError."""
    return model.model_validate(_convert_section(model, values))


def _convert_section(model: type[Section], values: Tree) -> Tree:
    """Return the values of a section, and of the sections in it, converted to their types."""
    types = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    converted: Tree = {}
    for key, value in values.items():
        hint = types.get(key)
        if isinstance(value, Mapping) and isinstance(hint, type) and issubclass(hint, Section):
            converted[key] = _convert_section(hint, dict(value))
        else:
            converted[key] = _convert_value(hint, value)
    return converted


def _convert_value(hint: Any, value: Any) -> Any:
    """Return `value` as the type `hint` needs it, if that is possible without loss.

    Words match without case (YAML reads a bare `off` as False), 1e6 is an integer, and 1 is a float.
    """
    if words := find_words(hint):
        spelled = "off" if value is False else str(value)
        return next((word for word in words if word.casefold() == spelled.casefold()), value)
    types = get_args(hint) or (hint,)
    if isinstance(value, float) and value.is_integer() and int in types and float not in types:
        return int(value)
    if type(value) is int and float in types and int not in types:
        return float(value)
    return value


def find_words(hint: Any) -> tuple[str, ...]:
    """Return the words that the type `hint` allows."""
    if get_origin(hint) in (Union, UnionType):
        return tuple(word for one in get_args(hint) for word in find_words(one))
    return get_args(hint) if get_origin(hint) is Literal else ()


def describe_validation_error(error: ValidationError, layers: list[Layer], section: str | None = None) -> str:
    """Return one line on the first value that does not fit, and the layer that set it."""
    first = error.errors()[0]
    section = section or error.title
    location = [str(part) for part in first["loc"] if isinstance(part, str) and "[" not in part]
    if not location:  # values that do not fit together
        return f"{section}: {first['ctx']['error']}"
    path = f"{section}.{'.'.join(location[:2])}"
    if path not in iterate_paths(load_defaults()):
        path = f"{section}.{location[0]}"
    source = find_source(layers, path)
    if advice := find_renamed_value(path, first["input"]):
        return f"{source}: {path} is {first['input']!r}; {advice}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{source}: {path} is {first['input']!r}; {message[0].lower()}{message[1:]}"
