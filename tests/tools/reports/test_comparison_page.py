"""The page and the picture of a comparison: their figures, their charts, and that they load nothing."""

from __future__ import annotations

import re
from html import unescape
from xml.etree import ElementTree

import pytest

from algorithm.tools.reports.comparison import compare
from algorithm.tools.reports.comparison_output import write_page, write_picture
from tests.tools.reports.compared_folders import write_run


@pytest.fixture
def runs(tmp_path):
    """Return a folder with runs of three groups, one of which has a single run, in one environment."""
    for seed, value in enumerate([10.0, 20.0, 30.0, 40.0, 60.0]):
        write_run(tmp_path / f"a-{seed}", {0: 0.0, 100: value}, seed=seed, cpu_seconds=2.0 + seed, reached=seed < 4)
        write_run(tmp_path / f"b-{seed}", {0: 0.0, 100: value + 5}, seed=seed, variant="<b>$x$")
    write_run(tmp_path / "c", {0: 0.0, 120: 7.0}, variant="single", status=None)
    return tmp_path


def make_comparison(runs):
    return compare([str(runs)], None, lambda line: None)


def read_rows(page):
    """Return the texts of the cells of each row of the page's tables."""
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    return [
        [unescape(re.sub("<[^>]*>", "", cell)).strip() for cell in re.findall(r"<t[dh].*?</t[dh]>", row, re.DOTALL)]
        for row in rows
    ]


def test_the_table_has_the_figures_of_the_comparison(runs):
    comparison = make_comparison(runs)
    path = write_page(comparison, runs, "compare")
    assert path == runs / "compare.html"
    rows = read_rows(path.read_text(encoding="utf-8"))
    performance, _, single = comparison.environments[0].groups
    assert performance.mean.value == 32 and performance.iqm.value == 30
    assert [
        "ACER",
        "5",
        str(performance.mean),
        str(performance.iqm),
        "4 of 5",
        "100 (100 to not reached)",
        "4.0 (2.0 to not reached)",
    ] in rows
    assert ["ACER (single)", "1", str(single.iqm), str(single.mean), "0 of 1", "-", "-"] in rows
    assert "[" not in str(single.mean)
    assert [f"{runs}/a-3", "ACER", "3", "goal reached", "100", "40.00"] in rows


def test_labels_are_escaped_and_are_no_formulas(runs):
    page = write_page(make_comparison(runs), runs, "compare").read_text(encoding="utf-8")
    assert "ACER (&lt;b&gt;$x$)" in page and "<b>$x$" not in page


def test_notes_are_on_the_page(runs):
    comparison = make_comparison(runs)
    page = unescape(write_page(comparison, runs, "compare").read_text(encoding="utf-8"))
    assert len(comparison.notes) == 2 and all(line in page for line in comparison.notes)


def test_the_page_has_every_chart_once_and_loads_nothing(runs):
    page = write_page(make_comparison(runs), runs, "compare").read_text(encoding="utf-8")
    assert page.count('<svg class="chart"') == 4  # curves, interquartile means, profiles, probabilities
    assert not re.findall(r'(?:src|href)="(?!#|data:)', page) and "<script" not in page and "@import" not in page


def test_several_environments_have_a_section_each_and_one_together(runs):
    for seed in range(3):
        write_run(runs / f"y/a-{seed}", {0: 1.0, 100: 2.0 + seed}, environment="mine/y", seed=seed)
    comparison = make_comparison(runs)
    page = write_page(comparison, runs, "compare").read_text(encoding="utf-8")
    assert [name for name in ("All environments", "mine/task", "mine/y") if f"<h2>{name}</h2>" in page] == [
        "All environments",
        "mine/task",
        "mine/y",
    ]
    assert ["mine/y", "1.000", "100.0"] in read_rows(page)
    overall = comparison.overall.groups[0]
    assert ["ACER", str(overall.mean), str(overall.iqm)] in read_rows(page)


def test_an_obstacle_is_on_the_page_instead_of_normalized_scores(runs):
    write_run(runs / "y", {0: 1.0, 100: 2.0}, environment="mine/y", goal=None)
    page = write_page(make_comparison(runs), runs, "compare").read_text(encoding="utf-8")
    assert "the runs of mine/y have no goal in common" in page and "normalized" not in page


def test_the_picture_is_a_file_of_its_own_with_a_legend(runs):
    write_run(runs / "y", {0: 1.0, 100: 2.0}, environment="mine/y")
    path = write_picture(make_comparison(runs), runs, "compare")
    assert path == runs / "compare.svg"
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"mine/task", "mine/y", "ACER", "ACER (<b>$x$)", "ACER (single)"} <= set(texts)
    assert len(root.findall("{http://www.w3.org/2000/svg}svg")) == 2
    variables = set(re.findall(r"var\((--[\w-]+)\)", path.read_text(encoding="utf-8")))
    assert all(f"{name}:" in root.find("{http://www.w3.org/2000/svg}style").text for name in variables)


def test_the_profile_of_equal_scores_falls_from_one_to_zero_on_an_axis_of_both(tmp_path):
    for variant in ("default", "other"):
        for seed in range(5):
            write_run(tmp_path / f"{variant}-{seed}", {0: 0.0, 100: 500.0}, seed=seed, variant=variant)
    comparison = make_comparison(tmp_path)
    (result,) = comparison.environments
    profile, thresholds = result.groups[0].profile.value, result.groups[0].thresholds
    assert thresholds[0] < 500 < thresholds[-1] and profile[0] == 1 and profile[-1] == 0
    page = write_page(comparison, tmp_path, "compare").read_text(encoding="utf-8")
    chart = page[page.index("Performance profile") :]
    chart = chart[: chart.index("</svg>")]
    assert {"0", "0.2", "0.4", "0.6", "0.8", "1"} <= set(re.findall(r"<text[^>]*>([^<]*)</text>", chart))


def test_a_group_without_common_env_steps_is_drawn(tmp_path):
    for seed, env_steps in enumerate([50_000, 50_001]):  # the second run is first evaluated after the end of the first
        write_run(tmp_path / f"a-{seed}", {env_steps: 10.0}, seed=seed, column="eval/return")
    comparison = compare([str(tmp_path)], "eval/return", lambda line: None)
    assert write_page(comparison, tmp_path, "compare").is_file()
    assert write_picture(comparison, tmp_path, "compare").is_file()
