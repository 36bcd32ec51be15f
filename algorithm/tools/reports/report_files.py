"""The files that report on a run, in its folder: the page report.html, the model card README.md, and their texts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.atomic_io import replace_text
from algorithm.errors import clean_text, summarize_error
from algorithm.parts.env_folder import CONFIG_FILE
from algorithm.program import DEFAULT_ROLE, get_command
from algorithm.runs.results import RESULT_FILE, describe_state
from algorithm.specs import Role
from algorithm.tools.reports.charts import Chart, Row, draw_rows
from algorithm.tools.reports.page import format_count, format_duration, render
from algorithm.tools.reports.run_data import Log, RunData, RunMetrics, read_run
from algorithm.tools.reports.run_figures import CURVE_FILE, draw_curve, draw_figures
from algorithm.training.metrics import EVALUATION_COLUMN, TABLE_FILE, format_number

REPORT_FILE, CARD_FILE = "report.html", "README.md"
MARK = "<!-- Written by Samara. Without this line, Samara keeps the file. -->"
MAX_VIDEOS = 6  # the newest ones, which the page contains
LINKED_FILES = (CONFIG_FILE, TABLE_FILE, RESULT_FILE, CURVE_FILE)  # if they exist
GOOD, BAD, WAITING = "good", "bad", "waiting"  # classes of the style
SIGNAL_STATUSES = (129, 130, 143)  # exit statuses of runs that a signal ended, after they were saved
# Columns of an evaluation, with their names in its table.
EVALUATION_COLUMNS = {
    EVALUATION_COLUMN: "mean return",
    "eval/return_low": "95% from",
    "eval/return_high": "to",
    "eval/return_std": "std",
    "eval/length": "length",
}
GB = 2**30


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A number of a run: its name, its value as text, and a note below it."""

    name: str
    value: str
    note: str = ""


def write_report(folder: Path, log: Log) -> None:
    """Write the files at the end of a run; an error is a line, and does not change the result of the run."""
    try:
        report, _ = write_files(folder, log)
    except Exception as error:  # no error of a report may change the result of a run
        log(f"no report: {summarize_error(error)}")
    else:
        log(f"report: {report}")


def write_files(folder: Path, log: Log) -> tuple[Path, Path | None]:
    """Write the report and the model card of a run, with its curve, which the model card shows.

    Args:
        folder: the run folder.
        log: receives a line if the folder has a README.md that is no model card, which is kept.

    Returns:
        The path of the report, and that of the model card; None if another README.md is kept.
    """
    run = read_run(folder)
    draw_curve(folder, run.goal, log, run.metrics)
    report, card = folder / REPORT_FILE, folder / CARD_FILE
    replace_text(report, make_report(run))
    if card.exists() and MARK not in card.read_text(encoding="utf-8", errors="replace"):
        log(f"{card} is kept, since Samara did not write it: the run has no model card")
        return report, None
    replace_text(card, make_model_card(run))
    return report, card


def make_report(run: RunData) -> str:
    """Return the report of a run as HTML: a page with all that its folder contains about it."""
    videos = [path for path in run.videos if path.suffix == ".mp4" or path.with_suffix(".mp4") not in run.videos]
    return _render(
        "run.html",
        run,
        figures=draw_figures(run.metrics, run.goal),
        episodes=draw_episodes(run),
        evaluations=list_evaluations(run.metrics),
        environment=list_environment(run),
        videos=videos[:MAX_VIDEOS],
        files=[name for name in LINKED_FILES if (run.folder / name).is_file()],
    )


def _render(template: str, run: RunData, **values: Any) -> str:
    """Return the text of a template, with the values that both templates have, and further ones."""
    return render(
        template,
        run=run,
        headline=make_headline(run),
        facts=list_facts(run),
        spaces=list_spaces(run.roles),
        machine=list_machine(run),
        versions=list_versions(run),
        command=f"{get_command()} {shlex.join((run.environment, '-n', run.name))}",
        **values,
    )


def draw_episodes(run: RunData) -> Chart | None:
    """Return the chart of the returns of the last evaluation's episodes; None if they are not recorded."""
    evaluation = run.record.get("evaluation") or {}
    rows = [
        Row(
            label="" if len(evaluation) == 1 else role,
            color=index,
            value=one["mean"],
            low=one["low"],
            high=one["high"],
            values=np.array(one["returns"]),
        )
        for index, (role, one) in enumerate(evaluation.items())
        if one.get("returns")
    ]
    note = "Each dot is an episode; the black dot is their mean, with its 95% interval."
    return draw_rows(rows, title="Episodes of the last evaluation", note=note, x_label="return") if rows else None


