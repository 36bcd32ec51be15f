"""What runs reached: result.json of one run, and the table of all of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from algorithm.checkpointing.atomic_io import replace_text
from algorithm.errors import UserError
from algorithm.runs.env_folder import RUNS, get_run_group, is_run_of
from algorithm.specs import DEFAULT_ROLE, role_suffix
from algorithm.training.formatting import format_number
from algorithm.training.metrics_table import TABLE_FILE, read_table

if TYPE_CHECKING:  # a table of runs needs neither torch nor rich until it is shown
    from rich.table import Table

    from algorithm.runs.build import RunResult
    from algorithm.training.evaluator import EvaluationResult

Record = dict[str, Any]  # as it stands in result.json
RESULT_FILE = "result.json"


def make_record(result: RunResult, status: int) -> Record:
    """A run that ended with exit status `status`."""
    counters = result.counters
    return {
        "reached": result.goal_reached,
        "confirmed_by": result.confirmed_by,
        "status": status,
        "env_steps": counters.env_steps,
        "updates": counters.updates,
        "episodes": counters.episodes,
        "seconds": round(counters.seconds, 3),
        "returns": {role: _finite_or_none(value) for role, value in result.returns.items()},
        "evaluation": None if result.evaluation is None else make_evaluation_record(result.evaluation),
    }


def make_evaluation_record(evaluation: Mapping[str, EvaluationResult]) -> Record:
    """Episodes that were played, for each role."""
    return {
        role: {
            "mean": result.mean,
            "low": _finite_or_none(result.interval[0]),
            "high": _finite_or_none(result.interval[1]),
            "std": result.std,
            "length": result.length,
            "episodes": len(result.returns),
        }
        for role, result in evaluation.items()
    }


def write_record(folder: Path, record: Record) -> None:
    """Put a record into a run folder, whole or not at all."""
    replace_text(folder / RESULT_FILE, json.dumps(record, indent=1, allow_nan=False) + "\n")


def write_origin(folder: Path, origin: Record, log: Callable[[str], None]) -> None:
    """Write the origin of a new run into its folder, with a result whose `status` is null."""
    write_record(folder, {**origin, **_read_progress(folder, log)})


def read_record(folder: Path, log: Callable[[str], None]) -> Record:
    """Return the result of a run. If it has none yet, or continued after it, `status` is null.

    `log` receives a line for each damaged file; what can be read of it is used.
    """
    path = folder / RESULT_FILE
    so_far = _read_progress(folder, log)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        _make_cells(record)  # raises if something that is shown is missing
        return record if record["env_steps"] >= so_far["env_steps"] else {**record, **so_far}
    except FileNotFoundError:
        return so_far
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        log(f"{path} is damaged ({type(error).__name__}: {error}): the run is listed by its metrics")
        return so_far


def _read_progress(folder: Path, log: Callable[[str], None]) -> Record:
    """What metrics.csv tells of a run that has not ended."""
    path = folder / TABLE_FILE
    rows: list[dict[str, str]] = []
    if path.exists():
        content = read_table(path)
        rows = [row for row in content.rows if row.get("time/seconds")]
        if content.damaged:
            log(f"{path} is damaged: {content.damaged} of its lines cannot be read")
    last = rows[-1] if rows else {}
    returns = {
        name.removeprefix("rollout/return").removeprefix("/") or DEFAULT_ROLE: float(value)
        for name, value in last.items()
        if name and name.startswith("rollout/return") and value
    }
    return {
        "reached": None,
        "confirmed_by": None,
        "status": None,
        "env_steps": int(last.get("env_steps", 0)),
        "updates": int(float(last.get("time/updates") or 0)),
        "episodes": int(float(last.get("time/episodes") or 0)),
        "seconds": float(last.get("time/seconds") or 0),
        "returns": returns,
        "evaluation": None,
    }


def list_runs(environment: str | None, log: Callable[[str], None]) -> list[Record]:
    """Return the records of all runs, or of the runs of one environment, newest last; `run` is the folder.

    `log` receives a line for each damaged file. Raises UserError if there is no run.
    """
    place = RUNS / get_run_group(environment) if environment else RUNS
    found = [path for path in place.rglob("config.yaml") if not path.parent.name.startswith(".")]
    if environment:
        found = [path for path in found if is_run_of(path.parent, environment)]
    ordered = sorted(found, key=lambda path: (path.stat().st_mtime, str(path)))
    if not ordered:
        raise UserError(f"there is no run under {place.as_posix()} yet; train one with: python main.py gym/cartpole")
    return [{"run": path.parent.as_posix(), **read_record(path.parent, log)} for path in ordered]


def make_table(records: list[Record]) -> Table:
    """Runs as a table for people."""
    from rich.table import Table

    result = Table()
    result.add_column("run", overflow="fold")
    result.add_column("algorithm")
    result.add_column("result")
    for name in ("env steps", "episodes", "seconds", "return", "evaluation"):
        result.add_column(name, justify="right")
    for record in records:
        result.add_row(Path(record["run"]).relative_to(RUNS).as_posix(), *_make_cells(record))
    return result


def _make_cells(record: Record) -> list[str]:
    """Return the cells of a run's row after its name."""
    return [
        _format_algorithm(record),
        describe_state(record),
        f"{record['env_steps']:,}",
        f"{record['episodes']:,}",
        f"{record['seconds']:.1f}",
        _join_roles({role: format_number(value) for role, value in record["returns"].items()}),
        _join_roles({role: _format_mean_std(evaluation) for role, evaluation in (record["evaluation"] or {}).items()}),
    ]


