"""What the pages of the documentation contain: blocks of code, commands, headings, links."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
GUIDES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), ROOT / "benchmarks" / "NOTES.md"])
FENCE = re.compile(r"^```(\S*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INCLUDE = re.compile(r"^```\{include\} (\S+)\n.*?^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`((?:python main\.py|samara) [^`]+)`")  # may cross the end of a line
LINE = re.compile(r"^ {4,}(?:.*&& )?((?:python main\.py|samara) [^\n]+)", re.MULTILINE)
PLACEHOLDERS = {"<group>/<name>": "gym/cartpole", "FOLDER": "gym/cartpole"}
NO_COMMAND = "[options]"  # of a pattern of commands
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")


def read(guide: Path) -> str:
    """Return the text of a page."""
    return guide.read_text(encoding="utf-8")


def blocks(guide: Path, language: str) -> list[str]:
    """Return the fenced blocks of code in a language."""
    return [code for found, code in FENCE.findall(read(guide)) if found == language]


def files(guide: Path) -> dict[str, str]:
    """Return {path: text} of the files that a page contains: blocks whose first line is a comment with the path."""
    shown = {}
    for code in [*blocks(guide, "python"), *blocks(guide, "yaml")]:
        if match := re.match(r"# ([\w/.]+\.(?:py|yaml))\n", code):
            shown[match[1]] = code
    return shown


def commands(guide: Path) -> list[list[str]]:
    """Return the arguments of every command of this program on a page, in their order."""
    text = FENCE.sub("", read(guide))
    found = sorted([*INLINE.finditer(text), *LINE.finditer(text)], key=lambda match: match.start())
    lines = [" ".join(match[1].split()) for match in found]
    for placeholder, example in PLACEHOLDERS.items():
        lines = [line.replace(placeholder, example) for line in lines]
    words = [shlex.split(line, comments=True) for line in lines if NO_COMMAND not in line and "..." not in line]
    return [line[2:] if line[0] == "python" else line[1:] for line in words]


def anchors(guide: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    text = INCLUDE.sub(lambda match: read(guide.parent / match[1]), read(guide))
    headings = HEADING.findall(FENCE.sub("", text))
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
