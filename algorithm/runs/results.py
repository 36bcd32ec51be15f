"""Results of runs: the file result.json of a run, the list of all runs, and statistics over repeated runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from algorithm.atomic_io import replace_text
from algorithm.errors import UserError
from algorithm.program import get_command
from algorithm.runs.env_folder import RUNS, get_run_group, is_run_of
from algorithm.specs import DEFAULT_ROLE, role_suffix
from algorithm.training.metrics import TABLE_FILE, MetricsTable, format_number, read_table_if_present

if TYPE_CHECKING:  # results are listed without torch
    from algorithm.runs.callbacks import RunResult
    from algorithm.training.evaluator import EvaluationResult

Record = dict[str, Any]  # content of result.json
RESULT_FILE = "result.json"
COLUMNS = ("run", "algorithm", "result", "env steps", "episodes", "seconds", "return", "evaluation")


def make_record(result: RunResult, status: int, failure: str | None = None) -> Record:
    """Return the record of a run that ended with exit status `status`, and with the message `failure` if it failed."""
    counters = result.counters
    return {
        "reached": result.goal_reached,
        "confirmed_by": result.confirmed_by,
        "stopped": result.stopped,
        "status": status,
        "env_steps": counters.env_steps,
        "updates": counters.updates,
        "episodes": counters.episodes,
        "seconds": round(counters.seconds, 3),
        "cpu_seconds": None if counters.cpu_seconds is None else round(counters.cpu_seconds, 3),
        "returns": {role: _finite_or_none(value) for role, value in result.returns.items()},
        "evaluation": None if result.evaluation is None else make_evaluation_record(result.evaluation),
        **({"failure": " ".join(failure.split())} if failure else {}),
    }


def make_evaluation_record(evaluation: Mapping[str, EvaluationResult]) -> Record:
    """Return the record of evaluation episodes, by role."""
    return {
        role: {
            "mean": result.mean,
            "low": _finite_or_none(result.interval[0]),
            "high": _finite_or_none(result.interval[1]),
            "std": result.std,
            "length": result.length,
            "episodes": len(result.returns),
            "returns": list(result.returns),
        }
        for role, result in evaluation.items()
    }


def write_record(folder: Path, record: Record) -> None:
    """Write a record into a run folder, completely or not at all."""
    replace_text(folder / RESULT_FILE, json.dumps(record, indent=1, allow_nan=False) + "\n")


def write_origin(folder: Path, origin: Record, log: Callable[[str], None]) -> None:
    """Write the origin of a new run into its folder, with a result whose `status` is null."""
    write_record(folder, {**origin, **_read_progress(folder, read_table_if_present(folder / TABLE_FILE), log)})


def read_record(folder: Path, log: Callable[[str], None], table: MetricsTable | None = None) -> Record:
    """Return the result of a run; `status` is null if the run has no result yet, or continued after its result.

    Args:
        folder: the run folder.
        log: receives a line for each damaged file, whose readable part is used.
        table: the content of its metrics.csv, which is slow to read; None to read it.
    """
    path = folder / RESULT_FILE
    progress = _read_progress(folder, read_table_if_present(folder / TABLE_FILE) if table is None else table, log)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        format_record(record)  # raises an error for a missing value
        return record if record["env_steps"] >= progress["env_steps"] else {**record, **progress}
    except FileNotFoundError:
        return progress
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        log(f"{path} is damaged ({type(error).__name__}: {error}): the run is listed with its metrics")
        return progress


def _read_progress(folder: Path, table: MetricsTable, log: Callable[[str], None]) -> Record:
    """Return the record of a run that has not ended, from its metrics.csv."""
    if table.damaged:
        log(f"{folder / TABLE_FILE} is damaged: {table.damaged} of its lines cannot be read")
    last = next((row for row in reversed(table.rows) if row.get("time/seconds")), {})
    returns = {
        name.removeprefix("rollout/return").removeprefix("/") or DEFAULT_ROLE: float(value)
        for name, value in last.items()
        if name and name.startswith("rollout/return") and value
    }
    return {
        "reached": None,
        "confirmed_by": None,
        "stopped": False,
        "status": None,
        "env_steps": int(last.get("env_steps", 0)),
        "updates": int(float(last.get("time/updates") or 0)),
        "episodes": int(float(last.get("time/episodes") or 0)),
        "seconds": float(last.get("time/seconds") or 0),
        "cpu_seconds": float(last["time/cpu_seconds"]) if last.get("time/cpu_seconds") else None,
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
        raise UserError(f"there is no run under {place.as_posix()} yet; train one with: {get_command()} gym/cartpole")
    return [{"run": path.parent.as_posix(), **read_record(path.parent, log)} for path in ordered]


def format_record(record: Record) -> list[str]:
    """Return the values of a record as text, in the order of `COLUMNS` after the run."""
    return [
        format_algorithm(record),
        describe_state(record),
        f"{record['env_steps']:,}",
        f"{record['episodes']:,}",
        f"{record['seconds']:.1f}",
        _join_roles({role: format_number(value) for role, value in record["returns"].items()}),
        _join_roles({role: _format_mean_std(evaluation) for role, evaluation in (record["evaluation"] or {}).items()}),
    ]


def format_algorithm(record: Record) -> str:
    """Return the algorithm of a run, with its variant."""
    variant = record.get("variant") or "default"
    return record.get("algorithm", "-") + (f" ({variant})" if variant != "default" else "")


def describe_state(record: Record) -> str:
    """Return how a run ended, in a few words."""
    status = record["status"]
    if status == 0:
        if record.get("confirmed_by") == "training":
            return "goal reached (training episodes only)"
        if record.get("stopped") and not record["reached"]:
            return "stopped by a callback or a time limit"
        return {True: "goal reached", False: "goal not reached", None: "done"}[record["reached"]]
    named = {None: "unfinished", 4: "diverged", 129: "ended", 130: "interrupted", 143: "ended"}
    return named.get(status, f"failed ({status})")


def summarize_repeats(records: list[Record]) -> dict[str, dict[str, float | None]]:
    """Return statistics over repeated runs of every number in their records; `std` is null for a single run."""
    columns: dict[str, list[float]] = {}
    for record in records:
        numbers = {name: record.get(name) for name in ("env_steps", "updates", "episodes", "seconds", "cpu_seconds")}
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
    """Return lines with the statistics over repeated runs."""
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


def _join_roles(texts: Mapping[str, str]) -> str:
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "\n".join(f"{role} {text}" for role, text in texts.items()) or "-"
