"""CPU seconds and size of the report of a CartPole run, and of the same run with the metrics of 10 million env steps.

Each report is written by `python main.py gym/cartpole --report` in a process of its own.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

MAIN = Path(__file__).resolve().parents[1] / "main.py"
THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
LONG_RUN = 10_000_000  # env steps
MAX_SECONDS, MAX_LONG_SECONDS = 3.0, 10.0  # CPU seconds of the report of the run, and of the long one
MAX_BYTES = 2_000_000  # of report.html


def main() -> None:
    """Print a table: run, rows of metrics, CPU seconds and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="reports of each run")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {options.repeats} reports, CPU seconds [range]")
    print("| run | rows of metrics | CPU seconds | bytes |")
    print("| --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        run_program(Path(folder), "-n", "a")
        run = Path(folder) / "runs/gym/cartpole/a"
        print_row("CartPole until its goal", run, options.repeats, MAX_SECONDS)
        for row_steps in (2000, 200):
            extend_metrics(run / "metrics.csv", row_steps)
            name = f"{LONG_RUN:,} env steps, a row for each {row_steps:,}"
            print_row(name, run, options.repeats, MAX_LONG_SECONDS)


def print_row(name: str, run: Path, repeats: int, limit: float) -> None:
    """Write the report of a run several times, and print its figures."""
    seconds = [run_program(run.parents[3], "-n", run.name, "--report") for _ in range(repeats)]
    rows = len((run / "metrics.csv").read_text().splitlines()) - 1
    size = (run / "report.html").stat().st_size
    spread = f"{median(seconds):.2f} [{min(seconds):.2f} - {max(seconds):.2f}] (at most {limit:g})"
    print(f"| {name} | {rows:,} | {spread} | {size:,} (at most {MAX_BYTES:,}) |", flush=True)


def run_program(folder: Path, *arguments: str) -> float:
    """Return the CPU seconds of a command for gym/cartpole in a folder, from its start to its exit."""
    before = os.times()
    command = [sys.executable, str(MAIN), "gym/cartpole", *arguments]
    subprocess.run(command, cwd=folder, env={**os.environ, **THREADS}, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def extend_metrics(table: Path, row_steps: int) -> None:
    """Replace a table of metrics by one of a long run: its rows in turn, each value with noise of up to 10%."""
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    rng = random.Random(0)
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        for number in range(1, LONG_RUN // row_steps + 1):
            source = rows[number % len(rows)].items()
            row = {name: value and float(value) * rng.uniform(0.9, 1.1) for name, value in source}
            writer.writerow({**row, "env_steps": number * row_steps, "time/seconds": number})


if __name__ == "__main__":
    main()
