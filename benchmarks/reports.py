"""CPU seconds and size of reports and of a comparison.

The reports are of a CartPole run, and of the same run with the metrics of 10 million env steps. The comparison is of 20
copies of the run, in two groups, each with the metrics of a million env steps. Each page is written in a process of its
own.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

MAIN = Path(__file__).resolve().parents[1] / "main.py"
THREADS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
ENVIRONMENT, NAME = "gym/cartpole", "a"
LONG_RUN = 10_000_000  # env steps
COMPARED_RUNS, COMPARED_STEPS, ROW_STEPS = 20, 1_000_000, 2000  # runs, env steps of each and of each row of metrics
MAX_SECONDS, MAX_LONG_SECONDS, MAX_COMPARISON_SECONDS = 3.0, 10.0, 5.0  # CPU seconds
MAX_BYTES = 2_000_000  # of each page


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page, with the command that writes it.

    Attributes:
        name: what it shows.
        arguments: of the command.
        path: of the page.
        metrics: the metrics that it reads.
        limit: CPU seconds that it may take.
    """

    name: str
    arguments: tuple[str, ...]
    path: Path
    metrics: list[Path]
    limit: float


def main() -> None:
    """Print a table: page, rows of metrics, CPU seconds and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="how often each page is written")
    repeats = parser.parse_args().repeats
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, each page {repeats} times, CPU seconds [range]")
    print("| page | rows of metrics | CPU seconds | bytes |")
    print("| --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_program(folder, ENVIRONMENT, "-n", NAME)
        run = folder / "runs" / ENVIRONMENT / NAME
        compared = write_compared_runs(run, folder / "compared")
        print_row(folder, make_report_page("report of CartPole until its goal", run, MAX_SECONDS), repeats)
        for row_steps in (ROW_STEPS, 200):
            extend_metrics(run / "metrics.csv", run / "metrics.csv", LONG_RUN, row_steps)
            title = f"report of {LONG_RUN:,} env steps, a row for each {row_steps:,}"
            print_row(folder, make_report_page(title, run, MAX_LONG_SECONDS), repeats)
        comparison = Page(
            name=f"comparison of {COMPARED_RUNS} runs of {COMPARED_STEPS:,} env steps, a row for each {ROW_STEPS:,}",
            arguments=("compare", str(folder / "compared")),
            path=folder / "compared/compare.html",
            metrics=[path / "metrics.csv" for path in compared],
            limit=MAX_COMPARISON_SECONDS,
        )
        print_row(folder, comparison, repeats)


def make_report_page(name: str, run: Path, limit: float) -> Page:
    """Return the report of a run."""
    return Page(
        name=name,
        arguments=("report", ENVIRONMENT, "-n", NAME),
        path=run / "report.html",
        metrics=[run / "metrics.csv"],
        limit=limit,
    )


def print_row(folder: Path, page: Page, repeats: int) -> None:
    """Write a page several times, and print its figures."""
    seconds = [run_program(folder, *page.arguments) for _ in range(repeats)]
    rows = sum(len(path.read_text().splitlines()) - 1 for path in page.metrics)
    spread = f"{median(seconds):.2f} [{min(seconds):.2f} - {max(seconds):.2f}] (at most {page.limit:g})"
    size = page.path.stat().st_size
    print(f"| {page.name} | {rows:,} | {spread} | {size:,} (at most {MAX_BYTES:,}) |", flush=True)


def run_program(folder: Path, *arguments: str) -> float:
    """Return the CPU seconds of a command in a folder, from its start to its exit."""
    before = os.times()
    command = [sys.executable, str(MAIN), *arguments]
    subprocess.run(command, cwd=folder, env={**os.environ, **THREADS}, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def write_compared_runs(run: Path, folder: Path) -> list[Path]:
    """Write copies of a run, half of them with another learning rate, each with its own seed and noise; return them."""
    found = []
    for number in range(COMPARED_RUNS):
        group, seed = divmod(number, COMPARED_RUNS // 2)
        copy = folder / f"group{group}-{seed + 1}"
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints", "tensorboard"))
        lines = (copy / "config.yaml").read_text().splitlines()
        changes = {"  seed: ": f"  seed: {seed}", "  learning_rate: ": f"  learning_rate: {0.001 * (group + 1)}"}
        lines = [next((new for old, new in changes.items() if line.startswith(old)), line) for line in lines]
        (copy / "config.yaml").write_text("\n".join([*lines, ""]))
        extend_metrics(run / "metrics.csv", copy / "metrics.csv", COMPARED_STEPS, ROW_STEPS, number)
        found.append(copy)
    return found


def extend_metrics(source: Path, table: Path, env_steps: int, row_steps: int, seed: int = 0) -> None:
    """Write the metrics of a long run: rows of a table in turn, each value with noise of up to 10%."""
    with source.open(newline="") as file:
        rows = list(csv.DictReader(file))
    rng = random.Random(seed)
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        for number in range(1, env_steps // row_steps + 1):
            values = rows[number % len(rows)].items()
            row = {name: value and float(value) * rng.uniform(0.9, 1.1) for name, value in values}
            writer.writerow({**row, "env_steps": number * row_steps, "time/seconds": number})


if __name__ == "__main__":
    main()
