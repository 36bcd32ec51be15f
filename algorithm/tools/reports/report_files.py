"""The files that report on a run, in its folder: report.html, README.md and curve.png, with their texts and charts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.atomic_io import replace_text
from algorithm.errors import clean_text, summarize_error
from algorithm.parts.env_folder import CONFIG_FILE
from algorithm.program import DEFAULT_ROLE, get_command
from algorithm.runs.results import RESULT_FILE, describe_state
from algorithm.specs import Role
from algorithm.tools.reports.charts import Chart, Line, Row, draw_lines, draw_picture, draw_rows, find_robust_range
from algorithm.tools.reports.page import format_count, format_duration, render
from algorithm.tools.reports.run_data import RETURN_COLUMN, Log, RunData, RunMetrics, make_metrics, read_run
from algorithm.training.metrics import EVALUATION_COLUMN, TABLE_FILE, format_number, read_table

REPORT_FILE, CARD_FILE, CURVE_FILE = "report.html", "README.md", "curve.png"
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
# Of charts.
EPISODE_COLUMN, COUNT_COLUMN = "rollout/episode_return", "time/episodes"  # of a single episode; episodes so far
LOW_COLUMN, HIGH_COLUMN = "eval/return_low", "eval/return_high"
SHARE_PREFIX, SHARE_SUFFIX = "time/", "_fraction"
MAX_STEPS = 150  # of the chart of shares
MAIN_SIZE = (640.0, 360.0)  # of the chart of returns, in pixels
GAP_NOTE = "The line is interrupted where lines of metrics.csv are damaged."
Titles = Mapping[str, Mapping[str, str]]
# Charts by title: the metrics in each of them, with their names in its legend.
TITLES: Titles = {
    "Episode length": {"rollout/length": "training", "eval/length": "evaluation"},
    "Entropy": {
        "train/entropy": "policy",
        "train/entropy_discrete": "discrete actions",
        "train/entropy_continuous": "continuous actions",
    },
    "KL divergence": {
        "train/kl_to_average": "to the average policy",
        "train/kl_to_old_policy": "to the policy that acted",
        "train/kl_after_step": "to the average policy, after the step",
    },
    "Temperature": {"train/alpha_discrete": "discrete actions", "train/alpha_continuous": "continuous actions"},
}
SPEED: Titles = {
    "Env steps per second": {"time/env_steps_per_second": ""},
    "Updates per second": {"time/updates_per_second": ""},
}
UNITS: Mapping[str, str] = {"Entropy": "nats", "KL divergence": "nats", "Episode length": "steps"}
# Metrics without a chart: they are in the return's chart, in the tables, or count something since the start.
UNDRAWN = {RETURN_COLUMN, EPISODE_COLUMN, EVALUATION_COLUMN, LOW_COLUMN, HIGH_COLUMN, "eval/return_std", "time/seconds"}
UNDRAWN |= {"time/episodes", "time/updates", "time/cpu_seconds"}
ZERO_BASED = {"Episode length", "Entropy", *SPEED}


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A number of a run: its name, its value as text, and a note below it."""

    name: str
    value: str
    note: str = ""


def write_report(folder: Path, log: Log) -> None:
    """Write the files at the end of a run; an error is a line, and does not change the result of the run."""
    try:
        log(f"report: {write_files(folder, log)[0]}")
    except Exception as error:  # no error of a report may change the result of a run
        log(f"no report: {summarize_error(error)}")


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
        command=get_command(run.environment, "-n", run.name),
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
    found: dict[str, list[Sequence[str]]] = {}
    for name, role in roles.items():
        title = f"{'' if name == DEFAULT_ROLE else f'{name}: '}{role.lanes:,} agent{'s' * (role.lanes != 1)}"
        rows = found[title] = []
        for key, spec in role.obs_specs.items():
            values = f"one of {_join(spec.n_values)}, one-hot" if spec.n_values else ""
            if len(spec.shape) == 3:
                values = f"0 to {spec.high:g}"
            rows.append(("observation", key, _join(spec.shape) or "scalar", spec.dtype, values))
        for part in role.action_spec.parts:
            values = " x ".join(f"one of {count}" for count in part.n_values)
            if not part.n_values:
                values = f"{min(part.low):g} to {max(part.high):g}"
            part_name = "" if part.key is None else str(part.key)
            rows.append(("action", part_name, _join(part.shape) or "scalar", part.dtype, values))
        if not role.action_spec.parts:
            rows.append(("action", "", "", "", str(role.action_spec)))
    return found


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


