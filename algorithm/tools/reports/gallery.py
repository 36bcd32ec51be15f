"""The gallery: a page with the curves, the videos and the figures of runs in many environment folders.

A record next to the page has all that the page shows, so that later calls add folders to it, on any machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from algorithm.atomic_io import replace_bytes, replace_text
from algorithm.errors import UserError
from algorithm.records_io import OpenRecord, RecordError, read_json, write_json
from algorithm.tools.reports.charts import draw_picture
from algorithm.tools.reports.headline import Fact, list_facts
from algorithm.tools.reports.page import render
from algorithm.tools.reports.run_data import RunData
from algorithm.tools.reports.run_figures import draw_returns
from algorithm.tools.reports.run_tables import list_machine

PAGE_FILE, RECORD_FILE = "index.md", "gallery.json"
COLUMNS = 3  # of the grid of pictures
SHOWN_VIDEO = "-median.gif"  # end of its name: neither the best nor the worst episode


@dataclass(frozen=True, kw_only=True)
class GalleryEntry:
    """A run on the page.

    Attributes:
        environment: name of its environment folder.
        algorithm: its algorithm.
        goal: mean return of its goal; None without one.
        reached: whether it reached the goal.
        env_steps: its env steps.
        seconds: time of its training.
        limit: seconds for which it was trained at most; None if they are not known.
        mean_return: mean training return at its end; None if no episode has ended.
        machine: the machine that trained it, without its system; empty if it is not known.
        facts: its figures, if it reached the goal.
        curve: file with the chart of its returns, next to the page; None without one.
        video: file with a video, next to the page; None without one.
    """

    environment: str
    algorithm: str
    goal: float | None
    reached: bool
    env_steps: int
    seconds: float | None
    limit: float | None
    mean_return: float | None
    machine: str
    facts: Sequence[Fact] = ()
    curve: str | None = None
    video: str | None = None

    @property
    def anchor(self) -> str:
        """The anchor of its heading, as GitHub and the documentation site make it."""
        return re.sub(r"[^\w-]", "", self.environment.lower().replace(" ", "-"))


class GalleryRecord(OpenRecord):
    """The content of gallery.json."""

    entries: list[GalleryEntry]
    left_out: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """What a page shows: runs, and the reason why an environment folder has none, each by the name of the folder."""

    entries: Mapping[str, GalleryEntry] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)


def read_gallery(folder: Path) -> Gallery:
    """Return what the page in a folder shows; nothing if there is none. Raises UserError for a damaged record."""
    try:
        record = read_json(folder / RECORD_FILE, GalleryRecord)
    except RecordError as error:
        raise UserError(f"{error}: repair it, or remove it for a new page") from error
    if record is None:
        return Gallery()
    return Gallery(entries={each.environment: each for each in record["entries"]}, left_out=record["left_out"])


def write_gallery(folder: Path, gallery: Gallery) -> Path:
    """Write the page and its record into a folder, which has the pictures of its entries. Return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = [gallery.entries[name] for name in sorted(gallery.entries)]
    left_out = {name: gallery.left_out[name] for name in sorted({*gallery.left_out} - {*gallery.entries})}
    write_json(folder / RECORD_FILE, {"entries": [asdict(entry) for entry in entries], "left_out": left_out})
    page = folder / PAGE_FILE
    text = render(
        "gallery.md",
        entries=[entry for entry in entries if entry.reached],
        shown=[entry for entry in entries if entry.reached and (entry.video or entry.curve)],
        missed=[entry for entry in entries if not entry.reached],
        left_out=left_out,
        columns=COLUMNS,
        machines=list(dict.fromkeys(entry.machine for entry in entries if entry.machine)),
    )
    replace_text(page, text)
    return page


def make_entry(folder: Path, run: RunData, limit: float | None) -> GalleryEntry:
    """Return the entry of a run; if it reached its goal, its chart and its video are written into the folder.

    Args:
        folder: folder of the page; created if it does not exist.
        run: the content of its folder.
        limit: seconds for which it was trained at most; None if they are not known.
    """
    folder.mkdir(parents=True, exist_ok=True)
    reached = bool(run.record["reached"])
    return GalleryEntry(
        environment=run.environment,
        algorithm=run.algorithm,
        goal=run.goal,
        reached=reached,
        env_steps=run.record["env_steps"],
        seconds=run.record["seconds"],
        limit=limit,
        mean_return=next(iter(run.record["returns"].values()), None),
        machine=", ".join(f"{name} {value}" for name, value in list_machine(run) if name != "system"),
        facts=tuple(list_facts(run)) if reached else (),
        curve=_write_curve(folder, run) if reached else None,
        video=_copy_video(folder, run) if reached else None,
    )


def _write_curve(folder: Path, run: RunData) -> str | None:
    """Write the chart of the returns of a run, and return the name of the file; None if no episode has ended."""
    chart = draw_returns(run.metrics, run.goal)
    if not chart.legend:
        return None
    name = f"{_make_stem(run)}.svg"
    picture = draw_picture([replace(chart, title=f"Return in {run.environment}")])
    replace_text(folder / name, picture.to_svg_file())
    return name


def _copy_video(folder: Path, run: RunData) -> str | None:
    """Copy a video of a run, and return the name of the file; None if there is none."""
    videos = [path for path in run.videos if path.suffix == ".gif"]
    video = next((path for path in videos if path.name.endswith(SHOWN_VIDEO)), next(iter(videos), None))
    if video is None:
        return None
    name = f"{_make_stem(run)}.gif"
    replace_bytes(folder / name, (run.folder / video).read_bytes())
    return name


def _make_stem(run: RunData) -> str:
    return run.environment.strip("/").replace("/", "_")
