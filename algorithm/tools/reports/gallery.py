"""The gallery: it trains environment folders, each for a limited time, and shows their runs on a page.

A record next to the page has all that the page shows, so that later calls add folders to it, on any machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from algorithm.atomic_io import replace_bytes, replace_text
from algorithm.cli.output import Output
from algorithm.config.yaml_layers import read_variant
from algorithm.errors import UserError
from algorithm.parts.env_folder import (
    CONFIG_FILE,
    RUNS,
    find_folder,
    get_run_group,
    list_environments,
    make_unknown_error,
)
from algorithm.program import PACKAGE
from algorithm.records_io import OpenRecord, RecordError, read_json, write_json
from algorithm.tools.reports.charts import draw_picture
from algorithm.tools.reports.page import format_duration, render
from algorithm.tools.reports.report_files import Fact, draw_returns, list_facts, list_machine
from algorithm.tools.reports.run_data import RunData, read_run

NAME = "gallery"  # of every run
VARIANT = "default"
STOP_SECONDS = 120  # in which a run whose time is over starts and ends: it is evaluated, and saves its checkpoint
PAGE_FILE, RECORD_FILE = "index.md", "gallery.json"
SHOWN_VIDEO = "-median.gif"  # end of its name: neither the best nor the worst episode


@dataclass(frozen=True, kw_only=True)
class GalleryEntry:
    """A run on the page.

    Attributes:
        environment: name of its environment folder.
        goal: mean return of its goal; None without one.
        reached: whether it is at its goal, as `is_at_goal` decides.
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

    @property
    def picture(self) -> str | None:
        """The file of its picture in the grid; None if it has neither a video nor a curve."""
        return self.video or self.curve

    def __str__(self) -> str:
        """Return its result in a few words."""
        reached = "goal reached" if self.reached else "goal not reached"
        seconds = "" if self.seconds is None else f" in {format_duration(self.seconds)}"
        return f"{reached}, {self.env_steps:,} env steps{seconds}"


class GalleryRecord(OpenRecord):
    """The content of gallery.json."""

    entries: list[GalleryEntry]
    left_out: dict[str, str]


def show_gallery(folder: Path, part: str | None, seconds: int, is_forced: bool, output: Output) -> None:
    """Train the environment folders that `part` selects, each for at most `seconds`, and add them to the page.

    A folder that is on the page, or has a complete run of an earlier call, is trained again only if `is_forced`; the
    run is shown as it is now. The page is written after each folder, so that it is complete if the command is
    interrupted; a run that was interrupted is not shown, and trained again by a later call.
    """
    entries, left_out = read_gallery(folder)
    for environment in select_environments(part):
        entry, run, reason = entries.get(environment), read_complete_run(environment), None
        limit = entry.limit if entry else None
        if is_forced or not (entry or run):
            reason = train_within(environment, seconds, output)
            limit, run = seconds, read_complete_run(environment)
        if reason:
            left_out[environment] = reason
        elif run:
            entries[environment] = make_entry(folder, run, limit)
        output.log(f"{environment}: {f'not trained: {reason}' if reason else entries[environment]}")
        write_gallery(folder, entries, left_out)
    page = write_gallery(folder, entries, left_out)
    reached = sorted(name for name, entry in entries.items() if entry.reached)
    output.result = {"page": page.as_posix(), "reached": reached}
    output.log(f"page: {page}")


def select_environments(part: str | None) -> list[str]:
    """Return the environment folders with this name or in this group; all of them for None. Raises UserError."""
    selected = [name for name in list_environments() if part in (None, name) or name.startswith(f"{part}/")]
    if part and not selected:
        if not find_folder(part):
            raise make_unknown_error(part)
        return [part]
    return selected


def read_complete_run(environment: str) -> RunData | None:
    """Return the content of the run of an environment folder; None without one, and if it was interrupted or failed."""
    folder = RUNS / get_run_group(environment) / NAME
    run = read_run(folder) if folder.is_dir() else None
    return run if run and run.record["status"] == 0 and not run.in_training else None


def is_at_goal(run: RunData) -> bool:
    """Return whether training ended at the goal, or every mean return of the evaluation is at least the goal.

    Random actions of an exploring agent can keep its training episodes below a goal that its evaluation reaches.
    """
    reached, evaluation = bool(run.record["reached"]), run.record.get("evaluation")
    if reached or run.goal is None or not evaluation:
        return reached
    return all(one["mean"] >= run.goal for one in evaluation.values())


