"""Make the pictures of the documentation, on Linux or macOS: `python docs/pictures/make.py`.

`terminal.svg` is the terminal at the end of a training run of gym/cartpole, `curve.png` the learning curve that this
run writes. `display.svg` is the terminal during a run of gym/pendulum, after a part of the drawings of the live
display. The other pictures compare the training returns of several runs, each with seed 0. With names of pictures as
arguments, only these are made.
"""

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

PICTURES = Path(__file__).resolve().parent
ROOT = PICTURES.parents[1]
sys.path.insert(0, str(ROOT))

from algorithm.tools.reports.charts import Line, draw_lines, draw_picture  # noqa: E402
from algorithm.tools.reports.run_data import make_metrics  # noqa: E402
from algorithm.training.metrics import read_table  # noqa: E402

FIRST = ["gym/cartpole", "-n", "first"]
DURING = ["gym/pendulum", "-n", "first"]
RECORDED_PART = 0.7  # of the drawings of the live display, after which the run is recorded
COLUMNS = 104
# The live display erases its last drawing, line by line from the bottom, before it draws again.
DRAWING = re.compile(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)+")
# What rich writes to a terminal: a control sequence, the end of a line, the start of a line, or text.
TOKEN = re.compile(r"\x1b\[(?P<numbers>[?\d;]*)(?P<kind>[A-Za-z])|(?P<end>\r?\n)|(?P<start>\r)|[^\x1b\r\n]+")
WEB_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)

# Picture: title, goal, and the options of each run by its label.
PENDULUM, CARTPOLE = ["gym/pendulum"], ["gym/cartpole"]
COMPARISONS: dict[str, tuple[str, float, dict[str, list[str]]]] = {
    "trust_region.png": (
        "ACER on Pendulum-v1",
        -200,
        {
            "trust region, delta 1": PENDULUM,
            "no trust region": [*PENDULUM, "--set", "acer_config.trust_region=off"],
        },
    ),
    "sac.png": ("Pendulum-v1", -200, {"SAC": [*PENDULUM, "-c", "sac"], "ACER": PENDULUM}),
    "estimators.png": (
        "ACER on CartPole-v1",
        475,
        {
            "Retrace": CARTPOLE,
            **{
                label: [*CARTPOLE, "-c", variant]
                for label, variant in {
                    "V-trace": "vtrace",
                    "n-step": "n_step",
                    "tree-backup": "tree_backup",
                    "Q(lambda)": "q_lambda",
                }.items()
            },
        },
    ),
    "replay.png": (
        "ACER on CartPole-v1: replayed batches for each rollout",
        475,
        {
            "8": CARTPOLE,
            "2": [*CARTPOLE, "--set", "acer_config.replay_ratio=2"],
            "0": [*CARTPOLE, "--set", "acer_config.replay_ratio=0"],
        },
    ),
}


def run(arguments: list[str], folder: Path) -> str:
    """Train in a pseudo terminal, in the directory `folder`, and return all that was written to the terminal."""
    terminal, program = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": "40"}
    command = [sys.executable, str(ROOT / "main.py"), *arguments]
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
    while not lines[-1].strip():
        lines.pop()
    return lines


def cut_during_run(written: str) -> str:
    """Return what was written until a part of the drawings of the live display was made."""
    drawings = [match.start() for match in DRAWING.finditer(written)]
    if not drawings:
        raise SystemExit("the run was too short for a second drawing of its display")
    return written[: drawings[int(RECORDED_PART * len(drawings))]]


def draw_terminal(arguments: list[str], lines: list[str], path: Path) -> None:
    """Write the command and the lines after it as an SVG that uses the reader's own fonts."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere)
        for line in [f"$ python main.py {' '.join(arguments)}", *lines]:
            console.print(Text.from_ansi(line))
        svg = WEB_FONT.sub("", console.export_svg(title="samara", theme=MONOKAI, unique_id="samara"))
    path.write_text(svg.replace("Fira Code, monospace", "ui-monospace, Consolas, monospace"), encoding="utf-8")


def draw_first_run(folder: Path) -> None:
    """Draw the terminal at the end of the first run, and copy the learning curve that it writes."""
    draw_terminal(FIRST, screen(run(FIRST, folder)), PICTURES / "terminal.svg")
    shutil.copy(folder / "runs" / "gym" / "cartpole" / "first" / "curve.png", PICTURES / "curve.png")


def draw_comparison(name: str, folder: Path) -> None:
    """Train every run of a comparison, in the directory `folder`, and draw their training returns."""
    title, goal, runs = COMPARISONS[name]
    lines = []
    for number, (label, options) in enumerate(runs.items()):
        command = [sys.executable, str(ROOT / "main.py"), *options, "-n", f"{name}-{number}"]
        finished = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if finished.returncode:
            raise SystemExit(f"{' '.join(command)}: {finished.stderr}")
        table = read_table(folder / "runs" / options[0] / f"{name}-{number}" / "metrics.csv")
        x, y = make_metrics(table, {}).get_rows("rollout/return")
        lines.append(Line(color=number, x=x, y=y, label=label))
    title = f"{title}: return (goal {goal:g})"
    chart = draw_lines(lines, title=title, y_label="return", level=goal, size=(640, 360))
    draw_picture([chart]).write_png(PICTURES / name)


def main() -> None:
    """Make every picture, or those that are named."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pictures: dict[str, Callable[[], object]] = {
            "terminal.svg": lambda: draw_first_run(folder),
            "display.svg": lambda: draw_terminal(
                DURING, screen(cut_during_run(run(DURING, folder))), PICTURES / "display.svg"
            ),
            **{picture: partial(draw_comparison, picture, folder) for picture in COMPARISONS},
        }
        for picture in sys.argv[1:] or pictures:
            pictures[picture]()


if __name__ == "__main__":
    main()
