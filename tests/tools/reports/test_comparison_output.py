"""The output of a comparison: tables, record, page and picture; the command compare; the end of repeated runs."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest

from algorithm.cli.output import Output
from algorithm.tools.reports.comparison import compare
from algorithm.tools.reports.comparison_output import compare_repeats, write_files
from tests.task_folder import write_task
from tests.tools.reports.run_folders import write_curve

RUNS = Path("runs/mine/task")
CONFIG = """
default:
  base_config: {env_type: PROBE, suggest_settings: false, env_name: choice, max_step: 90, log_every: 30, n_envs: 3}
  acer_config: {rollout_length: 5, sequence_length: 5}
"""


@pytest.fixture
def runs(tmp_path):
    """Return a folder with runs of three groups, one of which has a single run, in one environment."""
    for seed, value in enumerate([10.0, 20.0, 30.0, 40.0, 60.0]):
        write_curve(tmp_path / f"a-{seed}", {0: 0.0, 100: value}, seed=seed, cpu_seconds=2.0 + seed, reached=seed < 4)
        write_curve(tmp_path / f"b-{seed}", {0: 0.0, 100: value + 5}, seed=seed, variant="<b>$x$")
    write_curve(tmp_path / "c", {0: 0.0, 120: 7.0}, variant="single", status=None)
    return tmp_path


def write(runs):
    """Return the comparison of the runs in a folder, and the text of its page."""
    comparison = compare([str(runs)], None, lambda line: None)
    page, picture = write_files(comparison, runs, "compare")
    assert (page, picture) == (runs / "compare.html", runs / "compare.svg")
    return comparison, page.read_text(encoding="utf-8")


def read_rows(page):
    """Return the texts of the cells of each row of the page's tables."""
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    return [
        [unescape(re.sub("<[^>]*>", "", cell)).strip() for cell in re.findall(r"<t[dh].*?</t[dh]>", row, re.DOTALL)]
        for row in rows
    ]


def test_the_page_has_the_figures_of_the_comparison_and_loads_nothing(runs):
    comparison, page = write(runs)
    rows, (group, _, single) = read_rows(page), comparison.environments[0].groups
    assert group.mean.value == 32 and group.iqm.value == 30
    reached = ["4 of 5", "100 (100 to not reached)", "4.0 (2.0 to not reached)"]
    assert ["ACER", "5", str(group.mean), str(group.iqm), *reached] in rows
    assert ["ACER (single)", "1", str(single.iqm), str(single.mean), "0 of 1", "-", "-"] in rows
    assert "[" not in str(single.mean)
    assert [f"{runs}/a-3", "ACER", "3", "goal reached", "100", "40.00"] in rows
    assert "ACER (&lt;b&gt;$x$)" in page and "<b>$x$" not in page
    assert len(comparison.notes) == 2 and all(line in unescape(page) for line in comparison.notes)
    assert page.count('<svg class="chart"') == 4  # curves, interquartile means, profiles, probabilities
    assert not re.findall(r'(?:src|href)="(?!#|data:)', page) and "<script" not in page and "@import" not in page


def test_several_environments_have_a_section_each_and_one_together(runs):
    for seed in range(3):
        write_curve(runs / f"y/a-{seed}", {0: 1.0, 100: 2.0 + seed}, environment="mine/y", seed=seed)
    comparison, page = write(runs)
    headings = ["All environments", "mine/task", "mine/y"]
    assert [name for name in re.findall("<h2>(.*?)</h2>", page) if name in headings] == headings
    overall = comparison.overall.groups[0]
    for row in (["mine/y", "1.000", "100.0"], ["ACER", str(overall.mean), str(overall.iqm)]):
        assert row in read_rows(page)


def test_an_obstacle_is_on_the_page_instead_of_normalized_scores(runs):
    write_curve(runs / "y", {0: 1.0, 100: 2.0}, environment="mine/y", goal=None)
    _, page = write(runs)
    assert "the runs of mine/y have no goal in common" in page and "normalized" not in page


