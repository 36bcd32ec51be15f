"""Runs in scenes of the scripted player, from the command line, and the settings of Unity."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from algorithm.adapters.scenes.ports import find_free_port
from algorithm.cli import main
from algorithm.parts.run_folder import RunFolder
from algorithm.training.metrics import read_table
from tests.adapters.unity.played import press_play
from tests.unity_player.launcher import ROOT, make_player

pytestmark = pytest.mark.usefixtures("prepared_scenes")
QUICK = {"rollout_length": 8, "sequence_length": 12, "batch_size": 4, "learning_starts": 32, "replay_ratio": 2}


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


def read_metrics(folder) -> list[dict[str, str]]:
    return read_table(folder.path / "metrics.csv").rows


def read_output(capsys) -> str:
    """Return what was printed, without line breaks."""
    return " ".join(capsys.readouterr().out.split())


def read_lesson(folder) -> tuple[int, dict]:
    """Return the env steps of the newest checkpoint, and its state of the curriculum of `height`."""
    about = json.loads((folder.find_latest().folder / "counters.json").read_text())
    return about["counters"]["env_steps"], about["states"]["curriculum"]["height"]


def make_lessons(**steps: dict) -> dict:
    """Return a curriculum of `height` in which each lesson but the last ends by the criteria that are given for it."""
    lessons = [
        {"name": name, "value": value, "completion_criteria": {"behavior": "Hybrid", **criteria}}
        for value, (name, criteria) in enumerate(steps.items())
    ]
    return {"height": {"curriculum": [*lessons, {"name": "last", "value": 9}]}}


def test_two_roles_learn_simultaneously_with_their_own_settings(tmp_path, capsys):
    own = {
        "Walker": {"acer_config": {"rollout_length": 4, "sequence_length": 4}},
        "Goalie": {"acer_config": {"gamma": 0.9}},
    }
    write(tmp_path, "two_behaviors", copies=2, steps=500, ma_config=own)
    folder = run()
    output = read_output(capsys)
    assert "ma_config.Goalie: no role has this name so far; the roles are Walker" in output
    checkpoint = folder.find_latest()
    assert checkpoint.roles == ["Walker", "Watcher"]  # agents have the names of behaviors, metrics the names of teams
    assert folder.load_settings().for_role("Walker").agent.rollout_length == 4
    assert folder.load_settings().for_role("Watcher").agent.rollout_length == 8
    about = json.loads((checkpoint.folder / "counters.json").read_text())
    assert about["counters"]["updates"] > 20
    rows = read_metrics(folder)
    assert {"rollout/return/Walker", "rollout/return/Watcher-team1"} <= set(rows[0])
    logged = [row for row in rows if row.get("rollout/return/Walker")]
    events = EventAccumulator(str(folder.path / "tensorboard" / "Walker")).Reload()
    names = {"Losses/Policy Loss", "Losses/Value Loss", "Policy/Entropy", "Policy/Learning Rate"}
    assert names <= set(events.Tags()["scalars"])
    for name, column in (("Cumulative Reward", "return"), ("Episode Length", "length")):
        scalars = {event.step: event.value for event in events.Scalars(f"Environment/{name}")}
        expected = {int(row["env_steps"]): float(row[f"rollout/{column}/Walker"]) for row in logged}
        assert scalars == pytest.approx(expected)

    run("--resume", "--max_step", "700")
    assert folder.find_latest().counters.env_steps >= 700
    run("--run", "--disable_sample", "--max_iter", "5")
    assert "of Watcher-team1: return" in read_output(capsys)


def test_teams_of_a_behavior_share_one_network(tmp_path, capsys, command):
    write(tmp_path, "duel", copies=2, steps=300, goal={"return": 4, "evaluation_episodes": 4})
    folder = run()
    checkpoint = folder.find_latest()
    assert checkpoint.roles == ["Duel"]
    role = folder.read_roles()["Duel"]
    assert (role.lanes, role.teams) == (8, ("Duel",) * 4 + ("Duel-team1",) * 4)
    row = read_metrics(folder)[-1]
    assert {"rollout/return/Duel", "rollout/return/Duel-team1", "train/skipped_updates/Duel"} <= set(row)
    assert not [name for name in row if name.startswith("train/") and name.endswith("team1")]
    # It is a zero-sum game: no goal is reached, and no weights are the best.
    record = json.loads((folder.path / "result.json").read_text())
    assert record["reached"] is False and not (folder.path / "checkpoints" / "best.json").exists()
    means = [record["evaluation"][team]["mean"] for team in ("Duel", "Duel-team1")]
    assert sum(means) == pytest.approx(0) and record["evaluation"]["Duel"]["episodes"] >= 4

    run("--resume", "--max_step", "400")
    assert folder.find_latest().counters.env_steps >= 400
    capsys.readouterr()
    run("--run", "--max_iter", "2")
    output = read_output(capsys)
    assert "of Duel: return" in output and "of Duel-team1: return" in output
    command("export unity/task -n a")
    assert [path.name for path in folder.path.glob("*.onnx")] == ["Duel.onnx"]
    error = command.fail("unity/task -n a --resume --set ma_config.Duel-team1.agent=Duel-team1")
    assert "is not possible with --resume" in error


def test_teams_have_separate_networks_if_the_settings_request_it(tmp_path, capsys):
    own = {"Duel-team1": {"agent": "Duel-team1", "acer_config": {"gamma": 0.5}}}
    write(tmp_path, "duel", steps=60, ma_config=own)
    folder = run()
    assert sorted(folder.find_latest().roles) == ["Duel", "Duel-team1"]
    assert folder.load_settings().for_role("Duel-team1").agent.gamma == 0.5
    assert folder.load_settings().for_role("Duel").agent.gamma == 0.99
    assert "no role has this name" not in capsys.readouterr().out


def test_settings_of_a_team_that_another_agent_plays_are_rejected(tmp_path, command):
    write(tmp_path, "duel", ma_config={"Duel-team1": {"acer_config": {"gamma": 0.5}}})
    error = "ma_config.Duel-team1 has no effect: Duel-team1 is played by the agent Duel;"
    assert error in command.fail("unity/task")


def test_the_newest_weights_are_played_once_another_team_has_appeared(tmp_path, capsys):
    write(tmp_path, "duel", "--late", "20", steps=60, goal={"return": 99, "evaluation_episodes": 4})
    every = ["base_config.evaluate_every=20", "base_config.save_every=20"]
    folder = run("--set", *every)
    output = capsys.readouterr().out
    assert output.index("evaluation of Duel at 20 env steps") < output.index("agents of Duel: 2 -> 4")
    assert "best in evaluation" not in output
    role = folder.read_roles()["Duel"]
    assert (role.lanes, role.teams) == (4, ("Duel",) * 2 + ("Duel-team1",) * 2)
    record = json.loads((folder.path / "result.json").read_text())
    assert set(record["returns"]) == {"Duel", "Duel-team1"}
    run("--resume", "--max_step", "80")
    assert not (folder.path / "checkpoints" / "best.json").exists()
    assert "best.json" not in capsys.readouterr().out
    run("--run", "--max_iter", "1")
    assert "after 80 env steps" in capsys.readouterr().out


def test_a_role_that_appears_first_in_evaluation_is_evaluated(tmp_path, capsys):
    write(tmp_path, "two_behaviors", steps=60, goal={"return": 99, "evaluation_episodes": 4})
    folder = run("--set", "base_config.evaluate_every=30", "base_config.log_every=10")
    assert "evaluation of Watcher-team1 at 30 env steps" in read_output(capsys)
    assert folder.find_latest().lanes("Watcher") == (3, 3)


def test_a_role_that_never_appeared_in_training_cannot_be_played(tmp_path, command):
    write(tmp_path, "two_behaviors", steps=12)
    run()
    error = "role 'Watcher' that had not appeared in runs/unity/task/a after 12 env steps"
    assert error in command.fail("unity/task -n a --run")


def test_more_agents_than_the_limit_end_a_run_that_resumes_with_another_limit(tmp_path, capsys, command):
    write(tmp_path, "arrivals", steps=400)
    line = command.fail("unity/task -n a --set base_config.unity_args.agents=5")
    assert "more than 5 agents of role 'Arrivals'" in line and "base_config.unity_args.agents" in line
    folder = RunFolder.find("unity/task", "a")
    assert folder.find_latest().lanes("Arrivals") == (5, 5)
    run("--resume", "--set", "base_config.unity_args.agents=null")
    assert "base_config.unity_args.agents: 5 -> null" in capsys.readouterr().out
    assert folder.find_latest().lanes("Arrivals") == (7, 5)


def test_evaluation_and_playing_take_more_agents_than_training_had(tmp_path, capsys):
    write(tmp_path, "arrivals", steps=30)
    folder = run("--set", "base_config.evaluate_every=20", "--set", "base_config.log_every=10")
    assert folder.read_roles()["Arrivals"].lanes == 5
    run("--run", "--max_iter", "21")
    # Two agents come after 30 ticks; then each of the seven plays three episodes, of which some have played a fourth.
    assert re.search(r"over 2[1-9] episodes, .* mean length [4-9]\.\d", read_output(capsys))


def test_lessons_continue_in_a_resumed_run(tmp_path, capsys):
    criteria = {"measure": "reward", "min_lesson_length": 12, "threshold": -1000}
    write(tmp_path, "hybrid", steps=400, reset_config=make_lessons(easy=criteria, hard=criteria))
    folder = run()
    assert "height: lesson hard begins" in read_output(capsys)
    before = read_lesson(folder)[1]
    assert before["lesson"] == 1
    assert 0 < len(before["returns"]) < 12
    run("--resume", "--max_step", "600")
    assert read_lesson(folder)[1]["lesson"] == 2
    table = read_metrics(folder)
    assert [table[0]["scene/lesson/height"], table[-1]["scene/lesson/height"]] == ["0.0", "2.0"]


def test_lessons_by_progress_use_env_steps_after_a_resume_too(tmp_path):
    first, second = ({"measure": "progress", "min_lesson_length": 1, "threshold": share} for share in (0.25, 0.5))
    # Six agents, episodes of 20 decisions: all of them end at every 120th env step.
    write(tmp_path, "hybrid", steps=600, reset_config=make_lessons(first=first, second=second))
    folder = run("--max_iter", "2")
    env_steps, state = read_lesson(folder)
    assert 240 <= env_steps < 300 and state["lesson"] == 1
    run("--resume", "--set", "base_config.max_iter=null")
    assert read_lesson(folder)[0] >= 600
    lessons_at = {int(row["env_steps"]) // 100: row["scene/lesson/height"] for row in read_metrics(folder)}
    assert lessons_at == {1: "0.0", 2: "1.0", 3: "1.0", 4: "2.0", 5: "2.0", 6: "2.0"}, lessons_at


def test_a_player_that_cannot_run_twice_is_trained_without_evaluation(tmp_path, capsys, command):
    port = find_free_port()
    write(tmp_path, "hybrid", "--single", str(port), steps=5000, goal={"return": -100})
    folder = run("--set", "base_config.evaluate_every=200")
    output = capsys.readouterr().out
    assert output.count("evaluation at ") == output.count("training continues without evaluation") == 1
    assert "ended with exit code 1; its log ends with: another instance is running; training continues" in output
    assert {path.name for path in folder.path.glob("*.log")} >= {"Player-0.log", "Player-1.log"}
    assert "goal reached and confirmed by training episodes only" in output
    record = json.loads((folder.path / "result.json").read_text())
    assert (record["reached"], record["confirmed_by"], record["evaluation"]) == (True, "training", None)
    # Six agents end every 20 ticks; four rounds reach the goal and four others confirm it.
    assert 840 <= record["env_steps"] <= 1200
    assert "goal reached (training episodes only)" in " ".join(command("list").out.split())


def test_a_role_of_another_shape_is_rejected_and_one_without_a_record_is_built_when_it_appears(tmp_path, command):
    write(tmp_path, "hybrid", steps=60)
    folder = run()
    roles = json.loads((folder.path / "roles.json").read_text())
    roles["Hybrid"]["obs_specs"]["Buffer"]["env_shape"] = None  # as older versions recorded it, without a digest
    del roles["blake2b"]
    (folder.path / "roles.json").write_text(json.dumps(roles))
    before, _, now = command.fail("unity/task -n a --resume --max_step 120").partition("; the environment has ")
    assert "Buffer [6] float32" in before and "Buffer [6] of [3, 2] float32" in now
    (folder.path / "roles.json").write_text("damaged")
    run("--resume", "--max_step", "120")
    assert folder.find_latest().counters.env_steps >= 120 and list(folder.read_roles()) == ["Hybrid"]


def test_a_run_trains_and_plays_in_the_editor(tmp_path, capsys):
    write(tmp_path, "balance_ball", steps=240)
    port = find_free_port()
    for arguments in (["--set", "goal.return=1"], ["--run", "--max_iter", "1"]):
        editor: list = []
        play = threading.Timer(0.5, lambda pressed=editor: pressed.append(press_play(port, "balance_ball")))
        play.start()
        run("--editor", "--port", str(port), *arguments)
        assert editor[0].wait(20) == 0
    assert f"Waiting for Unity on port {port}: press Play in the editor" in capsys.readouterr().out


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_interrupts_a_run_that_waits_for_play(tmp_path):
    write(tmp_path, "balance_ball", steps=100_000)
    port = find_free_port()
    command = [sys.executable, str(ROOT / "main.py"), "unity/task", "-n", "a", "--editor", "--port", str(port)]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        # A player that is started earlier finds no trainer, and ends at once.
        assert any("press Play" in line for line in trainer.stdout)
        press_play(port, "balance_ball", "--fault", "quit", "--at", "30").wait(60)
        assert any("its episodes are truncated" in line for line in trainer.stdout)
        trainer.send_signal(signal.SIGINT)
        rest, _ = trainer.communicate(timeout=60)
    finally:
        trainer.kill()
    assert trainer.returncode == 130, rest
    assert "Interrupted. Checkpoint saved in runs/unity/task/a" in rest
    assert RunFolder.find("unity/task", "a").find_latest().counters.env_steps > 100


def test_the_critic_of_a_group_attends_to_its_members_and_the_file_for_unity_does_not(tmp_path):
    write(tmp_path, "escape", copies=2, steps=600)
    poca = [f"poca_config.{setting}" for setting in ("rollout_length=16", "team_size=3", "team_units=8", "epochs=2")]
    folder = run("--set", "base_config.algorithm=POCA", "base_config.export=end", *poca)
    role = folder.read_roles()["Escape"]
    assert role.lanes == 6 and {"team/Room", "team/present", "team/action"} < set(role.obs_specs)
    onnx = pytest.importorskip("onnx")
    graph = onnx.load(folder.path / "Escape.onnx").graph
    assert [each.name for each in graph.input] == ["obs_0", "action_masks"]
    assert any(float(row["train/baseline_loss/Escape"] or 0) > 0 for row in read_metrics(folder))
