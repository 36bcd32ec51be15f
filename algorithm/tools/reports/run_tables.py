"""The tables of a run's report."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from algorithm.config.yaml_layers import format_value
from algorithm.errors import clean_text
from algorithm.program import DEFAULT_ROLE, get_command
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.tools.reports.run_data import Difference, RunData, RunMetrics
from algorithm.training.metrics import EVALUATION_COLUMN, UNKNOWN, format_number

MAX_ROWS = 12  # of a table; the newest rows of a longer one
MAX_VALUE = 300  # characters of the value of a setting
# Further columns of an evaluation, with their names in its table.
EVALUATION_COLUMNS = {
    "eval/return_low": "95% from",
    "eval/return_high": "to",
    "eval/return_std": "std",
    "eval/length": "length",
}
GB = 2**30


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of texts.

    Attributes:
        title: its title; empty for none.
        columns: names of the columns.
        rows: texts of the rows.
        numbers: the number of columns at the right that contain numbers.
        left_out: number of older rows that it leaves out.
    """

    title: str = ""
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: int = 0
    left_out: int = 0


def list_evaluations(metrics: RunMetrics) -> list[Table]:
    """Return a table of the evaluations of each role."""
    tables = []
    for role, column in metrics.list_metrics().get(EVALUATION_COLUMN, {}).items():
        suffix = f"/{role}" if role else ""
        shown = {f"{name}{suffix}": label for name, label in EVALUATION_COLUMNS.items()}
        shown = {name: label for name, label in shown.items() if name in metrics.columns}
        rows = [row for row in zip(*metrics.get_rows(column, *shown), strict=True) if np.isfinite(row[1])]
        texts = [[f"{row[0]:,.0f}", *map(format_number, row[1:])] for row in rows]
        columns = ["env steps", "mean return", *shown.values()]
        tables.append(Table(title=role, columns=columns, numbers=len(columns), **_cut(texts)))
    return tables


def _cut(rows: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return the newest rows of a table and the number of those that are left out, as arguments of `Table`."""
    return {"rows": rows[-MAX_ROWS:], "left_out": max(0, len(rows) - MAX_ROWS)}


def list_environment(run: RunData) -> list[tuple[str, str]]:
    """Return name and value of each setting of the environment that is set."""
    names = ("env_type", "env_name", "env_args", "env_wrappers", "n_envs", "max_step_each_iter", "runtime", "n_workers")
    values = {name: run.get_setting(f"base_config.{name}") for name in names}
    if str(values["runtime"]).casefold() != "workers":
        del values["n_workers"]
    if str(values["runtime"]).casefold() in ("cluster", "ray"):
        values["actors"] = run.get_setting("cluster_config.actors")
    return [(name, _format_setting(value)) for name, value in values.items() if value not in (None, {}, [])]


def list_commands(run: RunData) -> list[tuple[str, str]]:
    """Return the commands that continue from a run, with their purpose."""
    command = f"{get_command()} {shlex.join((run.environment, '-n', run.name))}"
    return [("play it", f"{command} --run"), ("resume it", f"{command} --resume")]


def list_spaces(roles: Mapping[str, Role]) -> list[Table]:
    """Return a table of the observations and actions of each role."""
    return [
        Table(
            title=f"{'' if name == DEFAULT_ROLE else f'{name}: '}{role.lanes:,} agent{'s' * (role.lanes != 1)}",
            columns=("space", "name", "shape", "type", "values"),
            rows=[*_list_observations(role.obs_specs), *_list_actions(role.action_spec)],
        )
        for name, role in roles.items()
    ]


def _list_observations(specs: Mapping[str, ObsSpec]) -> Iterator[list[str]]:
    for name, spec in specs.items():
        values = f"one of {_join(spec.n_values)}, one-hot" if spec.n_values else ""
        if len(spec.shape) == 3:
            values = f"0 to {spec.high:g}"
        yield ["observation", name, _join(spec.shape) or "scalar", spec.dtype, values]


def _list_actions(spec: ActionSpec) -> Iterator[list[str]]:
    for part in spec.parts:
        name = "" if part.key is None else str(part.key)
        values = " x ".join(f"one of {count}" for count in part.n_values)
        if not part.n_values:
            values = f"{min(part.low):g} to {max(part.high):g}"
        yield ["action", name, _join(part.shape) or "scalar", part.dtype, values]
    if not spec.parts:
        yield ["action", "", "", "", str(spec)]


def _join(numbers: Sequence[int]) -> str:
    return " x ".join(map(str, numbers))


def make_differences(differences: Sequence[Difference]) -> Table:
    """Return a table of the settings that differ from the defaults."""
    rows = [[one.path, _format_setting(one.after), _format_setting(one.before)] for one in differences]
    return Table(columns=("setting", "value", "default"), rows=rows)


def make_changes(changes: Sequence[Difference]) -> Table:
    """Return a table of the settings that changed when the run was resumed."""
    rows = [
        [f"{one.env_steps:,}", one.path, _format_setting(one.before), _format_setting(one.after)] for one in changes
    ]
    return Table(columns=("from env step", "setting", "before", "after"), rows=rows)


def _format_setting(value: Any) -> str:
    text = clean_text(format_value(value))  # before a password is cut, so that it is found
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]} ..."


def list_machine(run: RunData) -> list[tuple[str, str]]:
    """Return name and value of each property of the machine of the last session; empty if it is not recorded."""
    if not run.sessions:
        return []
    machine = run.sessions[-1]["machine"]
    memory = machine.get("memory")
    found = {
        "processor": machine.get("processor"),
        "cores": machine.get("cores"),
        "memory": f"{memory / GB:.1f} GiB" if memory else None,
        "GPU": machine.get("accelerator"),
        "system": machine.get("system"),
    }
    return [(name, str(value)) for name, value in found.items() if value]


def list_versions(run: RunData) -> list[tuple[str, str]]:
    """Return name and version of each package, the commit and the seed; those of the last session."""
    origin = run.sessions[-1] if run.sessions else run.record
    seed = run.record.get("seed", run.get_setting("base_config.seed"))
    found = {**(origin.get("versions") or {}), "commit": origin.get("commit"), "seed": seed}
    return [(name, str(value)) for name, value in found.items() if value is not None]


def list_sessions(run: RunData) -> Table:
    """Return a table of the processes that have trained the run, oldest first."""
    ends = [*(session["env_steps"] for session in run.sessions[1:]), run.record["env_steps"]]
    rows = [
        [
            str(session.get("started", UNKNOWN)).replace("T", " ").replace("+00:00", " UTC"),
            session["machine"].get("processor") or UNKNOWN,
            (session.get("commit") or UNKNOWN)[:10],
            f"{session['env_steps']:,}",
            f"{end:,}",
        ]
        for session, end in zip(run.sessions, ends, strict=False)
    ]
    return Table(columns=("started", "processor", "commit", "from env step", "to"), numbers=2, **_cut(rows))


def make_lineage(run: RunData) -> Table:
    """Return a table of the intervals of a run that is a member of a population."""
    rows = [
        [
            ", ".join(f"{path} = {_format_setting(value)}" for path, value in row["settings"].items()),
            str(row["interval"]),
            "itself" if row["parent"] == row["member"] else f"member {row['parent']}",
            f"{row['env_steps']:,}",
            "failed" if row["mean_return"] is None else format_number(row["mean_return"]),
        ]
        for row in run.lineage
    ]
    population, _, member = run.name.rpartition("-")
    title = f"Member {member} of the population {population}"
    columns = ("settings", "interval", "continues", "env steps", "return")
    return Table(title=title, columns=columns, numbers=4, **_cut(rows))
