"""Share of the wall time of a run that display, evaluation, checkpoints and reports take.

The run lasts for a given number of seconds, and uses the command line's display with a terminal whose output is
discarded. The shares are the logged metrics time/*_fraction. The CPU time of the display alone is measured, too.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from measure import describe_setup
from rich.console import Console

from algorithm.cli.display import live_display
from algorithm.config.loader import read_assignments, resolve
from algorithm.config.yaml_layers import read_variant
from algorithm.parts import run_folder
from algorithm.runs.build import train
from algorithm.runs.callbacks import Callback
from algorithm.tools.reports.report_files import draw_curve
from algorithm.tools.reports.run_data import make_metrics
from algorithm.training.metrics import TABLE_FILE, read_table
from algorithm.training.progress import Progress
from algorithm.training.timer import PHASES

MAX_SHARE = 0.05  # of the wall time, for all phases of OVERHEAD together
MAX_DISPLAY_SHARE = 0.01  # of the CPU time, for the display
OVERHEAD = ("evaluation", "saving", "reporting", "final learning curve")


class StopAt(Callback):
    """A callback that stops a run at a time of `time.perf_counter`."""

    def __init__(self, end: float):
        self.end = end

    def on_progress(self, progress: Progress) -> bool:
        return time.perf_counter() > self.end


class MeasuredDisplay(Callback):
    """A display whose CPU seconds are measured."""

    def __init__(self, display: Callback):
        self.display, self.seconds = display, 0.0

    def on_progress(self, progress: Progress) -> None:
        begin = time.process_time()
        self.display.on_progress(progress)
        self.seconds += time.process_time() - begin


def run_for(seconds: float, env: str, assignments: list[str]) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Train for a given wall time. Return the logged metrics by column, and the seconds of CPU, display and curve."""
    source = run_folder.find_environment_folder(env)
    layers = [("config.yaml", read_variant(source / "config.yaml", "default")), ("", read_assignments(assignments))]
    with tempfile.TemporaryDirectory() as runs, Path(os.devnull).open("w") as null_file:
        run_folder.RUNS = Path(runs)
        settings = resolve(layers)
        folder = run_folder.RunFolder.create(env, source, "run", settings.tree)
        console = Console(file=null_file, force_terminal=True, width=120, _environ={"TERM": "xterm-256color"})
        end, cpu = time.perf_counter() + seconds, time.process_time()
        with live_display(console, console.print, "overhead") as live:
            display = MeasuredDisplay(live)
            train(settings, folder, console.print, [display, StopAt(end)])
        cpu, begin = time.process_time() - cpu, time.perf_counter()
        draw_curve(folder.path, None, print)
        seconds = {"cpu": cpu, "display": display.seconds, "curve": time.perf_counter() - begin}
        return dict(make_metrics(read_table(folder.path / TABLE_FILE), {}).columns), seconds


def main() -> None:
    """Print the seconds and the share of each phase of a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="wall time of the run")
    parser.add_argument("--env", default="gym/cartpole", help="environment folder below envs/")
    parser.add_argument("--every", type=int, default=50_000, help="env steps between evaluations and checkpoints")
    options = parser.parse_args()
    endless = ["goal.return=null", "base_config.max_step=null", "acer_config.learning_rate_schedule=constant"]
    every = [f"base_config.{what}_every={options.every}" for what in ("evaluate", "save")]
    columns, seconds = run_for(options.seconds, options.env, [*endless, *every])

    rows = np.isfinite(columns["time/seconds"])
    spent = np.diff(columns["time/seconds"][rows], prepend=0)
    phases = {phase: float(spent @ columns[f"time/{phase}_fraction"][rows]) for phase in PHASES}
    phases["final learning curve"] = seconds["curve"]
    wall = float(spent.sum()) + seconds["curve"]
    overhead = sum(phases[phase] for phase in OVERHEAD) / wall

    print(describe_setup())
    print(f"{options.env}, {options.seconds:.0f} s: {columns['env_steps'][-1]:,.0f} env steps, ", end="")
    print(f"{np.isfinite(columns['eval/return']).sum()} evaluations, {rows.sum()} rows of metrics, ", end="")
    print(f"{seconds['cpu']:.1f} CPU seconds")
    print("| phase | seconds | share of the wall time |")
    print("| --- | ---: | ---: |")
    for phase, seconds_of_phase in phases.items():
        print(f"| {phase} | {seconds_of_phase:.1f} | {seconds_of_phase / wall:.2%} |")
    print(f"| {', '.join(OVERHEAD)} together | {overhead * wall:.1f} | {overhead:.2%} |")
    print(f"at most {MAX_SHARE:.0%}: {'yes' if overhead <= MAX_SHARE else 'no'}")
    share = seconds["display"] / seconds["cpu"]
    print(f"display: {seconds['display']:.2f} of {seconds['cpu']:.1f} CPU seconds, {share:.2%}; ", end="")
    print(f"at most {MAX_DISPLAY_SHARE:.0%}: {'yes' if share <= MAX_DISPLAY_SHARE else 'no'}")


if __name__ == "__main__":
    main()
