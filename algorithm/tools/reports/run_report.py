"""The report of a run: a page with all that its folder contains about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from algorithm.parts.env_folder import CONFIG_FILE
from algorithm.runs.results import RESULT_FILE
from algorithm.tools.reports.charts import Samples, draw_samples
from algorithm.tools.reports.curve import CURVE_FILE
from algorithm.tools.reports.network_figure import draw_network
from algorithm.tools.reports.outcome import describe_outcome, list_facts
from algorithm.tools.reports.page import ChartFigure, mark_safe, render
from algorithm.tools.reports.run_data import RunData
from algorithm.tools.reports.run_figures import draw_figures
from algorithm.tools.reports.run_tables import (
    list_commands,
    list_environment,
    list_evaluations,
    list_machine,
    list_sessions,
    list_spaces,
    list_versions,
    make_changes,
    make_differences,
    make_lineage,
)
from algorithm.training.metrics import TABLE_FILE

MAX_FAULTS, MAX_VIDEOS = 50, 6  # the newest ones, which the page contains
LINKED_FILES = (CONFIG_FILE, TABLE_FILE, RESULT_FILE, CURVE_FILE)  # if they exist


def make_report(run: RunData) -> str:
    """Return the report of a run as HTML."""
    return render(
        "run.html",
        run=run,
        outcome=describe_outcome(run),
        facts=list_facts(run),
        figures=draw_figures(run.metrics, run.goal),
        episodes=draw_episodes(run),
        evaluations=list_evaluations(run.metrics),
        environment=list_environment(run),
        spaces=list_spaces(run.roles),
        networks=list(_list_networks(run)),
        differences=make_differences(run.differences),
        changes=make_changes(run.changes),
        machine=list_machine(run),
        versions=list_versions(run),
        sessions=list_sessions(run),
        lineage=make_lineage(run.lineage),
        faults=run.faults[-MAX_FAULTS:],
        videos=[path for path in run.videos if path.suffix == ".mp4" or path.with_suffix(".mp4") not in run.videos][
            :MAX_VIDEOS
        ],
        commands=list_commands(run),
        files=[name for name in LINKED_FILES if (run.folder / name).is_file()],
    )


def draw_episodes(run: RunData) -> ChartFigure | None:
    """Return the chart of the returns of the last evaluation's episodes; None if they are not recorded."""
    samples = [
        Samples(
            label="" if len(run.record["evaluation"]) == 1 else role,
            color=index,
            values=np.array(one["returns"]),
            mean=one["mean"],
            low=one["low"],
            high=one["high"],
        )
        for index, (role, one) in enumerate((run.record.get("evaluation") or {}).items())
        if one.get("returns")
    ]
    if not samples:
        return None
    return ChartFigure(
        title="Episodes of the last evaluation",
        svg=mark_safe(draw_samples("episodes", samples, x_label="return")),
        note="Each dot is an episode; the bar is the mean return with its 95% interval.",
    )


def _list_networks(run: RunData) -> Iterator[dict[str, Any]]:
    for role, network in run.networks.items():
        yield {**network, "role": role, "svg": mark_safe(draw_network(network["nodes"]))}