# Charts.


def draw_curve(folder: Path, goal: float | None, log: Log, metrics: RunMetrics | None = None) -> Path | None:
    """Draw curve.png from the metrics of a run.

    Args:
        folder: folder of the run.
        goal: mean return of the goal, drawn as a dashed line; None without a goal.
        log: receives the reason if drawing fails.
        metrics: its metrics.csv, which is slow to read; None to read it.

    Returns:
        The path of the picture; None if drawing fails.
    """
    try:
        metrics = make_metrics(read_table(folder / TABLE_FILE), {}) if metrics is None else metrics
        if not metrics.columns:
            raise ValueError(f"{TABLE_FILE} has no row that can be read")
        title = f"{folder.name}: return" + ("" if goal is None else f" (goal {goal:,.6g})")
        draw_picture([replace(draw_returns(metrics, goal), title=title)]).write_png(folder / CURVE_FILE)
    except Exception as error:  # a run does not fail because of its picture
        log(f"no {CURVE_FILE}: {type(error).__name__}: {error}")
        return None
    return folder / CURVE_FILE


def draw_figures(metrics: RunMetrics, goal: float | None) -> dict[str, list[Chart]]:
    """Draw the charts of a run by section.

    The sections are `main` (returns; empty if no episode has ended yet), `learning` (episode length, losses and
    properties of the policy), `speed` (env steps and updates per second, and shares of the time), and `further` (all
    other metrics that vary). `goal` is the mean return of its goal.
    """
    found, returns = metrics.list_metrics(), draw_returns(metrics, goal)
    losses = {_make_title(name): {name: ""} for name in found if name.endswith("_loss")}
    learning = {"Episode length": TITLES["Episode length"], **losses, **TITLES}
    drawn = {*UNDRAWN, *(name for names in (*learning.values(), *SPEED.values()) for name in names)}
    further = {
        _make_title(name): {name: ""}
        for name in found
        if name not in drawn and not name.endswith(SHARE_SUFFIX)
        if any(len(np.unique(metrics.get_known(column))) > 1 for column in found[name].values())
    }
    return {
        "main": [returns] if returns.legend else [],
        "learning": list(_draw_charts(metrics, learning)),
        "speed": [*_draw_charts(metrics, SPEED), *_draw_time_shares(metrics)],
        "further": list(_draw_charts(metrics, further)),
    }


def draw_returns(metrics: RunMetrics, goal: float | None) -> Chart:
    """Return the chart of training returns, evaluations with their intervals, and the goal."""
    lines = _make_lines(metrics, {RETURN_COLUMN: "training", EVALUATION_COLUMN: "evaluation"})
    columns = metrics.list_metrics().get(RETURN_COLUMN, {})
    roles = [role for role, column in columns.items() if len(metrics.get_known(column))]
    episodes = [line for color, role in enumerate(roles) for line in _find_episodes(metrics, role, color)]
    y_range = find_robust_range([*episodes, *lines], goal)
    notes = {
        GAP_NOTE: metrics.is_gap.any(),
        "Small dots are single training episodes: the last one before each row of metrics.csv.": episodes,
        "Some extremes are cut off.": y_range,
        "Points are means over evaluation episodes, bars their 95% intervals.": any(line.marked for line in lines),
        f"The dashed line is the goal, {goal or 0.0:,.6g}.": goal is not None,
    }
    note = " ".join(note for note, is_true in notes.items() if is_true)
    return draw_lines([*episodes, *lines], title="Return", note=note, level=goal, y_range=y_range, size=MAIN_SIZE)


