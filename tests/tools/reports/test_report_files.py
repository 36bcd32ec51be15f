"""The report, model card and curve of a run: their figures are those of its files, links exist, no network is used."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import jinja2
import numpy as np
import pytest
import yaml
from PIL import Image

from algorithm.population.members import PopulationFolder
from algorithm.runs.lineage import LineageRow
from algorithm.specs import ActionPart, ActionSpec, ObsSpec, Role
from algorithm.tools.reports import page, report_files
from algorithm.tools.reports.charts import Text
from algorithm.tools.reports.page import MAX_VALUE, format_count, format_duration, format_setting
from algorithm.tools.reports.report_files import (
    BAD,
    CURVE_FILE,
    GOOD,
    MARK,
    MAX_STEPS,
    WAITING,
    draw_curve,
    draw_figures,
    draw_returns,
    list_environment,
    list_facts,
    list_machine,
    list_spaces,
    list_versions,
    make_headline,
    make_report,
    write_files,
    write_report,
)
from algorithm.tools.reports.run_data import RunData, read_run
from algorithm.training.metrics import MetricsWriter
from tests.builders import make_role
from tests.tools.reports.run_folders import (
    COMMIT,
    FAULT,
    RESULT,
    find_urls,
    read_last_values,
    read_links,
    read_text,
    write_run,
)

# Only in tables, or counters since the start of the run.
NOT_DRAWN = {
    "rollout/episode_return",
    "eval/return_low",
    "eval/return_high",
    "eval/return_std",
    "time/seconds",
    "time/episodes",
    "time/updates",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run folder with its report."""
    folder = write_run(tmp_path_factory.mktemp("runs") / "gym/cartpole/first")
    write_files(folder, pytest.fail)
    return folder


