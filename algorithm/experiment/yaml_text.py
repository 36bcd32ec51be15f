"""YAML as settings are written in it."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import yaml

COLUMN = 40  # where comments begin


class _Loader(yaml.SafeLoader):
    """YAML 1.2 numbers (1e-3 is one, not a string), and no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [key for key in keys if keys.count(key) > 1 and key != "<<"]:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"),
    list("-+0123456789."),
)


def load(text: str) -> Any:
    """The value that `text` holds. Raises ValueError, in one line, for what is not YAML."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from error


def commented(tree: Mapping[str, Any], comments: Mapping[str, str], above: str = "", indent: int = 1) -> Iterator[str]:
    """Lines of a mapping of mappings, below something; `comments` go by the dotted paths of the keys."""
    for key, value in tree.items():
        path = f"{above}{key}"
        section = isinstance(value, dict) and value
        line = f"{'  ' * indent}{key}:" + ("" if section else f" {_value(value)}")
        comment = comments.get(path)
        yield f"{line:<{COLUMN - 1}} # {comment}" if comment else line
        if section:
            yield from commented(value, comments, f"{path}.", indent + 1)


def _value(value: Any) -> str:
    """A value in one line of YAML."""
    if isinstance(value, float):
        return json.dumps(value)
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()
