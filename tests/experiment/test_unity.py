"""Runs in scenes of the scripted player, from the command line; and settings that are Unity's."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
import yaml

import main
from algorithm.adapters.unity import player as supervised
from algorithm.adapters.unity.scene import Gaussian, Lesson, MultiRange, Uniform
from algorithm.experiment.errors import UserError
from algorithm.experiment.run_folder import RunFolder
from algorithm.experiment.settings import resolve
from tests.unity_player.launcher import ROOT, make_player

QUICK = {"collect_steps": 8, "trace_length": 12, "batch_size": 4, "replay_start": 32, "replay_ratio": 2}


def write(tmp_path, task, *flags, copies=1, steps=400, **sections):
    base = {
        "env_type": "UNITY",
        "n_envs": copies,
        "max_step": steps,
        "log_every": 100,
        "unity_args": {"build_path": str(make_player(tmp_path, task, *flags)), "timeout_wait": 20},
    }
    folder = tmp_path / "envs" / "unity" / "task"
    folder.mkdir(parents=True, exist_ok=True)
    tree = {"base_config": base, "replay_config": {"capacity": 2000}, "acer_config": QUICK, **sections}
    (folder / "config.yaml").write_text(yaml.safe_dump({"default": tree}))


def run(*arguments):
    assert main.main(["unity/task", "-n", "a", *arguments]) == 0
    return RunFolder.find("unity/task", "a")


def test_two_roles_learn_at_once_each_by_its_own_settings(tmp_path, capsys):
    own = {
        "Walker": {"acer_config": {"collect_steps": 4, "trace_length": 4}},
        "Goalie": {"acer_config": {"gamma": 0.9}},
    }
    write(tmp_path, "two_behaviors", copies=2, steps=900, ma_config=own)
    folder = run()
    said = " ".join(capsys.readouterr().out.split())
    assert "ma_config.Goalie: there is no such role so far; there is Walker" in said
    checkpoint = folder.latest()
    assert checkpoint.roles == ["Walker", "Watcher-team1"]
    assert folder.settings().of("Walker").agent.collect_steps == 4
    assert folder.settings().of("Watcher-team1").agent.collect_steps == 8
    about = json.loads((checkpoint.folder / "counters.json").read_text())
    assert about["counters"]["updates"] > 20
    header = (folder.path / "metrics.csv").read_text().splitlines()[0]
    assert "Walker" in header and "Watcher-team1" in header

    run("--resume", "--max_step", "1300")
    assert folder.latest().counters.env_steps >= 1300
    run("--run", "--disable_sample")
    assert "of Watcher-team1: return" in " ".join(capsys.readouterr().out.split())


def test_lessons_go_on_where_a_run_is_resumed(tmp_path, capsys):
    criteria = {"measure": "reward", "behavior": "Hybrid", "min_lesson_length": 12, "threshold": -1000}
    lessons = [{"name": str(k), "value": k, "completion_criteria": criteria} for k in range(2)]
    lessons.append({"name": "last", "value": 9})
    write(tmp_path, "hybrid", steps=400, reset_config={"height": {"curriculum": lessons}})
    folder = run()
    assert "height: lesson 1 begins" in " ".join(capsys.readouterr().out.split())

    def at():
        return json.loads((folder.latest().folder / "counters.json").read_text())["monitor"]["lessons"]["height"]

    before = at()
    assert before["lesson"] == 1
    assert 0 < len(before["returns"]) < 12
    run("--resume", "--max_step", "600")
    assert at()["lesson"] == 2
    table = list(csv.DictReader((folder.path / "metrics.csv").open()))
    assert [table[0]["scene/lesson/height"], table[-1]["scene/lesson/height"]] == ["0.0", "2.0"]


def test_lessons_by_progress_go_by_env_steps_through_a_resume(tmp_path):
    criteria = {"measure": "progress", "behavior": "Hybrid", "min_lesson_length": 1}
    lessons = [
        {"name": str(share), "value": share, "completion_criteria": {**criteria, "threshold": share}}
        for share in (0.25, 0.5)
    ]
    lessons.append({"name": "last", "value": 9})
    # Six agents, episodes of 20 decisions: all of them end at every 120th env step.
    write(tmp_path, "hybrid", steps=600, reset_config={"height": {"curriculum": lessons}})
    folder = run("--max_iter", "2")

    def at():
        about = json.loads((folder.latest().folder / "counters.json").read_text())
        return about["counters"]["env_steps"], about["monitor"]["lessons"]["height"]["lesson"]

    env_steps, lesson = at()
    assert 240 <= env_steps < 300 and lesson == 1
    run("--resume", "--set", "base_config.max_iter=null")
    assert at()[0] >= 600
    rows = list(csv.DictReader((folder.path / "metrics.csv").open()))
    lessons_at = {int(row["env_steps"]) // 100: row["scene/lesson/height"] for row in rows}
    assert lessons_at == {1: "0.0", 2: "1.0", 3: "1.0", 4: "2.0", 5: "2.0", 6: "2.0"}, lessons_at


def test_a_role_whose_sensor_had_another_shape_is_told_apart(tmp_path, capsys):
    write(tmp_path, "hybrid", steps=60)
    folder = run()
    roles = json.loads((folder.path / "roles.json").read_text())
    roles["Hybrid"]["obs_specs"]["Buffer"]["own"] = None  # as it was recorded before sensors kept theirs
    (folder.path / "roles.json").write_text(json.dumps(roles))
    assert main.main(["unity/task", "-n", "a", "--resume", "--max_step", "120"]) == 2
    before, _, now = capsys.readouterr().err.partition("; the environment has ")
    assert "Buffer [6] float32" in before and "Buffer [6] of [3, 2] float32" in now


def test_crashes_while_it_learns_cost_nothing_that_was_learned(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(supervised, "FIRST_PAUSE", 0.0)
    write(tmp_path, "balance_ball", "--fault", "crash", "--at", "30", copies=2, steps=1200)
    folder = run("--set", "base_config.max_env_restarts=null")
    said = " ".join(capsys.readouterr().out.split())
    assert "its episodes are cut, and it is started again" in said
    assert folder.latest().counters.env_steps >= 1200


def test_a_run_trains_and_plays_in_the_editor(tmp_path, capsys):
    write(tmp_path, "balance_ball", steps=240)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.unity_player", "balance_ball", "--mlagents-port", str(port)]
    for arguments in (["--set", "goal.return=1"], ["--run", "--max_iter", "1"]):
        editor: list = []
        play = threading.Timer(0.5, lambda pressed=editor: pressed.append(subprocess.Popen(command, cwd=ROOT)))
        play.start()
        run("--editor", "--port", str(port), *arguments)
        assert editor[0].wait(20) == 0
    assert f"press Play in Unity: it is waited for on port {port}" in capsys.readouterr().out


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_is_heard_while_play_is_waited_for(tmp_path):
    write(tmp_path, "balance_ball", steps=100_000)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(ROOT / "main.py"), "unity/task", "-n", "a", "--editor", "--port", str(port)]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    press = [sys.executable, "-m", "tests.unity_player", "balance_ball", "--mlagents-port", str(port)]
    subprocess.run([*press, "--fault", "quit", "--at", "30"], cwd=ROOT, timeout=60, check=True)
    said = ""
    while "its episodes are cut" not in said:
        said += trainer.stdout.readline()
    trainer.send_signal(signal.SIGINT)
    rest, _ = trainer.communicate(timeout=30)
    assert trainer.returncode == 130, rest
    assert "Interrupted. Checkpoint saved in runs/unity/task/a" in rest
    assert RunFolder.find("unity/task", "a").latest().counters.env_steps > 100


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (9.81, 9.81),
        ({"sampler_type": "uniform", "sampler_parameters": {"min_value": 0.5, "max_value": 2}}, Uniform(0.5, 2)),
        ({"sampler_type": "gaussian", "sampler_parameters": {"mean": 1, "st_dev": 0.3}}, Gaussian(1, 0.3)),
        (
            {"sampler_type": "multirangeuniform", "sampler_parameters": {"intervals": [[0, 1], [2, 3]]}},
            MultiRange(((0, 1), (2, 3))),
        ),
        (
            {
                "curriculum": [
                    {
                        "name": "a",
                        "value": 1,
                        "completion_criteria": {
                            "measure": "reward",
                            "behavior": "B",
                            "min_lesson_length": 5,
                            "threshold": 0.5,
                        },
                    },
                    {"name": "b", "value": 2},
                ]
            },
            (Lesson("a", 1.0, "B", 5, 0.5), Lesson("b", 2.0)),
        ),
    ],
    ids=["number", "uniform", "gaussian", "multirange", "curriculum"],
)
def test_parameters_are_read_in_the_grammar_of_ml_agents(given, expected):
    assert resolve([("test", {"reset_config": {"gravity": given}})]).reset == {"gravity": expected}


def by_progress(threshold, **base):
    criteria = {"measure": "progress", "behavior": "B", "min_lesson_length": 1, "threshold": threshold}
    lessons = [{"name": "a", "value": 1, "completion_criteria": criteria}, {"name": "b", "value": 2}]
    return {"base_config": base, "reset_config": {"g": {"curriculum": lessons}}}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"reset_config": {"g": "heavy"}}, r"reset_config.g is 'heavy'; it must be a number"),
        (
            {"reset_config": {"g": {"sampler_type": "unifrom", "sampler_parameters": {}}}},
            r"reset_config.g.sampler_type is 'unifrom'; there is uniform, gaussian",
        ),
        (
            {"reset_config": {"g": {"sampler_type": "uniform", "sampler_parameters": {"min_value": 1}}}},
            r"reset_config.g.sampler_parameters.max_value .* required",
        ),
        ({"reset_config": {"g": {"curriculum": [{"name": "a"}]}}}, r"reset_config.g.curriculum\[0\] .* a lesson has"),
        (by_progress(0.5, max_step=None), r"reset_config.g: lessons by progress go by .*max_step, which is not set"),
        (by_progress(50), r"curriculum\[0\].completion_criteria.threshold is 50.0; progress is from 0 to 1"),
        ({"ma_config": {"A": {"acer_config": {"gama": 1}}}}, r"ma_config.A: acer_config.gama is no setting; did you"),
        ({"ma_config": {"A": {"acer_config": {"gamma": 2.0}}}}, r"ma_config.A: acer_config.gamma is 2.0; it must be"),
        ({"ma_config": {"A": {"base_config": {"n_envs": 2}}}}, r"ma_config.A: base_config.n_envs is the same for all"),
        ({"base_config": {"unity_args": {"width": 0}}}, r"test: base_config.unity_args.width is 0; input should be"),
        ({"base_config": {"unity_args": {"witdh": 1}}}, r"unity_args.witdh is no setting; did you mean .*width"),
        ({"base_config": {"unity_args": {"build_path": {"amiga": "x"}}}}, r"base_config.unity_args.build_path"),
    ],
)
def test_what_cannot_be_is_one_line_with_its_place(tree, message):
    with pytest.raises(UserError, match=message):
        resolve([("test", tree)])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("base_config.max_step_each_iter=5", "base_config.max_step_each_iter is not for env_type UNITY: Max Step"),
        ("base_config.env_args.size=5", "base_config.env_args is not for env_type UNITY: reset_config"),
        ("base_config.unity_args.build_path={amiga: x}", "build_path"),
        ("base_config.unity_args.build_path=nothing", "there is no player at nothing"),
    ],
)
def test_what_unity_decides_is_refused(setting, message, tmp_path, capsys):
    write(tmp_path, "balance_ball")
    assert main.main(["unity/task", "--set", setting]) in (2, 3)
    assert message in capsys.readouterr().err


def test_there_is_one_editor(tmp_path, capsys):
    write(tmp_path, "balance_ball", copies=2)
    assert main.main(["unity/task", "--editor"]) == 2
    assert "there is one Unity editor" in capsys.readouterr().err