@pytest.fixture(scope="module")
def html(run) -> str:
    return (run / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def text(html) -> str:
    """The text that the report shows."""
    return read_text(html)


SHOWN = f"""
Goal reached The mean return reached the goal of 475 after 6,000 env steps; evaluation episodes confirm it.
evaluation return 479.7 95% interval 428.8 to 530.6, 3 episodes
training return 476.2 mean of the last episodes
env steps 6,000 at most 6,000 episodes 97 updates 1,234
time of training 12.5 s 480 env steps per second
Episodes of the last evaluation
4,000 280.0 229.1 330.9 20.50 280.0 6,000 479.7 428.8 530.6 20.50 479.7
Shares of the time
learning 50%
acting 30%
environment 20%
4 agents
observation obs 4 float32
one of 2
base_config.env_name CartPole-v1 null
base_config.seed 7
acer_config.gamma 0.98 0.99
3,000 acer_config.gamma 0.9 0.98
processor Fast <CPU>
cores 2
memory 16.0 GiB
torch 2.13.0
commit {COMMIT}
seed 7
2026-01-01 00:00:00 UTC Fast <CPU> 0123456789 0 3,000
2026-01-02 00:00:00 UTC Fast <CPU> 0123456789 3,000 6,000
{FAULT}
"""


def test_the_page_has_the_figures_of_the_files_in_the_order_of_its_sections(text):
    end = 0
    for line in SHOWN.strip().splitlines():
        end = text.index(line, end) + len(line)
    settings = text.partition("Settings that differ from the defaults")[2].partition("Origin")[0]
    assert "sac_config" not in settings and "base_config.name" not in settings  # they have no effect


def test_the_network_is_a_table_of_its_parts(run, html):
    data = read_run(run)
    for row in (
        "148 trained parameters; average network: 148.",
        "encoder obs VectorEncoder 4 0 body encoder LayerStack Linear 4 → 16 16 80",
        "policy and critic body SharedHeads Linear 16 → 4 2 + 2 68",
    ):
        assert row in read_text(html)
    data.networks["agent"]["nodes"][-1] |= {"name": "<b>", "inputs": [0, 2], "count": 2, "output": None}
    assert "<b> × 2 obs, body SharedHeads Linear 16 → 4 68" in read_text(make_report(data))


def test_shares_of_the_time_are_stacked_means_of_rows(run):
    metrics = read_run(run).metrics
    count = 3 * MAX_STEPS
    half = np.arange(count) < count // 2
    columns = {"env_steps": np.arange(1.0, count + 1), "time/seconds": np.arange(1.0, count + 1)}
    columns |= {"time/a_fraction": np.where(half, 0.8, 0.2), "time/b_fraction": np.where(half, 0.2, 0.4)}
    chart = draw_figures(replace(metrics, columns=columns, is_gap=np.zeros(count, bool)), None)["speed"][-1]
    assert [entry.label for entry in chart.legend] == ["a 50%", "b 30%"]
    lines = [shape for shape in chart.figure.shapes[-1].shapes if shape.color.startswith("series") and shape.width]
    first, second = (line.points for line in lines)
    floor = chart.figure.shapes[-1].size[1]
    heights = [(floor - points[[0, -1], 1]) / floor for points in (first, second)]
    np.testing.assert_allclose(heights, [[0.8, 0.2], [1.0, 0.6]])
    assert len(first) == 2 * MAX_STEPS and first[-1, 0] == first[:, 0].max()


def test_single_episodes_are_behind_the_mean_return(html, text):
    chart = html.partition("<figcaption>Return<")[2].partition("</svg>")[0]
    assert chart.count("h0M") >= 60 and "Small dots are single training episodes" in text


def test_rows_that_repeat_an_episode_add_no_dot(tmp_path):
    folder = write_run(tmp_path / "a")
    metrics = read_run(folder).metrics
    metrics.columns["time/episodes"][10:20] = metrics.columns["time/episodes"][9]
    chart = draw_returns(metrics, None)
    assert chart.figure.to_svg().count("h0") == 50 + 3  # and three evaluations
    assert "extremes" not in chart.note
    metrics.columns["rollout/return"][30] = -1e6
    chart = draw_returns(metrics, None)
    assert "Some extremes are cut off." in chart.note and "1M<" not in chart.figure.to_svg()


def test_every_curve_ends_at_the_last_value_of_its_column(run, html):
    last = {}
    with (run / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            last |= {name: float(value) for name, value in row.items() if value}
    shown = read_last_values(html)
    assert shown.keys() == {name for name in last if name not in NOT_DRAWN and "_fraction" not in name} - {"env_steps"}
    assert shown == {name: last[name] for name in shown}


def read_path(html: str, column: str) -> str:
    """Return the path of the only line in the chart of a column."""
    chart = html[html.rindex("<figure>", 0, html.index(f'data-column="{column}"')) :]
    return re.search(r'<path d="([^"]*)" fill="none" stroke="var\(--series-0\)', chart)[1]


def test_every_link_is_a_file_of_the_run(run, html):
    links = read_links(html)
    assert {"config.yaml", "metrics.csv", "result.json", "curve.png"} <= set(links)
    assert all((run / link).is_file() for link in links)
    videos = [link for link in links if "videos" in link]
    assert videos == ["videos/6000-best.mp4", "videos/6000-worst.mp4", "videos/3000-best.mp4"]


def test_the_page_has_no_script_and_no_url_of_a_network(html):
    assert find_urls(html) == [] and find_urls('<img src="//a.b/c">') and find_urls("url(https://a.b)")
    assert "@import" not in html and not re.search(r"url\((?!#)", html)
    assert not re.search(r"<(script|iframe|object|embed|base)\b|<[^>]* on\w+=", html)
    assert re.findall("<link [^>]*>", html) == ['<link rel="icon" href="data:,">']


def test_a_member_of_a_population_has_its_lineage(run):
    member = run.with_name("many-2")
    rows = [
        LineageRow(interval=k, member=m, parent=p, env_steps=k * 100, settings={"acer_config.gamma": g}, mean_return=r)
        for k, m, p, g, r in [(1, 1, 1, 0.9, 5.0), (1, 2, 2, 0.8, 3.0), (2, 2, 1, 0.91, None)]
    ]
    population = run.with_name("many")
    population.mkdir()
    PopulationFolder(population, 2).write_lineage(rows)
    (population / "population.json").write_text("{}")
    member.mkdir()
    found = read_run(member)
    assert [row.interval for row in found.lineage] == [1, 2]
    with (population / "lineage.jsonl").open("a") as file:
        file.write("{\n")
    assert "these intervals are left out" in read_run(member).problems[-1]
    text = read_text(make_report(found))
    assert "Member 2 of the population many" in text
    assert "acer_config.gamma = 0.8 1 itself 100 3.000 acer_config.gamma = 0.91 2 member 1 200 failed" in text


def test_damaged_lines_are_a_gap_and_a_line(run, tmp_path):
    folder = tmp_path / "damaged"
    folder.mkdir()
    lines = (run / "metrics.csv").read_text().splitlines()
    lines[30:33] = ["\x00\x00", "3100,oops", "3200"]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    (folder / "result.json").write_text(json.dumps(RESULT))
    html = make_report(read_run(folder))
    text = read_text(html)
    assert "metrics.csv is damaged: 3 of its lines cannot be read" in text
    assert "The line is interrupted where lines of metrics.csv are damaged." in text
    assert read_path(html, "train/critic_loss").count("M") == 2


def test_an_empty_folder_has_a_report(tmp_path):
    text = read_text(make_report(read_run(tmp_path)))
    assert "Unfinished" in text and "No episode has ended yet" in text
    assert "The networks are not recorded." in text and "The machine is not recorded." in text


def test_the_model_card_has_metadata_and_the_figures_of_the_result(run):
    card = (run / "README.md").read_text(encoding="utf-8")
    _, head, text = card.split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert metadata["library_name"] == "samara"
    assert metadata["tags"] == ["reinforcement-learning", "ACER", "CartPole-v1"]
    (model,) = metadata["model-index"]
    (result,) = model["results"]
    assert result["dataset"]["type"] == "CartPole-v1"
    assert result["metrics"][0]["value"] == "479.70 +/- 20.50"
    assert text.startswith(MARK)
    for line in [
        "# ACER in gym/cartpole",
        "Goal reached. The mean return reached the goal of 475 after 6,000 env steps; evaluation episodes confirm it. "
        "The 95% interval of the evaluation, 428.8 to 530.6, does not decide whether the weights reach the goal; "
        "more than 3 evaluation episodes (goal.evaluation_episodes) make it narrower.",
        "| evaluation return | 479.7 (95% interval 428.8 to 530.6, 3 episodes) |",
        "| acer_config.gamma | 0.98 | 0.99 |",
        "| observation | obs | 4 | float32 |  |",
        "| processor | Fast &lt;CPU> |",
        f"| commit | {RESULT['commit']} |",
        "- play it: `python main.py gym/cartpole -n first --run`",
    ]:
        assert line in text.splitlines()
    for name in ("curve.png", "videos/6000-best.gif"):
        assert f"![{name}]({name})" in text and (run / name).is_file()
    assert "]([" not in text and "sac_config" not in text


def test_tables_of_the_model_card_have_equal_rows(run):
    lines = (run / "README.md").read_text(encoding="utf-8").splitlines()
    runs = groupby(lines, key=lambda line: line.startswith("|"))
    tables = [[row.count("|") for row in rows] for is_table, rows in runs if is_table]
    assert len(tables) == 4 and all(len(set(table)) == 1 for table in tables)


def test_a_readme_of_the_user_is_kept_and_a_model_card_is_replaced(tmp_path):
    lines = []
    (tmp_path / "README.md").write_text("mine")
    report, card = write_files(tmp_path, lines.append)
    assert report.is_file() and card is None and (tmp_path / "README.md").read_text() == "mine"
    assert "README.md is kept" in lines[-1]
    (tmp_path / "README.md").write_text(f"earlier card\n{MARK}")
    _, card = write_files(tmp_path, lines.append)
    assert card and "earlier card" not in card.read_text()


def test_an_error_while_writing_is_a_line(monkeypatch, tmp_path):
    def fail(folder, log):
        raise OSError("no space left")

    lines = []
    monkeypatch.setattr(report_files, "write_files", fail)
    write_report(tmp_path, lines.append)
    assert lines == ["no report: OSError: no space left"]


def make_run(tmp_path, **changes):
    """Return a run whose result differs from a usual one by `changes`."""
    run = read_run(tmp_path)
    run.record, run.settings = {**RESULT, **changes}, {"goal": {"return": 475}}
    return run


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({}, GOOD, ["Goal reached", "goal of 475 after 6,000 env steps", "evaluation episodes confirm"]),
        ({"confirmed_by": "training"}, GOOD, ["training episodes only", "training episodes confirm"]),
        ({"reached": False}, BAD, ["Goal not reached", "did not reach the goal of 475 within 6,000 env steps"]),
        ({"reached": None}, GOOD, ["Done", "trained for 6,000 env steps, without a goal"]),
        ({"status": 130}, WAITING, ["Interrupted", "A signal ended the run after 6,000 env steps."]),
        ({"status": 143}, WAITING, ["Ended", "A signal ended the run"]),
        ({"status": 4}, BAD, ["Diverged", "exit status 4 after 6,000 env steps."]),
        ({"status": 1, "failure": "No port."}, BAD, ["Failed (1)", "exit status 1 after 6,000 env steps: No port."]),
        ({"status": None}, WAITING, ["Unfinished", "metrics end at 6,000 env steps"]),
    ],
)
def test_outcomes(tmp_path, changes, kind, words):
    found, label, sentence = make_headline(make_run(tmp_path, **changes))
    assert found == kind
    assert all(word in f"{label} {sentence}" for word in words)