def make_model_card(run: RunData) -> str:
    """Return the model card of a run as Markdown, with the metadata that model hubs read."""
    gifs = [path.as_posix() for path in run.videos if path.suffix == ".gif"]
    pictures = [name for name in (CURVE_FILE, *gifs[:1]) if (run.folder / name).is_file()]
    names = (run.algorithm, str(run.get_setting("base_config.env_name") or run.environment))
    # Without characters that begin a link or code, which YAML does not escape.
    tags = [" ".join(re.sub(r"[<\[`]", "", clean_text(name)).split()) for name in names]
    return _render("model_card.md", run, mark=MARK, tags=tags, pictures=pictures)


def make_headline(run: RunData) -> tuple[str, str, str]:
    """Return the outcome of a run: its kind (a class of the style), a few words, and a sentence."""
    record, status, steps = run.record, run.record["status"], f"{run.record['env_steps']:,} env steps"
    goal = "the goal" if run.goal is None else f"the goal of {run.goal:,.6g}"
    label = describe_state(record)
    label = label[:1].upper() + label[1:]
    if run.in_training:
        return WAITING, "In training", f"A process trains this run; {steps} so far."
    if status is None:
        sentence = f"The run has no result, since its process did not end normally. Its metrics end at {steps}."
        return WAITING, label, sentence
    if status in SIGNAL_STATUSES:
        return WAITING, label, f"A signal ended the run after {steps}."
    if status != 0:
        failure = f": {record['failure']}" if record.get("failure") else "."
        return BAD, label, f"The run ended with exit status {status} after {steps}{failure}"
    if record["reached"] is None:
        return GOOD, label, f"The run trained for {steps}, without a goal."
    doubts = "".join(_list_doubts(run))
    if record["reached"]:
        confirmed = f"{record.get('confirmed_by') or 'evaluation'} episodes confirm it"
        return GOOD, label, f"The mean return reached {goal} after {steps}; {confirmed}.{doubts}"
    return BAD, label, f"The mean return did not reach {goal} within {steps}.{doubts}"


def _list_doubts(run: RunData) -> Iterator[str]:
    """Yield a sentence for each role whose evaluation has too few episodes to decide whether it is at the goal."""
    for role, one in (run.record.get("evaluation") or {}).items():
        low, high = one["low"], one["high"]
        if run.goal is None or (low is not None and low >= run.goal) or (high is not None and high < run.goal):
            continue
        yield (
            f" The 95% interval of the {_name('evaluation', role)}, {_format_interval(one) or 'unknown'}, does not "
            f"decide whether the weights reach the goal; more than {one['episodes']} evaluation episodes "
            "(goal.evaluation_episodes) make it narrower."
        )


def list_facts(run: RunData) -> list[Fact]:
    """Return the most important numbers of a run."""
    record, limit = run.record, run.get_setting("base_config.max_step")
    speed = f"{record['env_steps'] / record['seconds']:,.0f} env steps per second" if record["seconds"] else ""
    at_most = "" if limit is None else f"at most {limit:,}"
    return [
        *_list_returns(run),
        *(
            Fact(name=_name("training return", role), value=format_number(value), note="mean of the last episodes")
            for role, value in record["returns"].items()
        ),
        Fact(name="env steps", value=format_count(record["env_steps"]), note=at_most),
        Fact(name="episodes", value=format_count(record["episodes"])),
        Fact(name="updates", value=format_count(record["updates"])),
        Fact(name="time of training", value=format_duration(record["seconds"]), note=speed),
    ]


def _list_returns(run: RunData) -> Iterator[Fact]:
    """Yield the return of each role in the evaluation of the result, otherwise in the last one of the metrics."""
    evaluation = run.record.get("evaluation") or {}
    for role, one in evaluation.items():
        interval = f"95% interval {known}, " if (known := _format_interval(one)) else ""
        note = f"{interval}{one['episodes']} episode{'s' * (one['episodes'] != 1)}"
        yield Fact(name=_name("evaluation return", role), value=format_number(one["mean"]), note=note)
    for role, column in run.metrics.list_metrics().get(EVALUATION_COLUMN, {}).items() if not evaluation else ():
        env_steps, values = run.metrics.get_rows(column)
        if len(finite := np.flatnonzero(np.isfinite(values))):
            note = f"after {env_steps[finite[-1]]:,.0f} env steps"
            yield Fact(name=_name("evaluation return", role), value=format_number(float(values[finite[-1]])), note=note)


