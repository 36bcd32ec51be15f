"""Settings as trees, the nested mappings of files and the command line: read and merge them, iterate over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from algorithm.config import yaml_text
from algorithm.data import DATA
from algorithm.errors import UserError

Tree = dict[str, Any]
Layer = tuple[str, Tree]  # the name of a source in messages, and its settings
DEFAULTS_FILE = DATA / "default_config.yaml"
MAPPINGS = ("nn_config", "auxiliaries", "explorer", "reset_config", "ma_config")
OPEN_MAPPINGS = (*MAPPINGS, "base_config.env_args")  # mappings with arbitrary keys


def read_yaml(path: Path) -> Tree:
    """Return the mapping in a YAML file. Raises UserError naming file and line."""
    try:
        tree = yaml_text.load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: the file does not exist") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path}: expected a mapping of sections, found {type(tree).__name__}")
    return tree


def load_defaults() -> Tree:
    """Return the tree of default_config.yaml."""
    return deepcopy(_read_defaults())


@cache
def _read_defaults() -> Tree:
    return read_yaml(DEFAULTS_FILE)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tree:
    """Return `below` with the values of `above`; mappings are merged key by key."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else deepcopy(value)
    return merged


def nest(path: str, value: Any) -> Tree:
    """Return the tree that sets only the setting of a path, `section.key`, to a value."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def iterate_paths(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the paths of all sections and settings in `tree`."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        yield path
        if isinstance(value, Mapping) and path not in OPEN_MAPPINGS:
            yield from iterate_paths(value, f"{path}.")


def iterate_leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the paths of all settings in `tree`, without the settings of roles in `ma_config`."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and path not in OPEN_MAPPINGS:
            yield from iterate_leaves(value, f"{path}.")
        elif path != "ma_config":
            yield path


def find_source(layers: list[Layer], path: str) -> str:
    """Return the name of the last layer that sets the value of a path."""
    for source, layer in reversed(layers):
        if path in iterate_paths(layer):
            return source
    return DEFAULTS_FILE.name
