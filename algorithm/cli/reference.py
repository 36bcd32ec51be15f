"""docs/configuration.md, made from default_config.yaml and the command line's options: `make docs`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from algorithm.cli.options import OPTIONS, TRAIN
from algorithm.config.trees import DEFAULTS_FILE

PAGE_FILE = DEFAULTS_FILE.parent / "docs" / "configuration.md"
LINE_PATTERN = re.compile(r"^(?P<indent> *)(?P<key>\w+):(?: +(?P<default>[^#\s][^#]*?))?(?: +# (?P<meaning>.*))?$")

HEADER = """\
# Configuration

Made from `default_config.yaml` and the command line by `make docs`; change those, not this page.

`default_config.yaml` <- `default` in the environment's `config.yaml` <- the variant named by `-c` and what it inherits
<- `--set section.key=value` and `--env_args` <- the flags of the command line: each overrides those before it.
Settings that are mappings are overridden key by key. An unknown or misplaced key, a wrong type or an impossible
combination is one line and exit status 2. Words are matched without case. `null` means off or none.

Numbers are decimal: `30`, `-0.5`, `1e-3`, `1_000_000`. A number that YAML 1.1 reads differently (`010`, `1:30`,
`0x1F`) is an error; in quotes it is text. `yes`, `no`, `on` and `off` are `true` and `false`.

A setting without effect is also an error: `acer_config` with `algorithm: SAC`, `alpha` with `sampler: uniform`. This
applies to settings that are given for the run: by `--set`, by flags and in the chosen variant. A `default` that other
variants share, and inherited variants, may contain settings that have no effect in this run.
"""


@dataclass(frozen=True)
class SettingEntry:
    """One line of default_config.yaml: a setting, or a section where `default` is None."""

    path: str
    default: str | None
    meaning: str

    @property
    def key(self) -> str:
        """The last part of its path."""
        return self.path.rpartition(".")[2]


def read_entries() -> list[SettingEntry]:
    """Every section and setting, in the order of the file. Raises ValueError for a line that is neither."""
    found: list[SettingEntry] = []
    above: list[tuple[int, str]] = []  # indentation and key of the sections that a line stands in
    for number, line in enumerate(DEFAULTS_FILE.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = LINE_PATTERN.match(line)
        if not match:
            raise ValueError(f"{DEFAULTS_FILE.name}, line {number}: expected `key: default  # meaning`, found {line!r}")
        indent = len(match["indent"])
        above = [(column, key) for column, key in above if column < indent] + [(indent, match["key"])]
        found.append(SettingEntry(".".join(key for _, key in above), match["default"], match["meaning"] or ""))
    return found


def make_page() -> str:
    """The page as text."""
    lines = [HEADER]
    for entry in read_entries():
        if "." not in entry.path:
            lines += _format_section(entry)
        else:
            lines.append(_format_row(entry.path.partition(".")[2], entry))
    lines += ["", "## The command line", "", "    python main.py ENV [options]", ""]
    lines += ["`ENV` is an environment folder: its name below `envs/`, or its path.", ""]
    lines += ["Dashes may be underscores. Alone, `python main.py` shows how to begin.", ""]
    lines += ["| option | goes with | sets | meaning |", "| --- | --- | --- | --- |"]
    for option in OPTIONS:
        spelling = f"`{option.spelling}`" + (f", `{option.short}`" if option.short else "")
        modes = ", ".join(mode if mode == TRAIN else f"`{mode}`" for mode in option.modes)
        lines.append(
            f"| {spelling} | {modes} | {f'`{option.setting}`' if option.setting else ''} | {_escape(option.help)} |"
        )
    return "\n".join(lines) + "\n"


def _format_section(entry: SettingEntry) -> list[str]:
    heading = [f"\n## {entry.path}\n"]
    if entry.meaning:
        heading.append(f"{entry.meaning[0].upper()}{entry.meaning[1:]}.\n")
    if entry.default is not None:
        return [*heading, f"Default: `{entry.default}`"]
    return [*heading, "| setting | default | meaning |", "| --- | --- | --- |"]


def _format_row(name: str, entry: SettingEntry) -> str:
    default = "" if entry.default is None else f"`{entry.default}`"
    return f"| `{name}` | {default} | {_escape(entry.meaning)} |"


def _escape(text: str) -> str:
    """`text` in a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def write_page(path: Path = PAGE_FILE) -> None:
    """Write the page."""
    path.write_text(make_page(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    write_page()
