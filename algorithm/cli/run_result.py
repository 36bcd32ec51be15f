"""The result of a run at its end, with the commands that continue from it."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from math import isnan
from typing import TYPE_CHECKING

from algorithm.config.registry import find_run_tool
from algorithm.program import get_command, role_suffix
from algorithm.training.metrics import format_number

if TYPE_CHECKING:  # imports of torch, which take seconds
    from algorithm.parts.run_folder import RunFolder
    from algorithm.runs.callbacks import RunResult


def report_result(log: Callable[[str], None], environment: str, folder: RunFolder, result: RunResult) -> None:
    """Log the result of a run that ended, its folder and the next commands; draw its curve."""
    for line in _describe_result(result):
        log(line)
    goal = folder.load_settings().goal
    draw_curve = find_run_tool("curve")
    curve = draw_curve(folder.path, goal.return_ if goal else None, log) if draw_curve else None
    run = [*get_command().split(), environment, "-n", folder.path.name]
    log(f"run folder: {folder}")
    if curve:
        log(f"curve:      {folder.given_path / curve.name}")
    log(f"play it:    {_join_command(*run, '--run')}")
    log(f"resume:     {_join_command(*run, '--resume')}")
    log(f"curves:     {_join_command('tensorboard', '--logdir', str(folder))}")


def describe_saved(environment: str, folder: RunFolder) -> str:
    """Return a sentence on what is saved of a run that was interrupted, and how to resume it."""
    if not folder.checkpoints(keep=1):
        return " Nothing was saved: the run had no checkpoint yet."
    command = _join_command(*get_command().split(), environment, "-n", folder.path.name, "--resume")
    return f" Checkpoint saved in {folder}; resume with: {command}"


def _describe_result(result: RunResult) -> list[str]:
    counters = result.counters
    done = f"{counters.env_steps:,} env steps, {counters.episodes:,} episodes, {counters.seconds:.1f} s"
    confirmed = "and confirmed by evaluation episodes"
    if result.confirmed_by == "training":
        confirmed = "and confirmed by training episodes only, since nothing could be evaluated,"
    lines = [
        {
            True: f"goal reached {confirmed} after {done}",
            False: f"goal not reached within {done}",
            None: f"done after {done}",
        }[result.goal_reached]
    ]
    for role, value in result.returns.items():
        mean = "no episode has ended yet" if isnan(value) else format_number(value)
        lines.append(f"mean return{role_suffix(role)} of the last training episodes: {mean}")
    for role, played in (result.evaluation or {}).items():
        lines.append(f"last evaluation{role_suffix(role)}: {played}")
    if result.best is not None and result.best.counters.env_steps != counters.env_steps:
        lines.append(
            f"best in evaluation, used by --run: the weights after {result.best.counters.env_steps:,} env steps"
        )
    return lines


def _join_command(*words: str) -> str:
    """Return a command line with the quotes of the user's shell."""
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)
