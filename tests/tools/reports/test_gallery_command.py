"""The command gallery: it trains folders in processes of their own, and shows their runs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from algorithm.cli import main
from algorithm.errors import UserError
from algorithm.parts.lock import FolderLock
from algorithm.tools.reports import gallery
from algorithm.tools.reports.gallery import select_environments
from tests.task_folder import write_task
from tests.tools.reports.run_folders import RESULT, write_run

ROOT = Path(__file__).resolve().parents[3]
CONFIG = """
default:
  base_config: {env_type: PROBE, env_name: ENV, max_step: STEPS, log_every: 50, n_envs: 4}
  acer_config: {learning_rate: 0.01, learning_starts: 50}
  goal: GOAL
"""
PROBES = {  # name: environment, env steps, goal
    "reached": ("truncation", "4000", "{return: 10}"),  # every episode has ten rewards of 1
    "missed": ("truncation", "500", "{return: 11}"),
    "free": ("chain", "1000", "null"),
    "wrong": ("nowhere", "1000", "{return: 1}"),
}


@pytest.fixture(autouse=True)
def tasks():
    """Create a folder of the group mine for each probe."""
    for name, (env, steps, goal) in PROBES.items():
        write_task(CONFIG.replace("ENV", env).replace("STEPS", steps).replace("GOAL", goal), f"mine/{name}")


def test_the_folders_of_a_group_are_trained_and_shown(capsys):
    assert main.main("gallery page mine --seconds 60 --json".split()) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == {"status": 0, "page": "page/index.md", "reached": ["mine/reached"]}
    text = Path("page/index.md").read_text(encoding="utf-8")
    assert "## mine/reached" in text and "![Return in mine/reached by env steps](mine_reached.svg)" in text
    missed, left_out = text.partition("## Goal not reached")[2].split("## Not trained")
    assert "| mine/missed | ACER |" in missed
    assert "| mine/free | its config.yaml has no goal |" in left_out
    assert "| mine/wrong | " in left_out and "nowhere" in left_out
    assert (Path("runs/mine/missed/gallery/checkpoints")).is_dir()

    before = Path("runs/mine/missed/gallery/result.json").read_bytes()
    assert main.main("gallery page mine/missed".split()) == 0  # as it is, without training
    assert "mine/missed: goal not reached" in capsys.readouterr().out
    assert Path("runs/mine/missed/gallery/result.json").read_bytes() == before
    assert Path("page/index.md").read_text(encoding="utf-8") == text

    shutil.rmtree("runs")  # as on another machine, which has the page only
    assert main.main("gallery page mine/free".split()) == 0
    assert main.main("gallery page mine/missed".split()) == 0
    assert Path("page/index.md").read_text(encoding="utf-8") == text and not Path("runs").exists()
    assert main.main("gallery page mine/missed --seconds 60 --force --json".split()) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["reached"] == ["mine/reached"]
    assert Path("runs/mine/missed/gallery/result.json").is_file()
    assert "## mine/reached" in Path("page/index.md").read_text(encoding="utf-8")


def write_finished_run(status, name="missed", env_steps=6000):
    """Write the run of a folder, which ended with an exit status; None for one that was killed."""
    folder = write_run(Path("runs/mine", name, "gallery"))
    (folder / "environment.txt").write_text(f"mine/{name}\n")
    record = {**RESULT, "environment": f"mine/{name}", "reached": False, "status": status, "env_steps": env_steps}
    (folder / "result.json").write_text(json.dumps(record))


@pytest.mark.parametrize("status", [None, 1, 129, 130, 143])
def test_a_run_that_was_interrupted_is_not_shown_but_trained_again(status, monkeypatch, capsys):
    write_finished_run(status)
    trained = []
    monkeypatch.setattr(gallery, "train_within", lambda *arguments: trained.append(arguments[0]) or "not now")
    assert main.main("gallery page mine/missed".split()) == 0
    assert trained == ["mine/missed"] and "Goal not reached" not in Path("page/index.md").read_text(encoding="utf-8")
    write_finished_run(0, "reached")
    assert main.main("gallery page mine/reached".split()) == 0
    assert trained == ["mine/missed"] and "| mine/reached | ACER |" in Path("page/index.md").read_text(encoding="utf-8")


def test_a_folder_on_the_page_stays_as_it_is_if_its_new_run_was_interrupted(capsys):
    write_finished_run(0)
    assert main.main("gallery page mine/missed".split()) == 0
    before = Path("page/index.md").read_text(encoding="utf-8")
    shutil.rmtree("runs")
    write_finished_run(143, env_steps=7000)
    assert main.main("gallery page mine/missed".split()) == 0
    assert Path("page/index.md").read_text(encoding="utf-8") == before


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_run_whose_gallery_was_killed_ends_at_its_limit_and_is_then_shown(capsys):
    write_task(
        CONFIG.replace("ENV", "truncation").replace("STEPS", "null").replace("GOAL", "{return: 11}"), "mine/long"
    )
    command = [sys.executable, "-m", "algorithm", "gallery", "page", "mine/long", "--seconds", "1"]
    process = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
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
    assert main.main("gallery page mine/long".split()) == 0
    assert "| mine/long | ACER |" in Path("page/index.md").read_text(encoding="utf-8")
    assert json.loads((run / "result.json").read_text()) == record


def test_folders_are_selected_by_name_and_group():
    assert select_environments("mine/free") == ["mine/free"]
    assert select_environments("mine") == [f"mine/{name}" for name in sorted(PROBES)]
    assert {"gym/cartpole", "mine/free"} < set(select_environments(None))
    with pytest.raises(UserError, match="min"):
        select_environments("min")
    assert select_environments(str(Path("envs/mine/free").resolve())) == [str(Path("envs/mine/free").resolve())]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("gallery page mine --seconds 0", "--seconds: it is 0; it must be at least 1"),
        ("mine/free --run --seconds 5", "--seconds goes with training and --resume, not with --run"),
        ("mine/free --population 2 --seconds 5", "--seconds is for single runs"),
        ("gallery page mine -c sac", "unknown option -c"),
    ],
)
def test_a_command_that_is_wrong_is_one_line(line, message, capsys):
    assert main.main(line.split()) == 2
    assert message in capsys.readouterr().err
