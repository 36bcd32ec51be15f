"""Settings as trees, the nested mappings of files and the command line: read, merge and write them as YAML."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from re import Pattern, compile
from typing import Any

import yaml

from algorithm.atomic_io import replace_text
from algorithm.errors import UserError
from algorithm.program import DATA

Tree = dict[str, Any]
Layer = tuple[str, Tree]  # the name of a source in messages, and its settings
DEFAULTS_FILE = DATA / "default_config.yaml"
MAPPINGS = ("nn_config", "auxiliaries", "explorer", "reset_config", "ma_config")
# Mappings with arbitrary keys.
OPEN_MAPPINGS = (*MAPPINGS, "base_config.env_args", "tune.space", "population_config.random_params")
INHERITED = "optimizer"  # in default_config.yaml: what sections inherit with `<<`, not a section
COMMENT_COLUMN = 40  # column of comments
MAX_LEVELS = 40  # levels of nested mappings and lists
MAX_NODES = 20_000  # mappings, lists and scalars of a file, aliases expanded
MAX_DIGITS = 300  # digits of an integer; larger integers do not fit into a float

TAG = "tag:yaml.org,2002:"
AMBIGUOUS_TAG = "!ambiguous"  # of words that YAML 1.1 reads as unexpected numbers, such as 010 (8) and 1:30 (90)
_DECIMAL = r"(0|[1-9][0-9]*(_[0-9]+)*)"  # underscores may group the digits
_INTEGER = compile(rf"[-+]?{_DECIMAL}\Z")
_FLOAT = compile(rf"([-+]?(\.[0-9]+|{_DECIMAL}(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z")
_LEADING_ZERO = compile(r"[-+]?0[0-9oO][0-9_]*\Z")


def read_yaml(path: Path) -> Tree:
    """Return the mapping in a YAML file. Raises UserError naming file and line."""
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: the file does not exist") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path}: expected a mapping of sections, found {type(tree).__name__}")
    return tree


def load_defaults() -> Tree:
    """Return the tree of default_config.yaml."""
    return deepcopy({key: value for key, value in _read_defaults().items() if key != INHERITED})


def load_inherited_defaults() -> Tree:
    """Return the settings of the optimizer that the section of every algorithm inherits."""
    return deepcopy(_read_defaults()[INHERITED])


@cache
def _read_defaults() -> Tree:
    return read_yaml(DEFAULTS_FILE)


def merge(below: Mapping[str, Any], *above: Mapping[str, Any]) -> Tree:
    """Return `below` with the values of `above`, the last above all others; mappings are merged key by key."""
    merged = dict(below)
    for key, value in (item for tree in above for item in tree.items()):
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else deepcopy(value)
    return merged


def nest(path: str, value: Any) -> Tree:
    """Return the tree that sets only the setting of a path, `section.key`, to a value."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def make_tree(values: Mapping[str, Any]) -> Tree:
    """Return the tree that sets only the settings of some paths, in this order."""
    return merge({}, *(nest(path, value) for path, value in values.items()))


