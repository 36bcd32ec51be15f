"""Errors for settings that do not exist, which name the most similar one."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from algorithm.config.renamed_settings import find_renamed_setting
from algorithm.config.yaml_layers import Tree
from algorithm.errors import UserError


def check_keys(source: str, layer: Tree, known: list[str]) -> None:
    """Raise UserError if a layer of settings has a key that is not in `known`, or a value in place of a section."""
    sections = {path.rpartition(".")[0] for path in known}

    def check(tree: Tree, prefix: str) -> None:
        for key, value in tree.items():
            path = f"{prefix}{key}"
            if path not in known:
                instead = suggest_setting(path, known)
                raise UserError(f"{source}: unknown setting {path}{f'; {instead}' if instead else ''}")
            is_section = path in sections
            if is_section and not isinstance(value, Mapping) and not (path == "goal" and value is None):
                raise UserError(f"{source}: {path} is a section; its settings go below it, not {value!r}")
            if is_section and value is not None:
                check(value, f"{path}.")

    check(layer, "")


def suggest_setting(path: str, known: list[str]) -> str | None:
    """Return advice for an unknown setting: what replaces an old name, or else the most similar known setting."""
    if renamed := find_renamed_setting(path):
        return renamed
    section, _, key = path.rpartition(".")
    elsewhere = [other for other in known if other.rpartition(".")[2] == key]
    similar = get_close_matches(path, [other for other in known if other.rpartition(".")[0] == section], 1)
    found = elsewhere or similar or get_close_matches(path, known, 1)
    return f"did you mean {found[0]}?" if found else None
