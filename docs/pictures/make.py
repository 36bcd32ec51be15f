"""Make the pictures of the documentation: `python docs/pictures/make.py`, from the repository's root, on Linux or macOS.

`terminal.svg` is the terminal at the end of a training run of gym/cartpole; `curve.png` is the learning curve that the
same run writes.
"""

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

PICTURES = Path(__file__).resolve().parent
ROOT = PICTURES.parents[1]
COMMAND = ["gym/cartpole", "-n", "first"]
COLUMNS = 104
# What rich writes to a terminal: a control sequence, the end of a line, the start of a line, or text.
TOKEN = re.compile(r"\x1b\[(?P<numbers>[?\d;]*)(?P<kind>[A-Za-z])|(?P<end>\r?\n)|(?P<start>\r)|[^\x1b\r\n]+")
WEB_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def run(folder: Path) -> str:
    """Train in a pseudo terminal, in the directory `folder`, and return all that was written to the terminal."""
    terminal, program = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": "40"}
    command = [sys.executable, str(ROOT / "main.py"), *COMMAND]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=program, stderr=program
    ) as training:
        os.close(program)
        written = b""
        while block := _read(terminal):
            written += block
    os.close(terminal)
    if training.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit status {training.returncode}")
    return written.decode()


def _read(terminal: int) -> bytes:
    """Return the next block, empty at the end (which Linux reports as an error)."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def screen(written: str) -> list[str]:
    """Return the lines that a terminal shows after `written`, with their colors as ANSI sequences."""
    lines, row = [""], 0
    for token in TOKEN.finditer(written):
        if token["kind"] == "A":  # cursor up
            row = max(0, row - int(token["numbers"] or 1))
        elif token["kind"] == "K":  # erase the line
            lines[row] = ""
        elif token["end"]:
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token["start"]:
            continue  # rich erases a line before it writes it again
        elif token["kind"] in (None, "m"):
            lines[row] += token[0]
    return lines


def draw(lines: list[str], path: Path) -> None:
    """Write the lines as an SVG that uses the reader's own fonts."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
    console.print(Text.from_ansi(f"$ python main.py {' '.join(COMMAND)}"))
    for line in lines:
        console.print(Text.from_ansi(line))
    svg = WEB_FONT.sub("", console.export_svg(title="samara", theme=MONOKAI, unique_id="samara"))
    path.write_text(svg.replace("Fira Code, monospace", "ui-monospace, Consolas, monospace"), encoding="utf-8")


def main() -> None:
    """Make every picture."""
    with tempfile.TemporaryDirectory() as folder:
        lines = screen(run(Path(folder)))
        while not lines[-1].strip():
            lines.pop()
        draw(lines, PICTURES / "terminal.svg")
        shutil.copy(Path(folder, "runs", "gym", "cartpole", "first", "curve.png"), PICTURES / "curve.png")


if __name__ == "__main__":
    main()