def test_the_picture_is_a_file_of_its_own_with_a_legend(runs):
    write_curve(runs / "y", {0: 1.0, 100: 2.0}, environment="mine/y")
    write(runs)
    root = ElementTree.parse(runs / "compare.svg").getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"mine/task", "mine/y", "ACER", "ACER (<b>$x$)", "ACER (single)"} <= set(texts)
    assert len(root.findall("{http://www.w3.org/2000/svg}svg")) == 2


def test_the_profile_of_equal_scores_falls_from_one_to_zero_on_an_axis_of_both(tmp_path):
    for variant in ("default", "other"):
        for seed in range(5):
            write_curve(tmp_path / f"{variant}-{seed}", {0: 0.0, 100: 500.0}, seed=seed, variant=variant)
    comparison, page = write(tmp_path)
    group = comparison.environments[0].groups[0]
    profile, thresholds = group.profile.value, group.thresholds
    assert thresholds[0] < 500 < thresholds[-1] and profile[0] == 1 and profile[-1] == 0
    chart = page[page.index("Performance profile") :]
    chart = chart[: chart.index("</svg>")]
    assert {"0", "0.2", "0.4", "0.6", "0.8", "1"} <= set(re.findall(r"<text[^>]*>([^<]*)</text>", chart))


@pytest.fixture
def local_runs():
    """Write two runs of ACER with the returns 10 and 20, and two of SAC with 12 and 14."""
    for name, variant, values in (("a", "default", (10.0, 20.0)), ("b", "sac", (12.0, 14.0))):
        for seed, value in enumerate(values):
            settings = {"seed": seed, "variant": variant, "algorithm": "SAC" if variant == "sac" else "ACER"}
            write_curve(RUNS / f"{name}-{seed + 1}", {0: 0.0, 100: value}, **settings)


@pytest.mark.usefixtures("local_runs")
def test_runs_are_compared_in_tables_a_page_and_a_picture(command):
    shown = command("compare runs/mine/task/*").out
    assert "mine/task: rollout/return at 100 env steps" in shown
    rows = [line for line in shown.splitlines() if "15.00 [10.00, 20.00]" in line]
    assert len(rows) == 1 and "ACER" in rows[0] and "0 of 2" in rows[0]
    assert "0.500 [" in shown  # a run of ACER is below one of SAC, the other one above
    record = command.json(f"compare {RUNS}/a-1 {RUNS}/a-2 {RUNS}/b-1")
    (environment,) = record["environments"]
    assert [group["scores"] for group in environment["groups"]] == [[10, 20], [12]]
    assert environment["groups"][1]["mean"] == {"value": 12, "low": None, "high": None}
    assert {*record} == {"status", "metric", "environments", "overall", "notes", "page", "picture"}
    assert {*environment} == {"environment", "goal", "env_steps", "groups", "improvements"}
    scores = {"label", "runs", "mean", "iqm", "scores", "reached", "env_steps_to_goal", "cpu_seconds_to_goal"}
    assert {*environment["groups"][0]} == scores
    assert {*environment["improvements"][0]} == {"label", "other", "value", "low", "high"}
    page, picture = RUNS / "compare.html", RUNS / "compare.svg"
    assert (record["page"], record["picture"]) == (page.as_posix(), picture.as_posix())
    assert "Comparison of 3 runs" in page.read_text(encoding="utf-8")
    assert picture.read_text(encoding="utf-8").startswith("<svg")


def test_repeated_runs_end_with_their_comparison(command):
    write_task(CONFIG)
    result = command.json("mine/task -n a --repeat 2")
    assert len(result["runs"]) == 2 and result["spread"]["return"]["runs"] == 2
    comparison = result["comparison"]
    (group,) = comparison["environments"][0]["groups"]
    assert group["runs"] == ["runs/mine/task/a-1", "runs/mine/task/a-2"]
    assert comparison["page"] == "runs/mine/task/a-compare.html" and Path(comparison["page"]).is_file()


@pytest.mark.usefixtures("local_runs")
def test_a_comparison_that_fails_does_not_change_repeated_runs(capsys):
    (RUNS / "a-compare.html").mkdir()
    output = Output(False)
    output.result = {"runs": []}
    compare_repeats([str(RUNS / "a-1"), str(RUNS / "a-2")], output)
    assert output.result == {"runs": []}
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("the runs are not compared")]
    assert "a-compare.html" in line
