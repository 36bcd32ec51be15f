"""Run folders with known metrics and results, as training writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from algorithm.config.yaml_layers import format_yaml, load_defaults, merge

ROLE = "agent"


def write_run(
    folder: Path,
    curve: Mapping[int, float],
    *,
    environment: str = "mine/task",
    algorithm: str = "ACER",
    variant: str = "default",
    seed: int = 0,
    goal: float | None = 100.0,
    reached: bool | None = False,
    status: int | None = 0,
    cpu_seconds: float | None = None,
    settings: Mapping[str, Any] | None = None,
    column: str = "rollout/return",
    damaged_after: Sequence[int] = (),
) -> Path:
    """Write the folder of a run and return it.

    Args:
        folder: its folder, which is made.
        curve: {env steps: value} of `column`.
        environment, algorithm, variant, seed: its origin.
        goal: mean return of its goal.
        reached: whether it reached the goal.
        status: its exit status; None if it has not ended.
        cpu_seconds: its CPU seconds.
        settings: further settings, as a tree.
        column: name of its metric.
        damaged_after: env steps after whose row the table has a damaged line.
    """
    folder.mkdir(parents=True)
    base = {"algorithm": algorithm, "name": folder.name, "seed": seed}
    goals = {"goal": None if goal is None else {"return": goal, "step_budget": None}}
    tree = merge(merge(load_defaults(), {"base_config": base, **goals}), settings or {})
    (folder / "config.yaml").write_text(format_yaml(tree))
    (folder / "environment.txt").write_text(f"{environment}\n")
    last = max(curve)
    record = {
        "environment": environment,
        "algorithm": algorithm,
        "variant": variant,
        "seed": seed,
        "reached": None if goal is None else reached,
        "confirmed_by": "evaluation" if reached else None,
        "stopped": False,
        "status": status,
        "env_steps": last,
        "updates": 10,
        "episodes": 20,
        "seconds": 3.0,
        "cpu_seconds": cpu_seconds,
        "returns": {ROLE: curve[last]},
        "evaluation": None,
    }
    (folder / "result.json").write_text(json.dumps(record))
    lines = [f"env_steps,time/seconds,{column}"]
    for env_steps, value in curve.items():
        lines.append(f"{env_steps},1.0,{value}")
        if env_steps in damaged_after:
            lines.append("dam\ufffdged,")
    (folder / "metrics.csv").write_text("\n".join([*lines, ""]), encoding="utf-8")
    return folder
