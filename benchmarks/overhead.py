"""What display, evaluation and saving take of a run's wall time: one run of so many seconds, as a user would start it.

The run's own clock books every moment to a part, and its rows of metrics tell the shares; the display draws for a
terminal whose output goes nowhere. `--env gym/lunar_lander` or any other folder.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from measure import machine
from rich.console import Console

from algorithm.cli.display import live_display
from algorithm.config.loader import read_assignments, read_variant, resolve
from algorithm.runs import run_folder
from algorithm.runs.build import train
from algorithm.runs.callbacks import Callback
from algorithm.runs.curve import draw_curve, read_columns
from algorithm.training.metrics import TABLE_FILE
from algorithm.training.progress import Progress
from algorithm.training.timer import PHASES

LIMIT = 0.05  # of the wall time, for evaluation, saving, reporting and drawing together
WATCHING = ("evaluation", "saving", "reporting", "the curve at the end")


class StopAt(Callback):
    """A callback that stops a run at a time of `time.perf_counter`."""

    def __init__(self, end: float):
        self.end = end

    def on_progress(self, progress: Progress) -> bool:
        return time.perf_counter() > self.end


def run_for(seconds: float, env: str, assignments: list[str]) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Train for so many seconds of wall time; the run's metrics by column, and CPU and drawing seconds."""
    source = run_folder.find_environment_folder(env)
    layers = [("config.yaml", read_variant(source / "config.yaml", "default")), ("", read_assignments(assignments))]
    with tempfile.TemporaryDirectory() as place, Path(os.devnull).open("w") as nowhere:
        run_folder.RUNS = Path(place)
        settings = resolve(layers)
        folder = run_folder.RunFolder.create(env, source, "run", settings.tree)
        console = Console(file=nowhere, force_terminal=True, width=120, _environ={"TERM": "xterm-256color"})
        end, cpu = time.perf_counter() + seconds, time.process_time()
        with live_display(console, console.print) as display:
            train(settings, folder, console.print, [display, StopAt(end)])
        cpu, begin = time.process_time() - cpu, time.perf_counter()
        draw_curve(folder.path, None, print)
        return read_columns(folder.path / TABLE_FILE), {"cpu": cpu, "curve": time.perf_counter() - begin}


def main() -> None:
    """Print where the time of one run went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--env", default="gym/cartpole")
    parser.add_argument("--every", type=int, default=50_000, help="env steps between evaluations and checkpoints")
    options = parser.parse_args()
    endless = ["goal.return=null", "base_config.max_step=null", "acer_config.learning_rate_schedule=constant"]
    every = [f"base_config.{what}_every={options.every}" for what in ("evaluate", "save")]
    columns, seconds = run_for(options.seconds, options.env, [*endless, *every])

    rows = np.isfinite(columns["time/seconds"])
    spent = np.diff(columns["time/seconds"][rows], prepend=0)
    parts = {part: float(spent @ columns[f"time/{part}_fraction"][rows]) for part in PHASES}
    parts["the curve at the end"] = seconds["curve"]
    wall = float(spent.sum()) + seconds["curve"]
    watching = sum(parts[part] for part in WATCHING) / wall

    print(machine())
    print(f"{options.env}, {options.seconds:.0f} s: {columns['env_steps'][-1]:,.0f} env steps, ", end="")
    print(f"{np.isfinite(columns['eval/return']).sum()} evaluations, {rows.sum()} rows of metrics, ", end="")
    print(f"{seconds['cpu']:.1f} CPU seconds")
    print("| part | seconds | share of the wall time |")
    print("| --- | ---: | ---: |")
    for part, taken in parts.items():
        print(f"| {part} | {taken:.1f} | {taken / wall:.2%} |")
    print(f"| the last four together | {watching * wall:.1f} | {watching:.2%} |")
    print(f"at most {LIMIT:.0%}: {'yes' if watching <= LIMIT else 'no'}")


if __name__ == "__main__":
    main()
