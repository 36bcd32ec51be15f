"""Run folders, written without training: one with all files that a report reads, and runs with known curves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.config.yaml_layers import Tree, format_yaml, load_defaults, merge
from algorithm.networks.precision import Placement
from algorithm.parts.network_record import record_network
from algorithm.parts.run_folder import RunFolder
from algorithm.records_io import append_json_line, write_json
from algorithm.runs.results import RESULT_FILE
from tests.builders import make_acer, make_role

SETTINGS: Tree = {
    "base_config": {
        "name": "first",
        "env_name": "CartPole-v1",
        "algorithm": "ACER",
        "n_envs": 4,
        "seed": 7,
        "max_step": 6000,
    },
    "acer_config": {"gamma": 0.98, "learning_rate": 0.002},
    "sac_config": {"gamma": 0.5},
    "goal": {"return": 475},
}
VERSIONS = {"python": "3.11.7", "samara": "0.1.0", "torch": "2.13.0"}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FAULT = "2026-01-01 00:00:00 at 200 env steps: <script>alert(1)</script>"
RETURNS = [459.0, 480.0, 500.0]
RESULT: dict[str, Any] = {
    "environment": "gym/cartpole",
    "algorithm": "ACER",
    "variant": "default",
    "seed": 7,
    "versions": VERSIONS,
    "commit": COMMIT,
    "reached": True,
    "confirmed_by": "evaluation",
    "stopped": False,
    "status": 0,
    "env_steps": 6000,
    "updates": 1234,
    "episodes": 97,
    "seconds": 12.5,
    "returns": {"agent": 476.25},
    "evaluation": {
        "agent": {
            "mean": 479.7, "low": 428.8, "high": 530.6, "std": 20.5, "length": 479.7, "episodes": 3, "returns": RETURNS,
        },
    },
}  # fmt: skip
ROWS, ROW_STEPS = 60, 100  # rows of metrics, and their distance in env steps
PHASES = ("environment", "acting", "learning")


def make_row(row: int) -> dict[str, float]:
    """Return the metrics of a row, from 1."""
    rng = np.random.default_rng(row)
    values = {
        "time/seconds": 0.2 * row,
        "time/env_steps_per_second": 500 + rng.normal(),
        "time/updates_per_second": 100 + rng.normal(),
        "time/episodes": 97 if row == ROWS else row,
        "time/updates": 1234 if row == ROWS else 20 * row,
        "rollout/return": 476.25 if row == ROWS else 8 * row + rng.normal(),
        "rollout/length": 8 * row + rng.normal(),
        "rollout/episode_return": 8 * row + 40 * rng.normal(),
        "train/critic_loss": 1 / row,
        "train/entropy": 0.7 - 0.005 * row,
        "train/kl_to_average": 0.01 * rng.uniform(),
        "train/replay_fill": row / ROWS,
        **{f"time/{name}_fraction": (0.2, 0.3, 0.5)[index] for index, name in enumerate(PHASES)},
    }
    if row % 20 == 0:
        mean = 479.7 if row == ROWS else 7.0 * row
        values |= {"eval/return": mean, "eval/return_low": mean - 50.9, "eval/return_high": mean + 50.9}
        values |= {"eval/return_std": 20.5, "eval/length": mean}
    return values


def write_files(folder: Path, settings: Mapping[str, Any], record: Mapping[str, Any], lines: Sequence[str]) -> Tree:
    """Write settings, result and the lines of metrics.csv into a new run folder; return all of its settings."""
    folder.mkdir(parents=True)
    tree = merge(load_defaults(), settings)
    (folder / "config.yaml").write_text(format_yaml(tree))
    (folder / "environment.txt").write_text(f"{record['environment']}\n")
    write_json(folder / RESULT_FILE, dict(record))
    (folder / "metrics.csv").write_text("\n".join([*lines, ""]), encoding="utf-8")
    return tree


def write_curve(
    folder: Path,
    curve: Mapping[int, float],
    *,
    goal: float | None = 100.0,
    settings: Mapping[str, Any] | None = None,
    column: str = "rollout/return",
    damaged_after: Sequence[int] = (),
    **changes: Any,
) -> Path:
    """Write the folder of a run of mine/task that did not reach its goal, and return it.

    Args:
        folder: its folder, which is made.
        curve: {env steps: value} of `column`.
        goal: mean return of its goal.
        settings: further settings, as a tree.
        column: name of its metric.
        damaged_after: env steps after whose row the table has a damaged line.
        changes: other items of its result.
    """
    last = max(curve)
    record = {**RESULT, "environment": "mine/task", "seed": 0, "reached": None if goal is None else False}
    record |= {"env_steps": last, "returns": {"agent": curve[last]}, "evaluation": None, **changes}
    base = {"algorithm": record["algorithm"], "name": folder.name, "seed": record["seed"]}
    own = {"base_config": base, "goal": None if goal is None else {"return": goal, "step_budget": None}}
    rows = [(f"{env_steps},1.0,{value}", env_steps) for env_steps, value in curve.items()]
    lines = [line for row, steps in rows for line in (row, *["dam\ufffdged,"] * (steps in damaged_after))]
    write_files(folder, merge(own, settings or {}), record, [f"env_steps,time/seconds,{column}", *lines])
    return folder


def write_run(folder: Path) -> Path:
    """Write the run folder of a run that was resumed once and reached its goal; return its path."""
    columns = ["env_steps", *make_row(ROWS)]
    rows = [{"env_steps": ROW_STEPS * row, **make_row(row)} for row in range(1, ROWS + 1)]
    lines = [",".join(str(row.get(name, "")) for name in columns) for row in rows]
    settings = write_files(folder, SETTINGS, RESULT, [",".join(columns), *lines])
    (folder / "configs").mkdir()
    for env_steps, changes in ((0, {"acer_config": {"gamma": 0.9}}), (3000, {})):
        (folder / f"configs/{env_steps}.yaml").write_text(format_yaml(merge(settings, changes)))
    role = make_role(4, 4, 2)
    RunFolder(folder).add_role("agent", role)
    record_network(folder, "agent", make_acer(role), Placement())
    machine = {"system": "Linux 6", "processor": "Fast <CPU>", "cores": 2, "memory": 2**34}
    session = {"seed": 7, "machine": machine, "versions": VERSIONS, "commit": COMMIT}
    for day, env_steps in ((1, 0), (2, 3000)):
        started = f"2026-01-0{day}T00:00:00+00:00"
        append_json_line(folder / "sessions.jsonl", {"started": started, "env_steps": env_steps, **session})
    (folder / "faults.log").write_text(FAULT + "\n")
    (folder / "videos").mkdir()
    for name in ("3000-best", "6000-best", "6000-worst"):
        for suffix in ("mp4", "gif"):
            (folder / f"videos/{name}.{suffix}").write_bytes(b"video")
    return folder


def read_text(html: str) -> str:
    """Return the text that a page shows; each of its elements must be closed."""
    body = re.sub("<style>.*?</style>|<!DOCTYPE html>", "", html, flags=re.DOTALL)
    opened = re.sub("<(?:meta|link|img)[^>]*>|<[^>]*/>", "", body)  # without elements that have no end
    for tag in set(re.findall(r"<(\w+)", opened)):
        assert len(re.findall(rf"<{tag}\b", opened)) == opened.count(f"</{tag}>"), tag
    return " ".join(unescape(re.sub("<[^>]*>", " ", body)).split())


def read_links(html: str) -> list[str]:
    """Return the links of a page to files: the values of href and src, without those inside of the page."""
    return [link for link in re.findall(r'(?:href|src)="([^"#][^"]*)"', html) if link != "data:,"]


def read_last_values(html: str) -> dict[str, float]:
    """Return the last value of each column that a chart shows."""
    found = re.findall('data-column="([^"]*)" data-value="([^"]*)"', html)
    return {column: float(value) for column, value in found}


def find_urls(html: str) -> list[str]:
    """Return the URLs of a network in a page, without the names of XML namespaces."""
    return [url for url in re.findall(r"""(?:https?:)?//[\w.-]+[^\s"'<)]*""", html) if "www.w3.org" not in url]