def train_within(environment: str, seconds: int, output: Output) -> str | None:
    """Train a run for at most `seconds`, and record videos of it if it is at its goal. Return why there is no run."""
    folder = find_folder(environment)
    assert folder is not None  # as of every folder in the list
    if read_variant(folder / CONFIG_FILE, VARIANT).get("goal") is None:
        return "its config.yaml has no goal"
    output.log(f"training {environment} for at most {seconds} s")
    training = [environment, "-n", NAME, "--force", "--seconds", str(seconds)]  # it ends, even if this process does not
    result = _run_command(training, seconds + STOP_SECONDS)
    if "error" in result:
        return result["error"]
    run = read_complete_run(environment)
    if run is None:
        return f"it has learned nothing within {seconds} s"
    if is_at_goal(run):
        videos = _run_command([environment, "-n", NAME, "--run", "--video"], None)
        if "error" in videos:
            output.log(f"{environment}: no video: {videos['error']}")
    return None


def _run_command(arguments: Sequence[str], seconds: float | None) -> dict[str, Any]:
    """Run a command of this program in its own process, which is killed after `seconds`. Return its result."""
    command = [sys.executable, "-m", "algorithm", *arguments, "--json"]
    paths = filter(None, (str(PACKAGE.parent), os.environ.get("PYTHONPATH")))
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        done = subprocess.run(command, env=variables, timeout=seconds, capture_output=True, check=False)
        return json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"error": f"its process did not end within {seconds:.0f} s"}
    except ValueError:
        return {"error": f"its process ended with status {done.returncode}"}


def read_gallery(folder: Path) -> tuple[dict[str, GalleryEntry], dict[str, str]]:
    """Return what the page in a folder shows: the entries, and the reasons for the folders without one, by folder.

    Raises UserError for a damaged record.
    """
    try:
        record = read_json(folder / RECORD_FILE, GalleryRecord)
    except RecordError as error:
        raise UserError(f"{error}: repair it, or remove it for a new page") from error
    return ({each.environment: each for each in record["entries"]}, record["left_out"]) if record else ({}, {})


def write_gallery(folder: Path, entries: Mapping[str, GalleryEntry], left_out: Mapping[str, str]) -> Path:
    """Write the page and its record into a folder, which has the pictures of its entries. Return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = [entries[name] for name in sorted(entries)]
    reasons = {name: left_out[name] for name in sorted({*left_out} - {*entries})}
    write_json(folder / RECORD_FILE, {"entries": [asdict(entry) for entry in shown], "left_out": reasons})
    replace_text(folder / PAGE_FILE, render("gallery.md", all_entries=shown, left_out=reasons))
    return folder / PAGE_FILE


def make_entry(folder: Path, run: RunData, limit: float | None) -> GalleryEntry:
    """Return the entry of a run; if it is at its goal, its chart and its video are written into the folder.

    Args:
        folder: folder of the page; created if it does not exist.
        run: the content of its folder.
        limit: seconds for which it was trained at most; None if they are not known.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entry = GalleryEntry(
        environment=run.environment,
        algorithm=run.algorithm,
        goal=run.goal,
        reached=is_at_goal(run),
        env_steps=run.record["env_steps"],
        seconds=run.record["seconds"],
        limit=limit,
        mean_return=next(iter(run.record["returns"].values()), None),
        machine=", ".join(f"{name} {value}" for name, value in list_machine(run).items() if name != "system"),
    )
    if not entry.reached:
        return entry
    stem, curve, video = run.environment.strip("/").replace("/", "_"), None, None
    chart = draw_returns(run.metrics, run.goal)
    if chart.legend:  # otherwise no episode has ended
        curve = f"{stem}.svg"
        picture = draw_picture([replace(chart, title=f"Return in {run.environment}")])
        replace_text(folder / curve, picture.to_svg_file())
    if videos := [path for path in run.videos if path.suffix == ".gif"]:
        video = f"{stem}.gif"
        shown = next((path for path in videos if path.name.endswith(SHOWN_VIDEO)), videos[0])
        replace_bytes(folder / video, (run.folder / shown).read_bytes())
    return replace(entry, facts=list_facts(run), curve=curve, video=video)
