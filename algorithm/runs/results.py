"""What runs reached: result.json of one run, and the table of all of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from algorithm.checkpointing.atomic_io import replace
from algorithm.errors import UserError
from algorithm.runs.env_folder import RUNS, is_run_of, run_group
from algorithm.specs import AGENT, of_role
from algorithm.training.formatting import format_number
from algorithm.training.metrics_table import TABLE, read_table

if TYPE_CHECKING:  # a table of runs needs neither torch nor rich until it is shown
    from rich.table import Table

    from algorithm.runs.build import Result
    from algorithm.training.evaluator import Played

Record = dict[str, Any]  # as it stands in result.json
FILE = "result.json"


def record_of(result: Result, status: int) -> Record:
    """A run that ended with exit status `status`."""
    counters = result.counters
    return {
        "reached": result.reached,
        "confirmed_by": result.confirmed_by,
        "status": status,
        "env_steps": counters.env_steps,
        "updates": counters.updates,
        "episodes": counters.episodes,
        "seconds": round(counters.seconds, 3),
        "returns": {role: _number(value) for role, value in result.returns.items()},
        "evaluation": None if result.evaluation is None else played_record(result.evaluation),
    }


def played_record(played: Mapping[str, Played]) -> Record:
    """Episodes that were played, for each role."""
    return {
        role: {
            "mean": one.mean,
            "low": _number(one.interval[0]),
            "high": _number(one.interval[1]),
            "std": one.std,
            "length": one.length,
            "episodes": len(one.returns),
        }
        for role, one in played.items()
    }


def write(folder: Path, record: Record) -> None:
    """Put a record into a run folder, whole or not at all."""
    replace(folder / FILE, json.dumps(record, indent=1, allow_nan=False) + "\n")


def begin(folder: Path, origin: Record, say: Callable[[str], None]) -> None:
    """Write the origin of a new run into its folder, with a result whose `status` is null."""
    write(folder, {**origin, **_so_far(folder, say)})


def read(folder: Path, say: Callable[[str], None]) -> Record:
    """Return the result of a run. If it has none yet, or continued after it, `status` is null.

    `say` receives a line for each damaged file; what can be read of it is used.
    """
    path = folder / FILE
    so_far = _so_far(folder, say)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        _cells(record)  # raises if something that is shown is missing
        return record if record["env_steps"] >= so_far["env_steps"] else {**record, **so_far}
    except FileNotFoundError:
        return so_far
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        say(f"{path} is damaged ({type(error).__name__}: {error}): the run is listed by its metrics")
        return so_far


def _so_far(folder: Path, say: Callable[[str], None]) -> Record:
    """What metrics.csv tells of a run that has not ended."""
    path = folder / TABLE
    rows: list[dict[str, str]] = []
    if path.exists():
        found = read_table(path)
        rows = [row for row in found.rows if row.get("time/seconds")]
        if found.damaged:
            say(f"{path} is damaged: {found.damaged} of its lines cannot be read")
    last = rows[-1] if rows else {}
    returns = {
        name.removeprefix("rollout/return").removeprefix("/") or AGENT: float(value)
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


def runs(environment: str | None, say: Callable[[str], None]) -> list[Record]:
    """Return the records of all runs, or of the runs of one environment, newest last; `run` is the folder.

    `say` receives a line for each damaged file. Raises UserError if there is no run.
    """
    place = RUNS / run_group(environment) if environment else RUNS
    found = [path for path in place.rglob("config.yaml") if not path.parent.name.startswith(".")]
    if environment:
        found = [path for path in found if is_run_of(path.parent, environment)]
    made = sorted(found, key=lambda path: (path.stat().st_mtime, str(path)))
    if not made:
        raise UserError(f"there is no run under {place.as_posix()} yet; train one with: python main.py gym/cartpole")
    return [{"run": path.parent.as_posix(), **read(path.parent, say)} for path in made]


def table(records: list[Record]) -> Table:
    """Runs as a table for people."""
    from rich.table import Table

    made = Table()
    made.add_column("run", overflow="fold")
    made.add_column("algorithm")
    made.add_column("result")
    for name in ("env steps", "episodes", "seconds", "return", "evaluation"):
        made.add_column(name, justify="right")
    for one in records:
        made.add_row(Path(one["run"]).relative_to(RUNS).as_posix(), *_cells(one))
    return made


def _cells(one: Record) -> list[str]:
    """Return the cells of a run's row after its name."""
    return [
        _algorithm(one),
        state(one),
        f"{one['env_steps']:,}",
        f"{one['episodes']:,}",
        f"{one['seconds']:.1f}",
        _by_role({role: format_number(value) for role, value in one["returns"].items()}),
        _by_role({role: _mean_and_std(played) for role, played in (one["evaluation"] or {}).items()}),
    ]


def _algorithm(record: Record) -> str:
    """Return the algorithm of a run, with the variant with which it was started."""
    variant = record.get("variant") or "default"
    return record.get("algorithm", "-") + (f" ({variant})" if variant != "default" else "")


def state(record: Record) -> str:
    """How a run ended, in a few words."""
    status = record["status"]
    if status == 0:
        if record.get("confirmed_by") == "training":
            return "goal reached (training episodes only)"
        return {True: "goal reached", False: "goal not reached", None: "done"}[record["reached"]]
    named = {None: "unfinished", 4: "diverged", 129: "ended", 130: "interrupted", 143: "ended"}
    return named.get(status, f"failed ({status})")


def spread(records: list[Record]) -> dict[str, dict[str, float | None]]:
    """Mean and spread over repeated runs of every number in their records; `std` is null for a single one."""
    columns: dict[str, list[float]] = {}
    for one in records:
        numbers = {name: one[name] for name in ("env_steps", "updates", "episodes", "seconds")}
        numbers |= {f"return{of_role(role)}": value for role, value in one["returns"].items()}
        numbers |= {f"evaluation{of_role(role)}": played["mean"] for role, played in (one["evaluation"] or {}).items()}
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


def spread_lines(records: list[Record]) -> list[str]:
    """`spread` for people."""
    if not records:
        return []
    lines = [f"{len(records)} runs: {', '.join(Path(one['run']).name for one in records)}"]
    if any(one["reached"] is not None for one in records):
        lines.append(f"goal reached in {sum(one['reached'] is True for one in records)} of {len(records)}")
    for name, one in spread(records).items():
        low, high = format_number(one["min"]), format_number(one["max"])
        lines.append(f"{name}: {_mean_and_std(one)} ({low} to {high})")
    return lines


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _mean_and_std(one: Mapping[str, float | None]) -> str:
    std = "" if one["std"] is None else f" +- {format_number(one['std'])}"
    return f"{format_number(one['mean'])}{std}"


def _by_role(shown: Mapping[str, str]) -> str:
    if len(shown) == 1:
        return next(iter(shown.values()))
    return "\n".join(f"{role} {text}" for role, text in shown.items()) or "-"