def _find_episodes(metrics: RunMetrics, role: str, color: int) -> list[Line]:
    """Return the returns of single training episodes of a role, in the color of their mean; empty without them.

    A row before which no episode has ended repeats the return of an earlier one.
    """
    name = metrics.list_metrics().get(EPISODE_COLUMN, {}).get(role)
    if name is None or COUNT_COLUMN not in metrics.columns:
        return []
    x, y, count = metrics.get_rows(name, COUNT_COLUMN)
    known = np.flatnonzero(np.isfinite(y) & np.isfinite(count))
    new = known[np.diff(count[known], prepend=0) > 0]
    return [Line(color=color, x=x[new], y=y[new], marked=True, faint=True)]


def _draw_charts(metrics: RunMetrics, charts: Titles) -> Iterator[Chart]:
    """Yield a chart for each title with a metric that has values."""
    for title, names in charts.items():
        if lines := _make_lines(metrics, names):
            text = f"{title}, in {UNITS[title]}" if title in UNITS else title
            note = GAP_NOTE if metrics.is_gap.any() else ""
            yield draw_lines(lines, title=text, note=note, from_zero=title in ZERO_BASED)


def _make_lines(metrics: RunMetrics, names: Mapping[str, str]) -> list[Line]:
    """Return a line for each role of each metric that has values.

    Evaluations are points, those of returns with their intervals. `names` are the labels of the metrics.
    """
    found = metrics.list_metrics()
    lines: list[Line] = []
    for metric, role, column in [(name, *each) for name in names for each in found.get(name, {}).items()]:
        if len(metrics.get_known(column)):
            bounds = [f"{bound}/{role}" if role else bound for bound in (LOW_COLUMN, HIGH_COLUMN)]
            has_bounds = metric == EVALUATION_COLUMN and all(bound in metrics.columns for bound in bounds)
            x, y, *ends = metrics.get_rows(column, *(bounds if has_bounds else ()))
            low, high = ends or (None, None)
            label = ", ".join(filter(None, (names[metric], role))) or "last value"
            marked = metric.startswith("eval/")
            lines.append(
                Line(color=len(lines), x=x, y=y, low=low, high=high, marked=marked, label=label, column=column)
            )
    return lines


def _draw_time_shares(metrics: RunMetrics) -> list[Chart]:
    """Return the chart of the share of the time of each phase, the largest mean first, if there are metrics of it.

    The areas of the phases are stacked. Each of at most `MAX_STEPS` steps has the mean of its rows.
    """
    names = [name for name in metrics.columns if name.startswith(SHARE_PREFIX) and name.endswith(SHARE_SUFFIX)]
    rows = np.stack(metrics.get_rows("time/seconds", *names)) if names else np.empty((2, 0))
    env_steps, seconds, *shares = np.nan_to_num(rows[:, np.isfinite(rows[1])])
    n_rows = len(seconds)
    if not n_rows:
        return []
    widths = np.diff(seconds, prepend=0.0).clip(min=0)
    means = np.average(shares, axis=1, weights=widths if widths.any() else None)
    order = np.argsort(-means, kind="stable")
    starts = np.linspace(0, n_rows, min(n_rows, MAX_STEPS), endpoint=False).astype(int)
    sums = np.add.reduceat(np.array(shares)[order].clip(min=0), starts, axis=1)
    tops = np.cumsum(sums / np.diff(starts, append=n_rows), 0)
    edges = np.repeat([0.0, *env_steps[starts[1:] - 1], env_steps[-1]], 2)[1:-1]
    labels = [
        f"{names[index].removeprefix(SHARE_PREFIX).removesuffix(SHARE_SUFFIX)} {means[index]:.0%}" for index in order
    ]
    lines = [
        Line(color=color, x=edges, y=np.repeat(top, 2), low=np.repeat(bottom, 2), high=np.repeat(top, 2), label=label)
        for color, (bottom, top, label) in enumerate(zip([np.zeros(len(starts)), *tops], tops, labels, strict=False))
    ]
    return [draw_lines(lines, title="Shares of the time", y_range=(0.0, max(1.0, float(tops.max()))))]


def _make_title(metric: str) -> str:
    """Return the title of the chart of a metric: Critic loss, for train/critic_loss."""
    text = metric.removeprefix("train/").replace("_", " ").replace("/", ": ")
    return text[:1].upper() + text[1:]
