"""The variants in the config.yaml of an environment folder: reading one, and writing one without a change elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from algorithm.atomic_io import replace_text
from algorithm.config.yaml_layers import Tree, format_commented, format_value, merge, parse_yaml, read_yaml
from algorithm.errors import UserError


def read_variant(path: Path, variant: str) -> Tree:
    """Return a variant of an environment's config.yaml, merged with the variants that it inherits.

    A variant without `inherit` inherits `default`. Raises UserError if there is no such variant.
    """
    variants = _read_variants(path)
    if variant not in variants:
        raise UserError(f"{path}: no variant {variant!r}; use one of: {', '.join(map(str, variants))}")
    chain = [variant]
    while (parent := _find_parent(variants, chain[-1])) is not None:
        if parent in chain or parent not in variants:
            reason = "which inherits it" if parent in chain else "which does not exist"
            raise UserError(f"{path}: {chain[-1]!r} inherits {parent!r}, {reason}")
        chain.append(parent)
    tree: Tree = {}
    for name in reversed(chain):
        tree = merge(tree, _drop_inherit(variants[name]))
    return tree


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


def _find_parent(variants: Mapping[str, Tree], name: str) -> str | None:
    return variants[name].get("inherit", None if name == "default" or "default" not in variants else "default")


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