@pytest.mark.parametrize(
    ("low", "high", "interval"),
    [(428.8, 530.6, "428.8 to 530.6"), (None, None, "unknown"), (475, 490, ""), (450, 474.9, "")],
)
@pytest.mark.parametrize("reached", [True, False])
def test_an_interval_that_is_too_wide_to_decide_is_mentioned(tmp_path, reached, low, high, interval):
    one = {**RESULT["evaluation"]["agent"], "low": low, "high": high}
    sentence = make_headline(make_run(tmp_path, reached=reached, evaluation={"agent": one}))[2]
    doubt = (
        f" The 95% interval of the evaluation, {interval}, does not decide whether the weights reach the goal; "
        "more than 3 evaluation episodes (goal.evaluation_episodes) make it narrower."
    )
    assert sentence.endswith(doubt) == bool(interval) and sentence.count("interval") == bool(interval)


def test_a_run_in_training_is_not_over(tmp_path, monkeypatch):
    monkeypatch.setattr(RunData, "in_training", True)
    assert make_headline(make_run(tmp_path, status=130))[:2] == (WAITING, "In training")


def test_each_role_has_its_returns(tmp_path):
    one = {**RESULT["evaluation"]["agent"], "low": None, "high": None, "episodes": 1}
    run = make_run(tmp_path, returns={"red": 1.0, "blue": None}, evaluation={"red": one, "blue": one})
    facts = [(fact.name, fact.value, fact.note) for fact in list_facts(run)]
    assert facts[:4] == [
        ("evaluation return, red", "479.7", "1 episode"),
        ("evaluation return, blue", "479.7", "1 episode"),
        ("training return, red", "1.000", "mean of the last episodes"),
        ("training return, blue", "-", "mean of the last episodes"),
    ]


