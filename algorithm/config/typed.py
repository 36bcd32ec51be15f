"""Sections of a tree as typed settings; what does not fit its type is one line."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import ValidationError, create_model

from algorithm.annotations import Spellings
from algorithm.config.renamed_settings import former_value
from algorithm.config.schema import BOUNDS, AgentSection, Section
from algorithm.config.trees import Layer, Tree, find_source, iterate_paths, load_defaults
from algorithm.errors import UserError


def read_dataclass(cls: type, values: Tree, section: str, layers: list[Layer]) -> Any:
    """Return a settings dataclass from its section of the tree."""
    hints = get_type_hints(cls)
    values = {key: _convert_value(hints[key], value) for key, value in values.items() if key in hints}
    model = create_model(cls.__name__, __base__=AgentSection, **{key: (hint, ...) for key, hint in hints.items()})
    try:
        checked = model.model_validate(values)
    except ValidationError as error:
        raise UserError(describe_validation_error(error, layers, section)) from error
    for key, (allowed, is_allowed) in BOUNDS.items():
        value = getattr(checked, key, None)
        if value is not None and not is_allowed(value):
            raise UserError(
                f"{find_source(layers, f'{section}.{key}')}: {section}.{key} is {value}; it must be {allowed}"
            )
    try:
        return cls(**dict(checked))
    except ValueError as error:  # settings that do not go together
        raise UserError(f"{section}: {error}") from error


def respell(cls: type, values: Tree) -> Tree:
    """Return the section of a settings dataclass with every value under its own name, not another spelling of it."""
    words = {
        key: note.words
        for key, hint in get_type_hints(cls, include_extras=True).items()
        for note in getattr(hint, "__metadata__", ())
        if isinstance(note, Spellings)
    }
    return {key: words.get(key, {}).get(str(value).casefold(), value) for key, value in values.items()}


def _convert_value(hint: Any, value: Any) -> Any:
    """Return `value` as `hint` takes it: words without case (YAML reads a bare `off` as False), 1e6 as an integer."""
    if words := _words(hint):
        spelled = "off" if value is False else str(value)
        return next((word for word in words if word.casefold() == spelled.casefold()), value)
    kinds = get_args(hint) or (hint,)
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        return int(value)
    return value


def _words(hint: Any) -> tuple[str, ...]:
    """Return the words that `hint` allows."""
    if get_origin(hint) in (Union, UnionType):
        return tuple(word for one in get_args(hint) for word in _words(one))
    return get_args(hint) if get_origin(hint) is Literal else ()


def read_section(model: type[Section], values: Tree) -> Any:
    """Return a section of the tree with its types. Raises ValidationError."""
    return model.model_validate(_convert_section(model, values))


def _convert_section(model: type[Section], values: Tree) -> Tree:
    """Return every value of a section, and of the sections in it, as its type takes it."""
    hints = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    return {
        key: _convert_section(hints[key], value)
        if isinstance(value, Mapping) and _is_section(hints.get(key))
        else _convert_value(hints.get(key), value)
        for key, value in values.items()
    }


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Section)


def describe_validation_error(error: ValidationError, layers: list[Layer], section: str | None = None) -> str:
    """Describe in one line what does not fit, and where it was set."""
    first = error.errors()[0]
    section = section or {"BaseConfig": "base_config", "ReplayConfig": "replay_config", "Goal": "goal"}[error.title]
    location = [str(part) for part in first["loc"] if isinstance(part, str) and "[" not in part]
    if not location:  # settings that do not go together
        return f"{section}: {first['ctx']['error']}"
    path = f"{section}.{'.'.join(location[:2])}"
    if path not in iterate_paths(load_defaults()):
        path = f"{section}.{location[0]}"
    if instead := former_value(path, first["input"]):
        return f"{find_source(layers, path)}: {path} is {first['input']!r}; {instead}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{find_source(layers, path)}: {path} is {first['input']!r}; {message[0].lower()}{message[1:]}"
