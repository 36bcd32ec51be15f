"""Errors for names that do not exist, with what replaces names of other programs, or the most similar setting.

docs/migration.md has the names of other programs in the first cell of the rows of its tables, what replaces them in the
second, and notes in the third.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

from algorithm.errors import UserError
from algorithm.program import DATA

PAGE_FILE = DATA / "docs" / "migration.md"


@cache
def read_names_elsewhere() -> Mapping[str, list[str]]:
    """Return what replaces each name of another program: a setting or a flag, without sections, dashes, arguments."""
    found: dict[str, list[str]] = {}
    for line in PAGE_FILE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("| `"):
            continue
        names, instead, *notes = [cell.strip() for cell in line.strip("|").split("|")]
        if instead.startswith("the same"):
            continue
        text = ": ".join([instead, *filter(None, notes)]) if instead == "removed" else instead
        text = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", text).replace("`", "")  # without links
        for name in re.findall("`(.*?)`", names):
            word = name.removeprefix("main_ds.py ").split()[0]
            found.setdefault(word.lstrip("-").replace("-", "_").rpartition(".")[2], []).append(text)
    return found


def advise_word(word: str) -> str | None:
    """Return advice for a word of another program's command line; None if no program has it."""
    return next((_format_advice(text) for text in read_names_elsewhere().get(word, ())), None)


def advise_flag(flag: str, flags: Mapping[str, str]) -> str | None:
    """Return advice for an unknown flag, to follow it; None if neither another program nor a setting has its name.

    `flags` are those of this program by the setting that they set, which a command may lack; other settings follow
    --set.
    """
    from algorithm.config.yaml_layers import iterate_settings, load_defaults  # yaml is not needed for --help

    name = flag.lstrip("-").replace("-", "_")
    settings = [path for path, _ in iterate_settings(load_defaults()) if path.rpartition(".")[2] == name]
    found = [] if flag in flags.values() else [*read_names_elsewhere().get(name, ()), *settings]
    if found and re.fullmatch(r"\w+(\.\w+)+", found[0]):
        return f"use {flags.get(found[0], f'--set {found[0]}=...')}"
    return _format_advice(found[0]) if found else None


def _format_advice(text: str) -> str:
    return text if text.startswith(("removed", "not ")) else f"use {text}"


def check_keys(source: str, layer: Mapping[str, Any], known: Sequence[str], prefix: str = "") -> None:
    """Raise UserError if a layer of settings has a key that is not in `known`, or a value in place of a section.

    `prefix` is the path of the section around the layer, with a dot at the end.
    """
    names, sections = set(known), {path.rpartition(".")[0] for path in known}
    for key, value in layer.items():
        path = f"{prefix}{key}"
        if path not in names:
            advice = suggest_setting(path, known)
            raise UserError(f"{source}: unknown setting {path}{f'; {advice}' if advice else ''}")
        if path in sections and not (path == "goal" and value is None):
            if not isinstance(value, Mapping):
                raise UserError(f"{source}: {path} is a section; its settings go below it, not {value!r}")
            check_keys(source, value, known, f"{path}.")


def suggest_setting(path: str, known: Sequence[str]) -> str | None:
    """Return advice for an unknown setting: what replaces the name of another program, or else the most similar one.

    A replacement in the section of the path comes first, then a setting of this name in another section.
    """
    section, _, key = path.rpartition(".")
    replacements = sorted(read_names_elsewhere().get(key, ()), key=lambda text: f"{section}." not in text)
    elsewhere = [other for other in known if other.rpartition(".")[2] == key]
    if replacements and (f"{section}." in replacements[0] or not elsewhere):
        return _format_advice(replacements[0])
    similar = get_close_matches(path, [other for other in known if other.rpartition(".")[0] == section], 1)
    found = elsewhere or similar or get_close_matches(path, known, 1)
    return f"did you mean {found[0]}?" if found else None
