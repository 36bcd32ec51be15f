"""The gallery: the page of runs that reached their goal, other runs, and what was not trained; and its command."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from algorithm.errors import UserError
from algorithm.parts.lock import FolderLock
from algorithm.tools.reports import gallery as module
from algorithm.tools.reports.gallery import make_entry, read_gallery, select_environments, write_gallery
from algorithm.tools.reports.run_data import read_run
from tests.faults.runs import wait_until
from tests.task_folder import write_task
from tests.tools.reports.run_folders import RESULT, write_run

ROOT = Path(__file__).resolve().parents[3]
DOCS_PAGE = ROOT / "docs/gallery/index.md"
PAGE = Path("page/index.md")
CONFIG = """
default:
  base_config: {env_type: PROBE, suggest_settings: false, env_name: truncation,
    max_step: STEPS, log_every: 50, n_envs: 4}
  acer_config: {learning_rate: 0.01, learning_starts: 50}
  goal: GOAL
"""
PROBES = {  # name: env steps, goal
    "reached": ("4000", "{return: 10}"),  # every episode has ten rewards of 1
    "missed": ("500", "{return: 11}"),
    "free": ("1000", "null"),
    "long": ("null", "{return: 11}"),
}


def write_missed(folder, environment, **changes):
    """Write the run of another environment that did not reach its goal of 475."""
    write_run(folder)
    (folder / "environment.txt").write_text(f"{environment}\n")
    below = {"agent": {**RESULT["evaluation"]["agent"], "mean": 474.9}}
    record = {**RESULT, "environment": environment, "reached": False, "evaluation": below, **changes}
    (folder / "result.json").write_text(json.dumps(record))
    return folder


def write_page(folder, runs, left_out=None):
    """Write the page of runs into a folder and return its path."""
    entries = [make_entry(folder, read_run(run), 90) for run in runs]
    return write_gallery(folder, {entry.environment: entry for entry in entries}, left_out or {})


def test_a_page_shows_the_runs_that_reached_their_goal_and_lists_the_others(tmp_path):
    runs = [write_run(tmp_path / "a"), write_missed(tmp_path / "b", "mine/task_b")]
    left_out = {"unity/roller": "its config.yaml has no goal", "mine/other": "a | b", "mine/task_b": "on the page"}
    page = write_page(tmp_path / "page", runs, left_out)
    text = page.read_text(encoding="utf-8")
    assert "on the page" not in text and "- machine" not in text and "## mine/task_b" not in text
    for line in (
        "Machine: processor Fast &lt;CPU>, cores 2, memory 16.0 GiB.",
        "| [gym/cartpole](#gymcartpole) | ACER | 475.0 | 6,000 | 12.5 s |",
        "## gym/cartpole",
        "    python main.py gym/cartpole",
        "- env steps: 6,000 (at most 6,000)",
        "| mine/task_b | ACER | 475.0 | 6,000 | 476.2 | 1 min 30 s |",
        "| unity/roller | its config.yaml has no goal |",
        r"| mine/other | a \| b |",
        '| [<img src="gym_cartpole.gif" width="200" alt="gym/cartpole"><br>gym/cartpole](#gymcartpole) |',
    ):
        assert line in text.splitlines()
    links = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert links == ["gym_cartpole.svg", "gym_cartpole.gif"]
    assert {path.name for path in page.parent.iterdir()} == {page.name, "gallery.json", *links}
    (chart,) = ElementTree.parse(page.parent / "gym_cartpole.svg").getroot().iterfind("{*}svg")
    assert "".join(chart.itertext()).strip()
    assert (page.parent / "gym_cartpole.gif").read_bytes() == b"video"  # the best episode: there is no median


def test_the_grid_has_rows_of_three_pictures_the_video_or_the_curve(tmp_path):
    entry = make_entry(tmp_path, read_run(write_run(tmp_path / "a")), 90)
    videos = {"e/a": "a.gif", "e/b": None, "e/c": "c.gif", "e/d": "d.gif"}
    entries = {name: replace(entry, environment=name, video=video) for name, video in videos.items()}
    text = write_gallery(tmp_path, entries, {}).read_text(encoding="utf-8")
    rows = [re.findall('src="(.*?)"', line) for line in text.splitlines() if "<img" in line]
    assert rows == [["a.gif", "gym_cartpole.svg", "c.gif"], ["d.gif"]]


def test_the_video_of_the_median_episode_is_shown_and_a_run_without_videos_and_rows_has_no_pictures(tmp_path):
    folder = write_run(tmp_path / "a")
    (folder / "videos/6000-median.gif").write_bytes(b"median")
    page = write_page(tmp_path / "page", [folder])
    assert (page.parent / "gym_cartpole.gif").read_bytes() == b"median"
    assert "not reached" not in page.read_text(encoding="utf-8")
    shutil.rmtree(folder / "videos")
    (folder / "metrics.csv").unlink()
    page = write_page(tmp_path / "other", [folder])
    assert "![" not in page.read_text(encoding="utf-8")
    assert {path.name for path in page.parent.iterdir()} == {page.name, "gallery.json"}


@pytest.mark.parametrize(("mean", "is_shown"), [(475.0, True), (474.9, False)])
def test_a_run_whose_evaluation_alone_is_at_the_goal_is_shown(mean, is_shown, tmp_path):
    evaluation = {"agent": {**RESULT["evaluation"]["agent"], "mean": mean}}
    page = write_page(tmp_path / "page", [write_missed(tmp_path / "a", "mine/task_b", evaluation=evaluation)])
    assert ("## mine/task_b" in page.read_text(encoding="utf-8")) == is_shown
    without = write_missed(tmp_path / "b", "mine/task_b", evaluation=None)
    assert "## Goal not reached" in write_page(tmp_path / "page", [without]).read_text(encoding="utf-8")


def test_a_page_is_read_and_written_without_its_runs(tmp_path):
    page = write_page(tmp_path / "page", [write_run(tmp_path / "a")], {"mine/other": "no goal"})
    before = page.read_bytes()
    shutil.rmtree(tmp_path / "a")
    entries, left_out = read_gallery(page.parent)
    write_gallery(page.parent, entries, left_out)
    assert page.read_bytes() == before
    other = replace(entries["gym/cartpole"], environment="mine/task_b", machine="processor Slow")
    write_gallery(page.parent, {**entries, "mine/task_b": other}, left_out)
    text = page.read_text(encoding="utf-8")
    assert "## gym/cartpole" in text and "![Return in gym/cartpole by env steps](gym_cartpole.svg)" in text
    assert "Machine: processor Slow.\n" in text and "- machine: processor Slow\n" in text  # there are two
    assert read_gallery(tmp_path / "nowhere") == ({}, {})


def test_a_damaged_record_is_kept(tmp_path):
    (tmp_path / "gallery.json").write_text("{}")
    with pytest.raises(UserError, match=r"gallery.json is damaged .*: repair it, or remove it for a new page"):
        read_gallery(tmp_path)
    assert (tmp_path / "gallery.json").read_text() == "{}"


def test_the_page_of_the_documentation_is_that_of_its_record(tmp_path):
    page = write_gallery(tmp_path, *read_gallery(DOCS_PAGE.parent))
    text = DOCS_PAGE.read_text(encoding="utf-8")
    assert page.read_text(encoding="utf-8") == text
    links = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert {path.name for path in DOCS_PAGE.parent.iterdir()} == {"index.md", "gallery.json", *links}


@pytest.fixture
def tasks():
    """Create a folder of the group mine for each probe."""
    for name, (steps, goal) in PROBES.items():
        write_task(CONFIG.replace("STEPS", steps).replace("GOAL", goal), f"mine/{name}")


@pytest.fixture
def call(command):
    """A function that calls the command with the folder page; it returns what is printed, and the text of the page."""
    return lambda line: (command(f"gallery page {line}").out, PAGE.read_text(encoding="utf-8"))


@pytest.mark.usefixtures("tasks")
def test_the_folders_of_a_group_are_trained_and_shown(call):
    for name in ("long", "missed"):
        shutil.rmtree(f"envs/mine/{name}")
    shown, text = call("mine --seconds 60 --json")
    assert json.loads(shown) == {"status": 0, "page": "page/index.md", "reached": ["mine/reached"]}
    assert "## mine/reached" in text and "![Return in mine/reached by env steps](mine_reached.svg)" in text
    assert "| mine/free | its config.yaml has no goal |" in text.partition("## Not trained")[2]
    run = Path("runs/mine/reached/gallery")
    assert (run / "checkpoints").is_dir()
    before = (run / "result.json").read_bytes()
    assert "mine/reached: goal reached" in call("mine/reached")[0]  # as it is, without training
    assert (run / "result.json").read_bytes() == before
    shutil.rmtree("runs")  # as on another machine, which has the page only
    assert call("mine")[1] == text and not Path("runs").exists()


@pytest.mark.usefixtures("tasks")
def test_why_a_folder_has_no_run_is_on_the_page(monkeypatch, call):
    wrong = CONFIG.replace("truncation", "nowhere").replace("STEPS", "9").replace("GOAL", "{return: 1}")
    write_task(wrong, "mine/wrong")
    assert re.search(r"\| mine/wrong \| .*nowhere.* \|", call("mine/wrong --seconds 30")[1])
    monkeypatch.setattr(module, "STOP_SECONDS", -1)
    assert "| mine/missed | its process did not end within 1 s |" in call("mine/missed --seconds 2")[1]
    monkeypatch.setattr(module, "_run_command", lambda arguments, seconds: {"status": 0})
    _, text = call("mine/missed --seconds 5")
    assert "| mine/missed | it has learned nothing within 5 s |" in text
    assert "No environment folder has reached its goal yet.\n" in text and "| time of training |" not in text


@pytest.fixture
def trained(tasks, monkeypatch) -> list[str]:
    """Train nothing; return the folders that would have been trained."""
    found = []
    monkeypatch.setattr(module, "train_within", lambda *arguments: found.append(arguments[0]) or "not now")
    return found


@pytest.mark.parametrize("status", [None, 1, 143])
def test_a_run_that_was_interrupted_is_not_shown_but_trained_again(status, trained, call):
    write_missed(Path("runs/mine/missed/gallery"), "mine/missed", status=status)
    assert "Goal not reached" not in call("mine/missed")[1] and trained == ["mine/missed"]
    write_missed(Path("runs/mine/reached/gallery"), "mine/reached")
    assert "| mine/reached | ACER |" in call("mine/reached")[1] and trained == ["mine/missed"]


def test_a_folder_on_the_page_is_trained_again_only_on_request(trained, call):
    write_missed(Path("runs/mine/missed/gallery"), "mine/missed")
    _, before = call("mine/missed")
    shutil.rmtree("runs")
    write_missed(Path("runs/mine/missed/gallery"), "mine/missed", status=143, env_steps=7000)  # it was interrupted
    assert call("mine/missed")[1] == before and trained == []
    assert call("mine/missed --force")[1] == before and trained == ["mine/missed"]


@pytest.mark.usefixtures("tasks")
def test_a_run_whose_gallery_was_killed_ends_at_its_limit_and_is_then_shown(call):
    line = [sys.executable, "-m", "algorithm", "gallery", "page", "mine/long", "--seconds", "1"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(line, env={**os.environ, "PYTHONPATH": str(ROOT)}, **quiet)
    run = Path("runs/mine/long/gallery")
    lock = FolderLock(run, "")
    try:
        wait_until(lock.is_held_elsewhere)
        process.kill()
        process.wait()
        wait_until(lambda: not lock.is_held_elsewhere())
    finally:
        process.kill()
        if lock.is_held_elsewhere():
            os.kill(int(lock.path.read_text()), signal.SIGKILL)
    record = json.loads((run / "result.json").read_text())
    assert record["status"] == 0 and record["stopped"]
    assert "| mine/long | ACER |" in call("mine/long")[1]
    assert json.loads((run / "result.json").read_text()) == record


@pytest.mark.usefixtures("tasks")
def test_folders_are_selected_by_name_and_group():
    assert select_environments("mine/free") == ["mine/free"]
    assert select_environments("mine") == [f"mine/{name}" for name in sorted(PROBES)]
    assert {"gym/cartpole", "mine/free"} < set(select_environments(None))
    with pytest.raises(UserError, match="min"):
        select_environments("min")
    assert select_environments(str(Path("envs/mine/free").resolve())) == [str(Path("envs/mine/free").resolve())]


def test_seconds_are_for_single_runs(tasks, command):
    assert "--seconds is for single runs" in command.fail("mine/free --population 2 --seconds 5")