def _format_interval(evaluation: Mapping[str, Any]) -> str:
    """Return the interval of the mean return of an evaluation; empty if it is not known."""
    low, high = evaluation["low"], evaluation["high"]
    return "" if low is None or high is None else f"{format_number(low)} to {format_number(high)}"


def _name(text: str, role: str) -> str:
    return text if role in ("", DEFAULT_ROLE) else f"{text}, {role}"


def list_evaluations(metrics: RunMetrics) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the table of the evaluations of each role: its columns and its rows of texts."""
    tables = {}
    for role in metrics.list_metrics().get(EVALUATION_COLUMN, {}):
        names = {f"{name}/{role}" if role else name: label for name, label in EVALUATION_COLUMNS.items()}
        shown = {name: label for name, label in names.items() if name in metrics.columns}
        rows = [row for row in zip(*metrics.get_rows(*shown), strict=True) if np.isfinite(row[1])]
        texts = [[f"{row[0]:,.0f}", *map(format_number, row[1:])] for row in rows]
        tables[role] = (["env steps", *shown.values()], texts)
    return tables


def list_spaces(roles: Mapping[str, Role]) -> dict[str, list[Sequence[str]]]:
    """Return the observations and actions of each role by its title: kind, name, shape, type and values of each."""
    return {
        f"{'' if name == DEFAULT_ROLE else f'{name}: '}{role.lanes:,} agent{'s' * (role.lanes != 1)}": [
            *_list_spaces(role)
        ]
        for name, role in roles.items()
    }


def _list_spaces(role: Role) -> Iterator[Sequence[str]]:
    for name, spec in role.obs_specs.items():
        values = f"one of {_join(spec.n_values)}, one-hot" if spec.n_values else ""
        if len(spec.shape) == 3:
            values = f"0 to {spec.high:g}"
        yield "observation", name, _join(spec.shape) or "scalar", spec.dtype, values
    for part in role.action_spec.parts:
        values = " x ".join(f"one of {count}" for count in part.n_values)
        if not part.n_values:
            values = f"{min(part.low):g} to {max(part.high):g}"
        yield "action", "" if part.key is None else str(part.key), _join(part.shape) or "scalar", part.dtype, values
    if not role.action_spec.parts:
        yield "action", "", "", "", str(role.action_spec)


def _join(numbers: Sequence[int]) -> str:
    return " x ".join(map(str, numbers))


def list_environment(run: RunData) -> dict[str, Any]:
    """Return the settings of the environment that are set, by name."""
    names = ("env_type", "env_name", "env_args", "env_wrappers", "n_envs", "max_step_each_iter", "runtime", "n_workers")
    values = {name: run.get_setting(f"base_config.{name}") for name in names}
    runtime = str(values["runtime"]).casefold()
    if runtime != "workers":
        del values["n_workers"]
    if runtime in ("cluster", "ray"):
        values["actors"] = run.get_setting("cluster_config.actors")
    return {name: value for name, value in values.items() if value not in (None, {}, [])}


def list_machine(run: RunData) -> dict[str, str]:
    """Return the properties of the machine of the last session, by name; empty if it is not recorded."""
    machine = run.sessions[-1]["machine"] if run.sessions else {}
    names = {"processor": "processor", "cores": "cores", "memory": "memory", "accelerator": "GPU", "system": "system"}
    found = {name: str(machine[key]) for key, name in names.items() if machine.get(key)}
    if "memory" in found:
        found["memory"] = f"{machine['memory'] / GB:.1f} GiB"
    return found


def list_versions(run: RunData) -> dict[str, str]:
    """Return the version of each package, the commit and the seed, by name; those of the last session."""
    origin = run.sessions[-1] if run.sessions else run.record
    seed = run.record.get("seed", run.get_setting("base_config.seed"))
    found = {**(origin.get("versions") or {}), "commit": origin.get("commit"), "seed": seed}
    return {name: str(value) for name, value in found.items() if value is not None}
