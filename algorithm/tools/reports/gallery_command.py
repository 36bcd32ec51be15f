"""The command `gallery`: train environment folders, each for a limited time, and show them on a page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from algorithm.config.variants import read_variant
from algorithm.parts.env_folder import (
    CONFIG_FILE,
    RUNS,
    find_folder,
    get_run_group,
    list_environments,
    make_unknown_error,
)
from algorithm.program import PACKAGE
from algorithm.runs.commands import Output
from algorithm.tools.reports.gallery import Gallery, GalleryEntry, make_entry, read_gallery, write_gallery
from algorithm.tools.reports.page import format_duration
from algorithm.tools.reports.run_data import RunData, read_run

NAME = "gallery"  # of every run
VARIANT = "default"
STOP_SECONDS = 60  # in which a run whose time is over starts or ends: it is evaluated, and saves its checkpoint


def show_gallery(folder: Path, part: str | None, seconds: int, is_forced: bool, output: Output) -> None:
    """Train the environment folders that `part` selects, each for at most `seconds`, and add them to the page.

    A folder that is on the page, or has a complete run of an earlier call, is trained again only if `is_forced`; the
    run is shown as it is now. The page is written after each folder, so that it is complete if the command is
    interrupted; a run that was interrupted is not shown, and trained again by a later call.
    """
    gallery = read_gallery(folder)
    for environment in select_environments(part):
        gallery = _update(gallery, folder, environment, seconds, is_forced, output)
        write_gallery(folder, gallery)
    page = write_gallery(folder, gallery)
    reached = sorted(name for name, entry in gallery.entries.items() if entry.reached)
    output.result = {"page": page.as_posix(), "reached": reached}
    output.log(f"page: {page}")


def _update(gallery: Gallery, folder: Path, environment: str, seconds: int, is_forced: bool, output: Output) -> Gallery:
    """Return the gallery with the run of an environment folder, or with the reason why there is none."""
    entry, run = gallery.entries.get(environment), read_complete_run(environment)
    limit = entry.limit if entry else None
    if is_forced or not (entry or run):
        if reason := train_within(environment, seconds, output):
            output.log(f"{environment}: not trained: {reason}")
            return Gallery(entries=gallery.entries, left_out={**gallery.left_out, environment: reason})
        limit, run = seconds, read_complete_run(environment)
    if run:
        entry = make_entry(folder, run, limit)
    assert entry is not None  # it has a run, or was on the page
    output.log(f"{environment}: {describe_progress(entry)}")
    return Gallery(entries={**gallery.entries, environment: entry}, left_out=gallery.left_out)


def select_environments(part: str | None) -> list[str]:
    """Return the environment folders with this name or in this group; all of them for None. Raises UserError."""
    known = list_environments()
    if part is None:
        return known
    selected = [name for name in known if name == part or name.startswith(f"{part}/")]
    if not selected and find_folder(part):
        selected = [part]
    if not selected:
        raise make_unknown_error(part)
    return selected


def find_run(environment: str) -> Path:
    """Return the folder of the run of an environment folder, which need not exist."""
    return RUNS / get_run_group(environment) / NAME


def read_complete_run(environment: str) -> RunData | None:
    """Return the content of the run of an environment folder; None without one, and if it was interrupted or failed."""
    folder = find_run(environment)
    run = read_run(folder) if folder.is_dir() else None
    return run if run and run.record["status"] == 0 and not run.in_training else None


def train_within(environment: str, seconds: int, output: Output) -> str | None:
    """Train a run for at most `seconds`, and record videos of it if it reached its goal. Return why there is no run."""
    if read_variant(_find_config(environment), VARIANT).get("goal") is None:
        return "its config.yaml has no goal"
    output.log(f"training {environment} for at most {seconds} s")
    training = [environment, "-n", NAME, "--force", "--seconds", str(seconds)]  # it ends, even if this process does not
    result = _run_command(training, seconds + 2 * STOP_SECONDS)
    if "error" in result:
        return result["error"]
    if read_complete_run(environment) is None:
        return f"it has learned nothing within {seconds} s"
    if result.get("reached"):
        videos = _run_command([environment, "-n", NAME, "--run", "--video"], None)
        if "error" in videos:
            output.log(f"{environment}: no video: {videos['error']}")
    return None


def describe_progress(entry: GalleryEntry) -> str:
    """Return a line on a run."""
    reached = "goal reached" if entry.reached else "goal not reached"
    seconds = "" if entry.seconds is None else f" in {format_duration(entry.seconds)}"
    return f"{reached}, {entry.env_steps:,} env steps{seconds}"


def _run_command(arguments: Sequence[str], seconds: float | None) -> dict[str, Any]:
    """Run a command of this program in its own process, which is stopped after `seconds`. Return its result."""
    command = [sys.executable, "-m", "algorithm", *arguments, "--json"]
    paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            printed, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            printed = _wait(process)
        except BaseException:
            process.terminate()
            raise
    try:
        return json.loads(printed)
    except ValueError:
        return {"status": process.returncode, "error": f"its process ended with status {process.returncode}"}


def _wait(process: subprocess.Popen[bytes]) -> bytes:
    """Return what a process that was stopped prints; kill it if it does not end."""
    try:
        return process.communicate(timeout=STOP_SECONDS)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]


def _find_config(environment: str) -> Path:
    folder = find_folder(environment)
    assert folder is not None  # as of every folder in the list
    return folder / CONFIG_FILE
