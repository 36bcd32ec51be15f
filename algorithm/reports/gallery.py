"""The gallery: a page with the curves, the videos and the figures of runs in many environment folders."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from algorithm.atomic_io import replace_text
from algorithm.reports.outcome import Fact, list_facts
from algorithm.reports.page import render
from algorithm.reports.picture import Panel, draw_picture
from algorithm.reports.run_data import RunData
from algorithm.reports.run_figures import MAIN_SIZE, draw_returns
from algorithm.reports.run_tables import list_machine

PAGE_FILE = "index.md"
SHOWN_VIDEO = "-median.gif"  # end of its name: neither the best nor the worst episode


@dataclass(frozen=True, kw_only=True)
class GalleryEntry:
    """A run on the page.

    Attributes:
        run: the content of its folder.
        facts: its figures.
        curve: file with the chart of its returns, next to the page; None if no episode has ended.
        video: file with a video, next to the page; None without one.
    """

    run: RunData
    facts: Sequence[Fact]
    curve: str | None
    video: str | None

    @property
    def anchor(self) -> str:
        """The anchor of its heading, as GitHub and the documentation site make it."""
        return re.sub(r"[^\w-]", "", self.run.environment.lower().replace(" ", "-"))

    @property
    def command(self) -> str:
        """The command that trains it."""
        return f"python main.py {self.run.environment}"


def write_gallery(folder: Path, runs: Sequence[RunData], left_out: Mapping[str, str], seconds: float) -> Path:
    """Write the page into a folder, with a chart and a video of each run that reached its goal. Return its path.

    Args:
        folder: folder of the page, its pictures and its videos; created if it does not exist.
        runs: the runs, in the order of the page. Those that did not reach their goal are in a table at its end.
        left_out: why an environment folder has no run, by its name.
        seconds: the time for which each environment was trained at most.
    """
    folder.mkdir(parents=True, exist_ok=True)
    reached = [run for run in runs if run.record["reached"]]
    page = folder / PAGE_FILE
    text = render(
        "gallery.md",
        entries=[_write_entry(folder, run) for run in reached],
        missed=[run for run in runs if not run.record["reached"]],
        left_out=left_out,
        seconds=seconds,
        machines=list(_list_machines(runs)),
    )
    replace_text(page, text)
    return page


def _write_entry(folder: Path, run: RunData) -> GalleryEntry:
    """Write the files of a run next to the page."""
    name = run.environment.strip("/").replace("/", "_")
    figure = draw_returns(run.metrics, run.goal)
    if figure:
        legend = [(entry.color, entry.label) for entry in figure.legend]
        panel = Panel(title=f"Return in {run.environment}", svg=str(figure.svg), legend=legend)
        replace_text(folder / f"{name}.svg", draw_picture([panel], MAIN_SIZE))
    videos = [path for path in run.videos if path.suffix == ".gif"]
    video = next((path for path in videos if path.name.endswith(SHOWN_VIDEO)), next(iter(videos), None))
    if video:
        shutil.copyfile(run.folder / video, folder / f"{name}.gif")
    curve = f"{name}.svg" if figure else None
    return GalleryEntry(run=run, facts=list_facts(run), curve=curve, video=f"{name}.gif" if video else None)


def _list_machines(runs: Sequence[RunData]) -> Iterator[str]:
    """Yield the machines that trained the runs, each once."""
    yield from dict.fromkeys(
        ", ".join(f"{name} {value}" for name, value in list_machine(run)) for run in runs if run.sessions
    )