def test_the_time_of_a_run_without_steps_has_no_speed(tmp_path):
    (time,) = (fact for fact in list_facts(make_run(tmp_path, seconds=0.0)) if fact.name == "time of training")
    assert (time.value, time.note) == ("0.0 s", "")


def test_spaces_of_every_kind():
    parts = (
        ActionPart(key="gear", shape=(), dtype="int64", n_values=(3,)),
        ActionPart(key="throttle", shape=(2,), dtype="float32", low=(-1.0, 0.0), high=(1.0, 2.0)),
    )
    specs = {"picture": ObsSpec((3, 8, 8), "uint8", high=255.0), "place": ObsSpec((7,), n_values=(3, 4))}
    role = Role(1, specs, ActionSpec.from_parts(parts))
    assert list_spaces({"car": role}) == {
        "car: 1 agent": [
            ("observation", "picture", "3 x 8 x 8", "uint8", "0 to 255"),
            ("observation", "place", "7", "float32", "one of 3 x 4, one-hot"),
            ("action", "gear", "scalar", "int64", "one of 3"),
            ("action", "throttle", "2", "float32", "-1 to 2"),
        ]
    }
    ((title, rows),) = list_spaces({"agent": make_role(4)}).items()
    assert title == "4 agents" and rows[-1][0] == "action"


def test_the_newest_evaluations_are_listed(tmp_path):
    lines = [f"{k},{k / 2}" for k in range(1, 16)]
    (tmp_path / "metrics.csv").write_text("\n".join(["env_steps,eval/return/red", *lines, ""]))
    text = read_text(make_report(read_run(tmp_path)))
    assert "red env steps mean return 4 2.000 5 2.500" in text and "15 7.500 3 older rows are left out." in text


def test_properties_that_are_not_known_are_left_out(tmp_path):
    run = read_run(tmp_path)
    assert list_machine(run) == {} == list_versions(run)
    assert "Processes that have trained" not in make_report(run)
    session = {"env_steps": 0, "machine": {"cores": 2, "processor": None, "memory": None}, "versions": {"torch": "2"}}
    run.sessions, run.record = [session], {**run.record, "seed": 0}
    assert list_machine(run) == {"cores": "2"}
    assert list_versions(run) == {"torch": "2", "seed": "0"}
    assert "started processor commit from env step to - - - 0 0" in read_text(make_report(run))


def test_settings_of_other_runtimes_are_left_out(tmp_path):
    base = {"env_type": "GYM", "env_name": "A-v1", "n_envs": 2, "n_workers": 4, "env_args": {}}
    run = read_run(tmp_path)
    run.settings = {"base_config": {**base, "runtime": "RAY"}, "cluster_config": {"actors": 3}}
    shown = {"env_type": "GYM", "env_name": "A-v1", "n_envs": 2, "runtime": "RAY", "actors": 3}
    assert list_environment(run) == shown
    run.settings = {"base_config": {**base, "runtime": "workers"}}
    assert list_environment(run)["n_workers"] == 4


