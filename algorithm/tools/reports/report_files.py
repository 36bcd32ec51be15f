"""The files that report on a run, in its folder: the page report.html and the model card README.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.atomic_io import replace_text
from algorithm.config.yaml_layers import format_yaml
from algorithm.errors import clean_text, summarize_error
from algorithm.parts.env_folder import CONFIG_FILE
from algorithm.runs.results import RESULT_FILE
from algorithm.tools.reports.charts import Chart, Row, draw_rows
from algorithm.tools.reports.network_figure import draw_network
from algorithm.tools.reports.page import mark_safe, render
from algorithm.tools.reports.run_data import Log, RunData, read_run
from algorithm.tools.reports.run_figures import CURVE_FILE, draw_curve, draw_figures
from algorithm.tools.reports.run_summary import (
    list_commands,
    list_environment,
    list_evaluations,
    list_facts,
    list_machine,
    list_spaces,
    list_versions,
    make_headline,
)
from algorithm.training.metrics import TABLE_FILE

REPORT_FILE, CARD_FILE = "report.html", "README.md"
MARK = "<!-- Written by Samara. Without this line, Samara keeps the file. -->"
MAX_VIDEOS = 6  # the newest ones, which the page contains
LINKED_FILES = (CONFIG_FILE, TABLE_FILE, RESULT_FILE, CURVE_FILE)  # if they exist


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
    return render(
        "run.html",
        run=run,
        headline=make_headline(run),
        facts=list_facts(run),
        figures=draw_figures(run.metrics, run.goal),
        episodes=draw_episodes(run),
        evaluations=list_evaluations(run.metrics),
        environment=list_environment(run),
        spaces=list_spaces(run.roles),
        networks={role: (network, draw_network(network["nodes"])) for role, network in run.networks.items()},
        machine=list_machine(run),
        versions=list_versions(run),
        videos=videos[:MAX_VIDEOS],
        commands=list_commands(run),
        files=[name for name in LINKED_FILES if (run.folder / name).is_file()],
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
    title, figure = "Episodes of the last evaluation", draw_rows(rows, x_label="return")
    return Chart(title=title, figure=figure, note=note) if rows else None


def make_model_card(run: RunData) -> str:
    """Return the model card of a run as Markdown, with the metadata that model hubs read."""
    gifs = [path.as_posix() for path in run.videos if path.suffix == ".gif"]
    curves = [CURVE_FILE] if (run.folder / CURVE_FILE).is_file() else []
    return render(
        "model_card.md",
        mark=mark_safe(MARK),
        metadata=mark_safe(format_yaml(make_metadata(run))),
        run=run,
        headline=make_headline(run),
        facts=list_facts(run),
        spaces=list_spaces(run.roles),
        origin=[*list_versions(run), *list_machine(run)],
        commands=list_commands(run),
        pictures=[*curves, *gifs[:1]],
    )


def make_metadata(run: RunData) -> dict[str, Any]:
    """Return the metadata of a model card, in the form of the Hugging Face Hub; other sites show it as Markdown."""
    names = (run.algorithm, str(run.get_setting("base_config.env_name") or run.environment))
    # Without characters that begin HTML, a link or code, which YAML does not escape.
    algorithm, environment = (" ".join(re.sub(r"[<\[`]", "", clean_text(name)).split()) for name in names)
    results = [
        {
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"name": environment, "type": environment},
            "metrics": [
                {"type": "mean_reward", "name": "mean_reward", "value": f"{one['mean']:.2f} +/- {one['std']:.2f}"}
            ],
        }
        for one in (run.record.get("evaluation") or {}).values()
    ]
    return {
        "library_name": "samara",
        "tags": ["reinforcement-learning", algorithm, environment],
        **({"model-index": [{"name": algorithm, "results": results}]} if results else {}),
    }