def find_value(tree: Any, path: str) -> Any:
    """Return the value of a setting in a tree; None if it has none."""
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def iterate_paths(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the paths of all sections and settings in `tree`."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        yield path
        if isinstance(value, Mapping) and path not in OPEN_MAPPINGS:
            yield from iterate_paths(value, f"{path}.")


def iterate_settings(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of all settings in `tree`, without the settings of roles in `ma_config`.

    The settings of auxiliaries are among them, since classes define their names.
    """
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and (path not in OPEN_MAPPINGS or (path == "auxiliaries" and value)):
            yield from iterate_settings(value, f"{path}.")
        elif path != "ma_config":
            yield path, value


def find_source(layers: Sequence[Layer], path: str) -> str:
    """Return the name of the last layer that sets the value of a path."""
    for source, layer in reversed(layers):
        if _sets(layer, path):
            return source
    return DEFAULTS_FILE.name


def _sets(tree: Mapping[str, Any], path: str) -> bool:
    """Return whether a tree has the section or setting of a path; keys may contain dots."""
    for key, value in tree.items():
        below = path.removeprefix(f"{key}.")
        if key == path or (below != path and isinstance(value, Mapping) and _sets(value, below)):
            return True
    return False


class _UnsupportedYaml(yaml.MarkedYAMLError):
    """Valid YAML that settings do not allow."""


def _make_resolvers() -> dict[str, list[tuple[str, Pattern[str]]]]:
    """Return the tags of unquoted words by their first character; the first pattern that matches applies.

    Null, booleans and merges follow YAML 1.1. A number of YAML 1.1 that is not decimal is ambiguous.
    """
    own = [(f"{TAG}int", _INTEGER), (f"{TAG}float", _FLOAT)]
    found: dict[str, list[tuple[str, Pattern[str]]]] = {}
    for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items():
        kept = [(tag, pattern) for tag, pattern in rows if tag.removeprefix(TAG) in ("null", "bool", "merge")]
        numbers = [(AMBIGUOUS_TAG, pattern) for tag, pattern in rows if tag.removeprefix(TAG) in ("int", "float")]
        found[first] = kept + ([*own, *numbers, (AMBIGUOUS_TAG, _LEADING_ZERO)] if numbers else [])
    return found


class _Rules(yaml.constructor.SafeConstructor):
    """The rules of a loader: it reads decimal numbers (1e-3 is a number, not text) and rejects duplicate keys."""

    yaml_implicit_resolvers = _make_resolvers()

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if duplicates := [key for key, count in Counter(keys).items() if count > 1 and key != "<<"]:
            raise yaml.constructor.ConstructorError(None, None, f"{duplicates[0]} is defined twice", node.start_mark)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Return a decimal number. Raises an error for any other, and for one that is larger than any float."""
        value: int | float | None = None
        if node.tag == AMBIGUOUS_TAG:
            problem = f"{node.value} is not a decimal number; write one without leading zeros, or text in quotes"
        elif node.tag == f"{TAG}int":
            problem = f"an integer has more than {MAX_DIGITS} digits"
            value = int(node.value) if len(node.value) <= MAX_DIGITS else None
        else:
            problem = f"{node.value} is larger than any float"
            number = super().construct_yaml_float(node)
            is_infinite = "e" in node.value.casefold() and abs(number) == float("inf")  # without being written `.inf`
            value = None if is_infinite else number
        if value is None:
            raise _UnsupportedYaml(problem=problem, problem_mark=node.start_mark)
        return value


_Rules.yaml_constructors = {
    **yaml.SafeLoader.yaml_constructors,
    **dict.fromkeys((f"{TAG}int", f"{TAG}float", AMBIGUOUS_TAG), _Rules.construct_number),
}
# The parser of libyaml is ten times as fast as that of PyYAML.
_Loader: Any = type("_Loader", (_Rules, yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader), {})
# It quotes text which a loader would read as a number, or reject.
_Dumper: Any = type("_Dumper", (yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper,), {})
_Dumper.yaml_implicit_resolvers = {
    first: rows + _Rules.yaml_implicit_resolvers.get(first, [])
    for first, rows in yaml.SafeDumper.yaml_implicit_resolvers.items()
}


def _check_events(text: str) -> None:
    """Raise an error for YAML with tags, with more than `MAX_LEVELS` levels, or with more than `MAX_NODES` nodes."""
    starts: list[tuple[str | None, int]] = []  # of the open collections: the anchor, and the nodes before it
    sizes: dict[str | None, int] = {}  # nodes of each anchor
    size = 0  # nodes so far; an alias counts as all nodes that it stands for
    event: Any
    for event in yaml.parse(text, _Loader):
        problem = None
        if isinstance(event, yaml.CollectionStartEvent):
            starts.append((event.anchor, size))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, start = starts.pop()
            sizes[anchor] = size - start
        is_alias = isinstance(event, yaml.AliasEvent)
        if isinstance(event, yaml.NodeEvent):
            size += sizes.get(event.anchor, 1) if is_alias else 1
        if tag := getattr(event, "tag", None):
            problem = f"it contains the tag {tag}; tags are not read"
        elif is_alias and event.anchor in [anchor for anchor, _ in starts]:
            problem = f"*{event.anchor} contains itself"
        elif len(starts) > MAX_LEVELS:
            problem = f"it is nested more than {MAX_LEVELS} levels deep"
        elif size > MAX_NODES:
            problem = f"it has more than {MAX_NODES:,} values, counting those that aliases repeat"
        if problem:
            raise _UnsupportedYaml(problem=problem, problem_mark=event.start_mark)


def parse_yaml(text: str) -> Any:
    """Return the value of `text`. Raises ValueError, in one line, if it is not YAML or not allowed in settings."""
    try:
        _check_events(text)
        return yaml.load(text, _Loader)
    except _UnsupportedYaml as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark and "\n" in text else ""
        raise ValueError(f"{line}{error.problem}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from error


def format_yaml(value: Any, **style: Any) -> str:
    """Return `value` as YAML that `parse_yaml` reads back unchanged."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, **style)


def format_commented(
    tree: Mapping[str, Any], comments: Mapping[str, str], above: str = "", indent: int = 1
) -> Iterator[str]:
    """Yield the lines of nested mappings with comments.

    Args:
        tree: Nested mappings.
        comments: Comments by the dotted paths of the keys.
        above: Path of the section around `tree`, with a dot at the end.
        indent: Level of indentation.
    """
    for key, value in tree.items():
        path = f"{above}{key}"
        section = isinstance(value, dict) and value
        line = f"{'  ' * indent}{key}:" + ("" if section else f" {format_value(value)}")
        comment = comments.get(path)
        yield f"{line:<{COMMENT_COLUMN - 1}} # {comment}" if comment else line
        if section:
            yield from format_commented(value, comments, f"{path}.", indent + 1)


def format_value(value: Any) -> str:
    """Return a value as one line of YAML."""
    if isinstance(value, float):
        return json.dumps(value)
    return format_yaml(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()


@dataclass(frozen=True)
class SettingEntry:
    """A line of default_config.yaml: a setting, or a section if `default` is None."""

    path: str
    default: str | None
    meaning: str


def read_entries(path: Path = DEFAULTS_FILE) -> list[SettingEntry]:
    """Return all sections and settings of default_config.yaml, or of another file, in their order.

    The settings that a section inherits come first in it, with its own defaults and meanings if it has any.
    """
    text = path.read_text(encoding="utf-8")
    loader, lines = _Loader(text), text.splitlines()

    def iterate_entries(section: yaml.MappingNode, above: str = "") -> Iterator[SettingEntry]:
        loader.flatten_mapping(section)  # resolves `<<`
        for key, value in section.value:
            path, line = f"{above}{key.value}", lines[key.start_mark.line]
            is_section = isinstance(value, yaml.MappingNode) and not value.flow_style
            default = None if is_section else line[value.start_mark.column : value.end_mark.column]
            end = key.end_mark.column if is_section else value.end_mark.column
            yield SettingEntry(path, default, line[end:].partition("# ")[2])
            if is_section:
                yield from iterate_entries(value, f"{path}.")

    entries = {entry.path: entry for entry in iterate_entries(loader.get_single_node())}
    return [entry for path, entry in entries.items() if path.partition(".")[0] != INHERITED]


def read_variant(path: Path, variant: str) -> Tree:
    """Return a variant of an environment's config.yaml, merged with the variants that it inherits.

    A variant without `inherit` inherits `default`. Raises UserError if there is no such variant.
    """
    variants = _read_variants(path)
    if variant not in variants:
        raise UserError(f"{path}: no variant {variant!r}; use one of: {', '.join(map(str, variants))}")
    chain = [variant]
    default = "default" if "default" in variants else None
    while (parent := variants[chain[-1]].get("inherit", default if chain[-1] != "default" else None)) is not None:
        if parent in chain or parent not in variants:
            reason = "which inherits it" if parent in chain else "which does not exist"
            raise UserError(f"{path}: {chain[-1]!r} inherits {parent!r}, {reason}")
        chain.append(parent)
    return merge({}, *(_drop_inherit(variants[name]) for name in reversed(chain)))


def read_own_variant(path: Path, variant: str) -> Tree:
    """Return a variant without the variants that it inherits; empty for a `default` that other variants share."""
    variants = _read_variants(path)
    return {} if variant == "default" and len(variants) > 1 else _drop_inherit(variants[variant])


def _read_variants(path: Path) -> dict[str, Tree]:
    variants = {str(name): tree if tree is not None else {} for name, tree in read_yaml(path).items()}
    for name, tree in variants.items():
        if not isinstance(tree, Mapping):
            raise UserError(f"{path}: the variant {name!r} is {tree!r}; expected a mapping of sections")
        if not isinstance(parent := tree.get("inherit"), str | None):
            raise UserError(f"{path}: {name!r} inherits {parent!r}; expected the name of a variant")
    return variants


def _drop_inherit(tree: Tree) -> Tree:
    return {key: value for key, value in tree.items() if key != "inherit"}


def format_variant(name: str, tree: Tree, comment: str) -> str:
    """Return the text of a variant, with a comment above it."""
    lines = [f"{format_value(name)}:", *format_commented(tree, {})] if tree else [f"{format_value(name)}: {{}}"]
    return "\n".join([f"# {comment}", *lines]) + "\n"


def write_variant(path: Path, name: str, tree: Tree, comment: str) -> None:
    """Write a variant to a file, at its end or in place of the variant of this name.

    Args:
        path: the config.yaml.
        name: name of the variant.
        tree: its settings, with `inherit`.
        comment: one line for the comment above it.

    Raises:
        UserError: the file cannot be written, or it is written in a style in which text cannot be added to it.
    """
    variants = read_yaml(path)
    text = path.read_bytes().decode()  # with the ends of lines as they are
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += newline
    start, end = _find_lines(lines, name)
    block = format_variant(name, tree, comment)
    if start == end:  # at the end of the file, after an empty line
        block = f"\n{block}"
    written = "".join([*lines[:start], block.replace("\n", newline), *lines[end:]])
    try:
        same = parse_yaml(written) == {**variants, name: tree}
    except ValueError:
        same = False
    if not same:
        raise UserError(
            f"{path}: a variant cannot be added to a file in this style; begin each variant on its own line"
        )
    try:
        replace_text(path, written)
    except OSError as error:
        raise UserError(f"{path}: the variant {name} cannot be written: {error}") from error


def _find_lines(lines: Sequence[str], name: str) -> tuple[int, int]:
    """Return the first line of a variant, with the comment directly above it, and the line after its last.

    Both are the end of the file if it has no such variant. Lines that are empty, or comments that are not indented,
    belong to the next variant.
    """
    starts = [number for number, line in enumerate(lines) if not line.startswith((" ", "#", "\n", "\r"))]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        if lines[start].startswith(f"{format_value(name)}:"):
            while start + 1 < end < len(lines) and (lines[end - 1].startswith("#") or not lines[end - 1].strip()):
                end -= 1
            while start > 0 and lines[start - 1].startswith("#"):
                start -= 1
            return start, end
    return len(lines), len(lines)
