"""Make the tables in docs/configuration.md and docs/options.md of settings and parsers: `python docs/tables.py`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from algorithm.annotations import Condition, FixedOnResume, ForActions, Range, Spellings  # noqa: E402
from algorithm.cli.commands import SETTINGS  # noqa: E402
from algorithm.cli.parser import COMMANDS, MODES, Parser, load_command, make_command_parser, make_parser  # noqa: E402
from algorithm.config.loader import Settings  # noqa: E402
from algorithm.config.registry import AGENTS, find_settings, get_agent_section  # noqa: E402
from algorithm.config.sections import SECTIONS, Section  # noqa: E402
from algorithm.config.yaml_layers import SettingEntry, read_entries  # noqa: E402

TYPE_NAMES = {bool: "true or false", int: "integer", float: "number", str: "text", list: "list", dict: "mapping"}
MARK = "\n<!-- `make docs` replaces all that follows. -->\n"  # after the introduction of a page


def make_setting_tables() -> str:
    """Return the tables of docs/configuration.md."""
    types, lines = read_types(), [""]
    sections: dict[str, list[SettingEntry]] = {}
    for entry in read_entries():
        sections.setdefault(entry.path.partition(".")[0], []).append(entry)
    for section, *settings in sections.values():
        lines += [f"## {section.path}", ""]
        if section.meaning:
            lines += [f"{section.meaning[0].upper()}{section.meaning[1:]}.", ""]
        if section.default is not None:
            lines += [f"Default: `{section.default}`", ""]
        if settings:
            rows = (_describe_setting(entry, types[entry.path]) for entry in settings)
            lines += [*_make_table(("setting", "default", "values", "meaning"), rows), ""]
        lines += _format_fixed(section.path, types)
    return "\n".join(lines).rstrip() + "\n"


def make_option_tables() -> str:
    """Return the tables of docs/options.md."""
    lines = ["", *_format_options(make_parser())]
    for name, path in COMMANDS.items():
        parser = make_command_parser(name, load_command(path))
        arguments = str(parser.usage).removeprefix(parser.prog)
        lines += ["", f"## {name}", "", f"    python main.py {name}{arguments}", "", str(parser.description), ""]
        lines += _format_options(parser, is_command=True)
    return "\n".join(lines) + "\n"


PAGES = {ROOT / "docs" / "configuration.md": make_setting_tables, ROOT / "docs" / "options.md": make_option_tables}


def _format_options(parser: Parser, is_command: bool = False) -> list[str]:
    """Return the table of the options of a parser; of a command without the options that all commands have."""
    rows = []
    for action in parser._actions:
        if is_command and action.dest in ("json", "debug", "help"):
            continue
        forms = sorted(action.option_strings, key=len, reverse=True) or [str(action.metavar)]
        setting = SETTINGS.get(action.dest) if not is_command or action.dest != "name" else None
        modes = () if is_command else MODES.get(action.dest, ())
        meaning = f"{action.help} (only {' and '.join(modes)})" if modes else str(action.help)
        rows.append((", ".join(f"`{form}`" for form in forms), f"`{setting}`" if setting else "", meaning))
    return _make_table(("option", "setting", "meaning"), rows)


def _make_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    escaped = ([text.replace("|", "\\|").replace("<", "&lt;") for text in row] for row in rows)
    return [f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *escaped)]


def read_types() -> Mapping[str, Any]:
    """Return the annotated type of every section and setting, by path."""
    hints = get_type_hints(Settings, include_extras=True)
    types = {"nn_config": hints["nn"], "ma_config.agent": hints["agents"]}
    sections: dict[str, type] = dict(SECTIONS)
    sections |= {get_agent_section(name): find_settings("algorithm", name) for name in AGENTS}
    for section, cls in sections.items():
        types |= dict(_iterate_types(section, cls))
    return types


def _iterate_types(section: str, cls: type) -> Iterator[tuple[str, Any]]:
    """Yield path and type of every setting in a section, and in the sections in it."""
    for name, hint in get_type_hints(cls, include_extras=True).items():
        path = f"{section}.{name.removesuffix('_')}"  # `return` is a field `return_`
        yield path, hint
        inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from _iterate_types(path, inner)


def _describe_setting(entry: SettingEntry, hint: Any) -> tuple[str, str, str, str]:
    """Return the name, the default, the values and the meaning of a setting."""
    default = "" if entry.default is None else f"`{entry.default}`"
    conditions = [str(note) for note in getattr(hint, "__metadata__", ()) if isinstance(note, (Condition, ForActions))]
    meaning = "; ".join([entry.meaning, *conditions]) if entry.meaning else ", ".join(conditions)
    return f"`{entry.path.partition('.')[2]}`", default, describe_type(hint), meaning


def _format_fixed(section: str, types: Mapping[str, Any]) -> list[str]:
    """Return a list of the settings in a section that `--resume` cannot change."""
    reasons = {
        path.partition(".")[2] or path: str(note)
        for path, hint in types.items()
        for note in getattr(hint, "__metadata__", ())
        if isinstance(note, FixedOnResume) and path.partition(".")[0] == section
    }
    if not reasons:
        return []
    return ["`--resume` cannot change:", "", *(f"- `{name}`: {reason}" for name, reason in reasons.items()), ""]


def describe_type(hint: Any) -> str:
    """Return the values that a type allows: words, or a kind of value with its range."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        text = describe_type(inner)
        for note in notes:
            if isinstance(note, Range):
                kind, comma, rest = text.partition(", null")
                text = f"{kind} {note}{comma}{rest}"
            elif isinstance(note, Spellings):
                for spelling, word in note.words.items():
                    text = text.replace(f"`{word}`", f"`{word}` (`{spelling}`)")
        return text
    if get_origin(hint) in (Union, UnionType):
        alternatives = sorted(get_args(hint), key=lambda alternative: alternative is NoneType)
        return ", ".join(map(describe_type, alternatives))
    if get_origin(hint) is Literal:
        return ", ".join(f"`{word}`" for word in get_args(hint))
    return "null" if hint is NoneType else TYPE_NAMES.get(get_origin(hint) or hint, "")


def make_page(path: Path) -> str:
    """Return the text of a page: its introduction as it is, and its tables as they have to be."""
    introduction, mark, _ = path.read_text(encoding="utf-8").partition(MARK)
    return f"{introduction}{mark}{PAGES[path]()}"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(make_page(page), encoding="utf-8", newline="\n")