def test_commands_quote_names_with_spaces(tmp_path):
    folder = tmp_path / "a b"
    folder.mkdir()
    assert "-n 'a b' --resume" in read_text(make_report(read_run(folder)))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (19.5, "19.5 s"), (59.94, "59.9 s"), (90, "1 min 30 s"), (12_000, "3 h 20 min"), (None, "-")],
)
def test_durations_and_counts(seconds, text):
    assert format_duration(seconds) == text
    assert format_count(14_321) == "14,321" and format_count(None) == "-" and format_count(0) == "0"


def test_values_are_escaped_in_pages_and_missing_values_are_errors(tmp_path, monkeypatch):
    (tmp_path / "a.html").write_text("{{ a }} {{ 0.12345|number }} {{ 1e4|count }} {{ 61|duration }}")
    (tmp_path / "a.md").write_text("{{ a }}")
    (tmp_path / "b.md").write_text("{{ a|code|safe }}")
    monkeypatch.setattr(page, "TEMPLATES", tmp_path)
    page.make_environment.cache_clear()
    try:
        assert page.render("a.html", a="<b>") == "&lt;b&gt; 0.123 10,000 1 min 1 s"
        assert page.render("a.md", a="<b> | [c](d)\n\\\x1b[0m") == r"&lt;b> \| \[c](d) \\\[0m"
        assert page.render("b.md", a="a `<b>`\n```") == "a '&lt;b>' '''"
        assert page.render("a.html", a="\x1b[31mhttps://me:secret@host").startswith("[31mhttps://***@host ")
        with pytest.raises(jinja2.UndefinedError):
            page.render("a.html")
    finally:
        page.make_environment.cache_clear()


def test_long_values_are_cut_and_values_have_the_form_of_yaml():
    assert [format_setting(value) for value in (None, [1, "x"], True)] == ["null", "[1, x]", "true"]
    assert format_setting("y" * 1000) == "y" * MAX_VALUE + " ..."
    address = "https://me:" + "secret" * 50 + "@host"  # whose password is longer than what is shown
    assert format_setting(address) == "https://***@host"
    assert format_setting("x" * 290 + address) == "x" * 290 + "https://**" + " ..."


def test_training_evaluation_and_goal_are_drawn(tmp_path, monkeypatch):
    metrics = MetricsWriter(tmp_path)
    metrics.write(10, {"rollout/return": 1.0, "time/seconds": 2})
    metrics.write(15, {"eval/return": 3.0, "eval/return_low": 2.5, "eval/return_high": 3.5})
    metrics.write(20, {"rollout/return": 4.0})
    pictures, draw = [], report_files.draw_picture
    monkeypatch.setattr(report_files, "draw_picture", lambda charts: pictures.append(draw(charts)) or pictures[-1])
    assert draw_curve(tmp_path, 5.0, pytest.fail) == tmp_path / CURVE_FILE
    texts = [shape.text for shape in pictures[0].shapes if isinstance(shape, Text)]
    assert texts == [f"{tmp_path.name}: return (goal 5)", "training", "evaluation"]
    with Image.open(tmp_path / CURVE_FILE) as image:
        assert image.format == "PNG" and image.width > 900 and len(image.getcolors(1 << 20)) > 50


def test_each_role_has_its_own_lines(tmp_path):
    metrics = MetricsWriter(tmp_path)
    metrics.write(10, {"rollout/return/left": 1.0, "rollout/return/right": 2.0})
    metrics.write(15, {"eval/return/right": 3.0, "eval/return_low/right": 2.5, "eval/return_high/right": 3.5})
    lines = draw_returns(read_run(tmp_path).metrics, None).legend
    assert [line.label for line in lines] == ["training, left", "training, right", "evaluation, right"]
    assert [line.low is not None for line in lines] == [False, False, True]


def test_a_run_without_a_return_has_an_empty_curve(tmp_path):
    MetricsWriter(tmp_path).write(10, {"time/seconds": 1.0})
    assert draw_curve(tmp_path, None, pytest.fail) == tmp_path / CURVE_FILE


@pytest.mark.parametrize("table", [None, "", "env_steps,rollout/return\n1,many\n"])
def test_a_picture_that_cannot_be_drawn_is_one_logged_line(tmp_path, table):
    if table is not None:
        (tmp_path / "metrics.csv").write_text(table)
    logged = []
    assert draw_curve(tmp_path, 5.0, logged.append) is None
    assert len(logged) == 1 and logged[0].startswith("no curve.png: ")
