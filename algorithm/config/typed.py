"""Sections of a tree as typed settings; a value that does not fit its type or bounds is an error of one line."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import ValidationError, create_model

from algorithm.annotations import Spellings, get_annotations
from algorithm.config.renamed_settings import find_renamed_value
from algorithm.config.schema import AgentSection, Section
from algorithm.config.trees import Layer, Tree, find_source, iterate_paths, load_defaults
from algorithm.errors import UserError

SectionType = TypeVar("SectionType", bound=Section)


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
    types, annotated_types = get_type_hints(cls), get_type_hints(cls, include_extras=True)
    values = {key: _convert_value(types[key], value) for key, value in values.items() if key in types}
    fields: dict[str, Any] = {key: (hint, ...) for key, hint in annotated_types.items()}
    try:
        checked = create_model(cls.__name__, __base__=AgentSection, **fields).model_validate(values)
    except ValidationError as error:
        raise UserError(describe_validation_error(error, layers, section)) from error
    try:
        return cls(**dict(checked))
    except ValueError as error:
        raise UserError(f"{section}: {error}") from error


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
    section = section or {"BaseConfig": "base_config", "ReplayConfig": "replay_config", "Goal": "goal"}[error.title]
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
