"""Results of runs: the file result.json of a run, the list of all runs, and statistics over repeated runs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import NotRequired

from algorithm.errors import UserError
from algorithm.parts.env_folder import CONFIG_FILE, RUNS, advise_training, get_run_group, is_run_of
from algorithm.program import DEFAULT_ROLE, role_suffix
from algorithm.records_io import NumberTable, OpenRecord, RecordError, read_json, write_json
from algorithm.training.metrics import TABLE_FILE, format_number, read_table

if TYPE_CHECKING:  # results are listed without torch
    from algorithm.runs.callbacks import RunResult
    from algorithm.training.evaluator import EvaluationResult

Record = dict[str, Any]  # content of result.json
RESULT_FILE = "result.json"
COLUMNS = ("run", "algorithm", "result", "env steps", "episodes", "seconds", "return", "evaluation")


class EvaluationRecord(OpenRecord):
    """The evaluation of a role in result.json."""

    mean: float
    low: float | None
    high: float | None
    std: float
    episodes: int
    returns: NotRequired[list[float]]


class ResultRecord(OpenRecord):
    """The content of result.json, of which earlier versions did not write everything."""

    environment: NotRequired[str]
    algorithm: NotRequired[str]
    variant: NotRequired[str | None]
    versions: NotRequired[dict[str, str]]
    commit: NotRequired[str]
    reached: bool | None
    confirmed_by: NotRequired[str | None]
    stopped: NotRequired[bool]
    status: int | None
    env_steps: int
    updates: int
    episodes: int
    seconds: float
    cpu_seconds: NotRequired[float | None]
    returns: dict[str, float | None]
    evaluation: dict[str, EvaluationRecord] | None
    failure: NotRequired[str]


def make_record(result: RunResult) -> Record:
    """Return the record of a run that has ended."""
    counters = result.counters
    return {
        "reached": result.goal_reached,
        "confirmed_by": result.confirmed_by,
        "stopped": result.stopped,
        "status": result.status,
        "env_steps": counters.env_steps,
        "updates": counters.updates,
        "episodes": counters.episodes,
        "seconds": round(counters.seconds, 3),
        "cpu_seconds": None if counters.cpu_seconds is None else round(counters.cpu_seconds, 3),
        "returns": {role: _finite_or_none(value) for role, value in result.returns.items()},
        "evaluation": None if result.evaluation is None else make_evaluation_record(result.evaluation),
        **({"failure": " ".join(result.failure.split())} if result.failure else {}),
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


def write_origin(folder: Path, origin: Record) -> None:
    """Write the origin of a new run into its folder, with a result whose `status` is null."""
    write_json(folder / RESULT_FILE, {**origin, **_make_progress({})})


def read_record(folder: Path, log: Callable[[str], None], table: NumberTable | None = None) -> Record:
    """Return the result of a run; `status` is null if the run has no result yet, or continued after its result.

    Args:
        folder: the run folder.
        log: receives a line for each damaged file, whose readable part is used.
        table: the content of its metrics.csv, which is slow to read; None to read it.
    """
    table = read_table(folder / TABLE_FILE) if table is None else table
    if table.damaged:
        log(f"{folder / TABLE_FILE} is damaged: {table.damaged} of its lines cannot be read")
    progress = _make_progress(next((row for row in reversed(table.rows) if row.get("time/seconds")), {}))
    try:
        record: Mapping[str, Any] = read_json(folder / RESULT_FILE, ResultRecord) or {}
    except RecordError as error:
        log(f"{error}: the run is listed with its metrics")
        record = {}
    is_newer = bool(record) and record["env_steps"] >= progress["env_steps"]
    return {**record} if is_newer else {**record, **progress}


def read_recorded_variant(result: Path) -> str | None:
    """Return the variant in an earlier result.json of the run; None if it is missing, or the file cannot be read."""
    with suppress(RecordError):  # it is reported when the run is listed
        if record := read_json(result, ResultRecord):
            return record.get("variant")
    return None


def _make_progress(last: Mapping[str, str]) -> Record:
    """Return the record of a run that has not ended, from the last row of its metrics.csv; empty without one."""
    numbers = {name: float(text) for name, text in last.items() if text and math.isfinite(float(text))}
    returns = {
        name.removeprefix("rollout/return").removeprefix("/") or DEFAULT_ROLE: value
        for name, value in numbers.items()
        if name.startswith("rollout/return")
    }
    return {
        "reached": None,
        "confirmed_by": None,
        "stopped": False,
        "status": None,
        "env_steps": int(last.get("env_steps", 0)),
        "updates": int(numbers.get("time/updates", 0)),
        "episodes": int(numbers.get("time/episodes", 0)),
        "seconds": numbers.get("time/seconds", 0.0),
        "cpu_seconds": numbers.get("time/cpu_seconds"),
        "returns": returns,
        "evaluation": None,
    }


def list_runs(environment: str | None, log: Callable[[str], None]) -> list[Record]:
    """Return the records of all runs, or of the runs of one environment, newest last; `run` is the folder.

    `log` receives a line for each damaged file. Raises UserError if there is no run.
    """
    place = RUNS / get_run_group(environment) if environment else RUNS
    found = []
    for folder, _, names in os.walk(place):  # skips folders that another process removes meanwhile
        run = Path(folder)
        if CONFIG_FILE in names and not run.name.startswith(".") and (not environment or is_run_of(run, environment)):
            with suppress(FileNotFoundError):
                found.append(((run / CONFIG_FILE).stat().st_mtime, str(run), run))
    if not found:
        advice = advise_training(environment or "gym/cartpole")
        raise UserError(f"there is no run under {place.as_posix()} yet; {advice}")
    records = [{"run": run.as_posix(), **read_record(run, log)} for *_, run in sorted(found)]
    return [record for record in records if Path(record["run"]).is_dir()]


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
    from statistics import fmean, stdev  # a module that a list of runs does not need

    columns: dict[str, list[float]] = {}
    for record in records:
        returns, evaluations = record["returns"], record["evaluation"] or {}
        numbers = {name: record.get(name) for name in ("env_steps", "updates", "episodes", "seconds", "cpu_seconds")}
        numbers |= {f"return{role_suffix(role)}": value for role, value in returns.items()}
        numbers |= {f"evaluation{role_suffix(role)}": each["mean"] for role, each in evaluations.items()}
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