def _format_algorithm(record: Record) -> str:
    """Return the algorithm of a run, with the variant with which it was started."""
    variant = record.get("variant") or "default"
    return record.get("algorithm", "-") + (f" ({variant})" if variant != "default" else "")


def describe_state(record: Record) -> str:
    """How a run ended, in a few words."""
    status = record["status"]
    if status == 0:
        if record.get("confirmed_by") == "training":
            return "goal reached (training episodes only)"
        return {True: "goal reached", False: "goal not reached", None: "done"}[record["reached"]]
    named = {None: "unfinished", 4: "diverged", 129: "ended", 130: "interrupted", 143: "ended"}
    return named.get(status, f"failed ({status})")


def summarize_repeats(records: list[Record]) -> dict[str, dict[str, float | None]]:
    """Mean and spread over repeated runs of every number in their records; `std` is null for a single one."""
    columns: dict[str, list[float]] = {}
    for record in records:
        numbers = {name: record[name] for name in ("env_steps", "updates", "episodes", "seconds")}
        numbers |= {f"return{role_suffix(role)}": value for role, value in record["returns"].items()}
        numbers |= {
            f"evaluation{role_suffix(role)}": evaluation["mean"]
            for role, evaluation in (record["evaluation"] or {}).items()
        }
        for name, value in numbers.items():
            if value is not None:
                columns.setdefault(name, []).append(value)
    return {
        name: {
            "mean": fmean(values),
            "std": stdev(values) if len(values) > 1 else None,
            "min": min(values),
            "max": max(values),
            "runs": len(values),
        }
        for name, values in columns.items()
    }


def format_repeats(records: list[Record]) -> list[str]:
    """`spread` for people."""
    if not records:
        return []
    lines = [f"{len(records)} runs: {', '.join(Path(summary['run']).name for summary in records)}"]
    if any(summary["reached"] is not None for summary in records):
        lines.append(f"goal reached in {sum(summary['reached'] is True for summary in records)} of {len(records)}")
    for name, summary in summarize_repeats(records).items():
        low, high = format_number(summary["min"]), format_number(summary["max"])
        lines.append(f"{name}: {_format_mean_std(summary)} ({low} to {high})")
    return lines


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _format_mean_std(summary: Mapping[str, float | None]) -> str:
    std = "" if summary["std"] is None else f" +- {format_number(summary['std'])}"
    return f"{format_number(summary['mean'])}{std}"


def _join_roles(shown: Mapping[str, str]) -> str:
    if len(shown) == 1:
        return next(iter(shown.values()))
    return "\n".join(f"{role} {text}" for role, text in shown.items()) or "-"
