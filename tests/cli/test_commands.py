"""The files and the output of each command, for people and for scripts."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from algorithm import api
from algorithm.checkpointing.checkpoint import Manifest
from algorithm.cli import display
from algorithm.parts.run_folder import RunFolder
from algorithm.runs import playing, results
from algorithm.training.monitor import Monitor
from tests.command_line import train_once
from tests.task_folder import NN, TRUNCATION, write_task

ROOT = Path(__file__).resolve().parents[2]
RUNS, RUN = Path("runs/mine/task"), Path("runs/mine/task/a")
TWENTY_EPISODES = dict.fromkeys(("mean", "low", "high", "length"), 10.0)
TWENTY_EPISODES |= {"std": 0.0, "episodes": 20, "returns": [10.0] * 20}
NO_LINKS = pytest.mark.skipif(os.name == "nt", reason="links need a privilege")


@pytest.fixture(autouse=True)
def task():
    """Create the folder mine/task: episodes of ten steps with return 10 in three lanes."""
    return write_task(TRUNCATION)


def write_env(task: Path, code: str, **base) -> None:
    """Replace the environment of the folder mine/task by an env.py with this code."""
    settings = ", ".join(f"{name}: {value}" for name, value in base.items())
    (task / "config.yaml").write_text(
        f"default: {{base_config: {{env_name: env.py, suggest_settings: false, {settings}}}}}\n"
    )
    (task / "env.py").write_text(f"import gymnasium, itertools, numpy\n{code}")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of runs after the training of mine/task/a."""
    return train_once(tmp_path_factory, "mine/task -n a", lambda: write_task(TRUNCATION)) / "runs"


@pytest.fixture
def run(trained):
    """Copy the run mine/task/a."""
    shutil.copytree(trained, "runs")


def make_empty_runs(*names: str) -> list[Path]:
    """Create folders of runs without results."""
    for name in names:
        (RUNS / name).mkdir(parents=True)
        (RUNS / name / "config.yaml").write_text("")
    return [RUNS / name for name in names]


def result(name: str) -> dict:
    """Return result.json of a run."""
    return json.loads((RUNS / name / "result.json").read_text())


def list_runs() -> list[str]:
    return [path.name for path in RUNS.iterdir()]


def test_a_run_writes_and_prints_its_result(command):
    printed = command.json("mine/task -n a -c goal")
    assert printed == {"run": "runs/mine/task/a", **result("a")}
    seconds = printed.pop("seconds")
    assert 0 < seconds < 60 and printed.pop("cpu_seconds") > 0
    assert printed.pop("updates") > 0
    assert printed.pop("versions").keys() >= {"python", "torch", "numpy", "gymnasium"}
    printed.pop("commit", None)  # only in a checkout of the project
    assert printed == {
        "run": "runs/mine/task/a",
        "environment": "mine/task",
        "algorithm": "ACER",
        "variant": "goal",
        "seed": 0,
        "confirmed_by": None,
        "reached": False,  # there are not yet 20 episodes
        "stopped": False,
        "status": 0,
        "env_steps": 90,
        "episodes": 6,
        "returns": {"agent": 10.0},
        "evaluation": printed["evaluation"],
    }
    printed = command.json("mine/task -n b -c goal --max_step 400")
    assert (printed["reached"], printed["confirmed_by"]) == (True, "evaluation")
    assert printed["evaluation"] == {"agent": TWENTY_EPISODES}
    assert command.json("mine/task -n c")["reached"] is None


def test_result_last_line_and_last_picture_have_the_same_seconds(monkeypatch, command):
    shown = []
    monkeypatch.setattr(display.LineDisplay, "on_progress", lambda self, progress: shown.append(progress))
    out = command("mine/task -n a").out
    seconds, cpu_seconds = result("a")["seconds"], result("a")["cpu_seconds"]
    rows = (RUN / "metrics.csv").read_text().splitlines()
    assert 0 < float(rows[-1].split(",")[rows[0].split(",").index("time/cpu_seconds")]) <= cpu_seconds
    assert shown[-1].has_ended and shown[-1].counters.seconds == pytest.approx(seconds, abs=1e-3)
    assert sum(shown[-1].throughput.shares.values()) == pytest.approx(1) and shown[-1].throughput.shares["starting"] > 0
    assert f"done after 90 env steps, 6 episodes, {seconds:.1f} s" in out
    command("mine/task -n a --resume --max_step 150")
    assert result("a")["seconds"] > seconds and result("a")["cpu_seconds"] > cpu_seconds


def test_cpu_seconds_are_unknown_after_a_checkpoint_that_lacks_them(command, run):
    folder = max((RUN / "checkpoints").glob("0*"))  # the newest
    content = json.loads((folder / "counters.json").read_text())
    del content["counters"]["cpu_seconds"]
    manifest = Manifest.read(folder)
    with manifest.open_file("counters.json") as file:
        file.write(json.dumps(content).encode())
    manifest.write()
    command("mine/task -n a --resume --max_step 150")
    assert result("a")["cpu_seconds"] is None


def test_output_of_native_code_is_not_mixed_with_the_json(task):
    write_env(task, "import os\ndef make():\n    os.write(1, b'loud')\n    return gymnasium.make('CartPole-v1')\n")
    process = subprocess.run(
        [sys.executable, ROOT / "main.py", "mine/task", "-n", "a", "--json", "--max-step", "30"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(process.stdout)["env_steps"] >= 30
    assert "loud" in process.stderr


@pytest.mark.parametrize(
    ("raised", "status", "line"),
    [
        (KeyboardInterrupt(), 130, "Interrupted. Checkpoint saved in runs/mine/task/a; resume with: python main.py "),
        (OSError("the motor is hot"), 1, "OSError: the motor is hot"),
    ],
)
def test_a_run_that_is_interrupted_or_fails_writes_its_result(raised, status, line, monkeypatch, command):
    def end(monitor, actor):
        tick(monitor, actor)
        raise raised

    tick = Monitor.tick
    monkeypatch.setattr(Monitor, "tick", end)
    printed = command.json("mine/task -n a", status)
    assert printed.pop("error").startswith(line)
    assert printed == {"run": "runs/mine/task/a", **result("a")}
    assert (printed["env_steps"], printed["returns"]) == (3, {"agent": None})  # no episode has ended


def test_repeated_runs_have_consecutive_seeds(command):
    printed = command.json("mine/task -n a --seed 5 --repeat 3 --set base_config.env_name=choice")
    assert [Path(one["run"]).name for one in printed["runs"]] == ["a-1", "a-2", "a-3"]
    assert [RunFolder.find("mine/task", f"a-{k}").load_settings().base.seed for k in (1, 2, 3)] == [5, 6, 7]
    alone = command.json("mine/task -n b --seed 6 --set base_config.env_name=choice")
    for key in ("env_steps", "updates", "episodes", "returns"):
        assert alone[key] == printed["runs"][1][key]
    returns = [one["returns"]["agent"] for one in printed["runs"]]
    assert len(set(returns)) > 1
    spread = printed["spread"]["return"]
    assert spread["mean"] == pytest.approx(sum(returns) / 3)
    assert spread["std"] == pytest.approx((sum((x - spread["mean"]) ** 2 for x in returns) / 2) ** 0.5)
    assert (spread["min"], spread["max"], spread["runs"]) == (min(returns), max(returns), 3)


def test_repeated_runs_print_their_statistics(command):
    lines = command("mine/task -n a --repeat 2 -c goal --max_step 400").out.splitlines()
    assert "2 runs: a-1, a-2" in lines
    assert "goal reached in 2 of 2" in lines
    assert "evaluation: 10.00 +- 0.00 (10.00 to 10.00)" in lines


def test_repeated_runs_stop_at_the_first_failure_and_report_the_others(monkeypatch, command):
    whole = api.train_in_folder
    monkeypatch.setattr(
        api, "train_in_folder", lambda settings, *rest: whole(settings, *rest) if settings.base.seed == 0 else 1 / 0
    )
    assert len(command.json("mine/task -n a --repeat 3", 1)["runs"]) == 1
    assert not (RUNS / "a-2").exists()


def test_repeated_runs_that_train_at_the_same_time_have_the_results_of_one_after_another(command):
    alone = command.json("mine/task -n a --repeat 2 --set base_config.env_name=choice")["runs"]
    printed = command.json("mine/task -n b --repeat 2 --jobs 2 --set base_config.env_name=choice")
    keys = ("env_steps", "updates", "episodes", "returns")
    assert [[one[key] for key in keys] for one in printed["runs"]] == [[one[key] for key in keys] for one in alone]
    assert [one["run"] for one in printed["runs"]] == ["runs/mine/task/b-1", "runs/mine/task/b-2"]
    assert printed["spread"]["return"]["runs"] == 2 and "run folder: " in read_log("b-2")


def test_a_failure_does_not_end_the_runs_that_train_at_the_same_time(command, task):
    code = """import contextlib, os
class Failing(gymnasium.Wrapper):
    def step(self, action):
        with contextlib.suppress(FileNotFoundError):
            os.unlink("fail")
            1 / 0
        return self.env.step(action)
def make():
    return Failing(gymnasium.make("CartPole-v1"))
"""
    write_env(task, code, max_env_restarts=0, n_envs=1, max_step=60)
    command("mine/task -n a-3")
    Path("fail").touch()
    printed = command.json("mine/task -n a --repeat 3 --jobs 2 --force", 1)
    names = {Path(one["run"]).name for one in printed["runs"]}
    assert len(names) == 2 and "ZeroDivisionError" in printed["error"]
    assert {path.name for path in RUNS.iterdir() if path.is_dir()} == {
        *names,
        "a-3",
    }  # a failed one is the old one again


def read_log(name: str) -> str:
    """Return what a run has written to its log file."""
    return (RUNS / name / "log.txt").read_text()


def test_runs_are_listed_with_their_results_newest_last(command):
    for name in ("b", "a"):
        command(f"mine/task -n {name} -c goal")
    shutil.copytree("envs/mine/task", "envs/mine/other")
    command("mine/other -n c")
    killed = {**result("a"), "env_steps": 0, "status": None}  # as it was written when the run began
    (RUN / "result.json").write_text(json.dumps(killed))
    rows = [line for line in command("list").out.splitlines() if "mine/" in line]
    names = [next(word for word in row.split() if "/" in word) for row in rows]
    assert names == ["mine/task/b", "mine/task/a", "mine/other/c"]
    for row, state in zip(rows, ["goal not reached", "unfinished", "done"], strict=True):
        assert state in row and " 90 " in row and " 6 " in row and " 10.00 " in row
    assert ["ACER (goal)" in row for row in rows] == [True, True, False]
    first, second = command.json("list mine/task")["runs"]
    assert first == {"run": "runs/mine/task/b", **result("b")}
    assert (second["run"], second["status"], second["env_steps"]) == ("runs/mine/task/a", None, 90)
    assert second["variant"] == "goal"


def test_a_resumed_run_keeps_its_variant_and_is_unfinished_where_it_is_beyond_its_result(command):
    command("mine/task -n a -c goal")
    old = (RUN / "result.json").read_text()
    command("mine/task -n a --resume --max_step 150")
    assert (result("a")["variant"], result("a")["env_steps"]) == ("goal", 150)
    (RUN / "result.json").write_text(old)
    listed = command.json("list")["runs"][0]
    assert (listed["status"], listed["env_steps"]) == (None, 150)
    (RUN / "result.json").unlink()
    command("mine/task -n a --resume --max_step 200")
    assert (result("a")["variant"], result("a")["env_steps"]) == (None, 201)


def test_a_run_has_its_origin_from_the_start(monkeypatch, command):
    seen = []
    monkeypatch.setattr(api, "train_in_folder", lambda *_, **__: seen.append(result("a")) or 1 / 0)
    command("mine/task -n a -c goal --seed 3", 1)
    (began,) = seen
    assert (began["environment"], began["algorithm"], began["variant"]) == ("mine/task", "ACER", "goal")
    assert (began["seed"], began["status"], began["env_steps"]) == (3, None, 0)
    assert not RUN.exists()


def test_runs_are_listed_without_importing_torch():
    (folder,) = make_empty_runs("a")
    (folder / "metrics.csv").write_text("env_steps,time/seconds,rollout/return\n90,1.5,10\n")
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from algorithm.cli import main; "
    code += "assert main.main(['list']) == 0; "
    code += "print(*{name.partition('.')[0] for name in sys.modules})"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert " 90 " in shown
    loaded = set(shown.splitlines()[-1].split())
    assert "algorithm" in loaded
    assert not loaded & {"torch", "gymnasium", "pydantic", "yaml", "tensorboard", "google"}


@pytest.mark.parametrize(
    ("name", "content", "problem", "env_steps"),
    [
        ("result.json", '{"status": 0, "env_steps": "many"}', "is damaged", 0),
        ("metrics.csv", "env_steps,time/seconds\n10,1\n20\n", "is damaged: 1 of its lines", 10),
    ],
)
def test_damaged_results_are_reported_and_all_runs_are_listed(name, content, problem, env_steps, command):
    """Every kind of damage is in tests/test_records_io.py."""
    _, folder = make_empty_runs("a", "b")
    (folder / name).write_text(content)
    shown = command("list --json")
    listed = {one["run"]: one["env_steps"] for one in json.loads(shown.out)["runs"]}
    assert listed == {"runs/mine/task/a": 0, "runs/mine/task/b": env_steps}
    assert shown.err.count("damaged") == 1 and f"{folder}/{name} {problem}" in shown.err


def test_runs_that_vanish_while_they_are_listed_are_left_out(monkeypatch, command):
    folders = make_empty_runs(*"abc")
    (folders[0] / "config.yaml").unlink()
    (folders[0] / "config.yaml").symlink_to("gone")  # as a folder that vanished after its names were read
    read = results.read_record

    def read_and_remove(folder, log):
        shutil.rmtree(folders[1], ignore_errors=True)
        return read(folder, log)

    monkeypatch.setattr(results, "read_record", read_and_remove)
    assert [run["run"] for run in command.json("list")["runs"]] == ["runs/mine/task/c"]


def test_the_list_ends_quietly_if_its_reader_has_exited():
    make_empty_runs(*map(str, range(300)))
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from algorithm.cli.main import run_process; run_process()"
    for arguments in (["list"], ["list", "--json"]):
        line = [sys.executable, "-c", code, *arguments]
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            process.stdout.close()
            assert b"Traceback" not in process.stderr.read() and process.wait() == 0
        if os.name == "posix":
            shell = ["sh", "-c", '"$0" "$@" >&-', *line]  # closed from the start
            process = subprocess.run(shell, stderr=subprocess.PIPE, check=True)
            assert b"Traceback" not in process.stderr


def test_force_replaces_a_run_and_restores_it_if_the_new_run_does_not_start(command, run):
    old = result("a")
    command("mine/task -n a --force --set base_config.env_name=nothing", 2)
    assert result("a") == old
    command("mine/task -n a --force --max_step 30")
    assert result("a")["env_steps"] == 30 and list_runs() == ["a"]
    command("mine/task -n b --force")  # nothing to replace


def interrupt_replacement(*missing: str) -> None:
    """Leave the folder of a run as a process does that is killed while it replaces the run, in a copy of the old run.

    Args:
        missing: what the new run does not have yet.
    """
    RUN.rename(RUNS / ".a")
    shutil.copytree(RUNS / ".a", RUN)
    (RUN / "new.txt").touch()
    for path in (RUN / name for name in missing):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    ("options", "status", "steps"),
    [("--resume --max_step 120", 0, 120), ("--run", 0, 90), ("--force --set base_config.env_name=nothing", 2, 90)],
)
@pytest.mark.parametrize("missing", [["checkpoints"], ["checkpoints", "metrics.csv", "result.json"], ["."]])
def test_the_old_run_is_put_back_if_force_was_killed_before_a_checkpoint(options, status, steps, missing, command, run):
    interrupt_replacement(*missing)
    shown = command(f"mine/task -n a {options}", status).out
    assert list_runs() == ["a"] and not (RUN / "new.txt").exists() and result("a")["env_steps"] == steps
    line = "runs/mine/task/a is the run from before --force, which was killed before the new run had a checkpoint"
    assert (line in shown) == (status == 0)


@pytest.mark.parametrize("options", ["--resume --max_step 120", "--run"])
def test_the_new_run_stays_if_force_was_killed_after_a_checkpoint(options, command, run):
    interrupt_replacement("result.json")
    assert "before --force" not in command(f"mine/task -n a {options}").out
    assert list_runs() == ["a"] and (RUN / "new.txt").exists()


def test_a_name_is_taken_while_force_was_killed_between_the_two_runs(command, run):
    interrupt_replacement(".")
    assert "run runs/mine/task/a exists already" in command.fail("mine/task -n a")
    assert list_runs() == ["a"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit for the size of files")
def test_force_keeps_the_old_run_if_the_disk_has_no_room_for_a_checkpoint_of_the_new_one(command, run):
    import resource

    old, limits = result("a"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # metrics are smaller, a replay is larger
    try:
        shown = command("mine/task -n a --force --max_step 60", 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"the checkpoint of 60 env steps cannot be written to {RUN.absolute()}/checkpoints" in shown.err
    assert "the new run has no checkpoint: runs/mine/task/a is again the run that it was to replace" in shown.out
    assert result("a") == old and list_runs() == ["a"]
    command("mine/task -n a --run")


@NO_LINKS
def test_force_refuses_a_linked_run_before_it_trains(command, run):
    RUN.rename("elsewhere")
    RUN.symlink_to(Path("elsewhere").absolute())
    shown = command("mine/task -n a --force", 2)
    assert "training" not in shown.out and "runs/mine/task/a is a link to " in shown.err
    assert "--force replaces no folder elsewhere: remove the link, or give another name" in shown.err
    assert result("a")["env_steps"] == 90 and RUN.is_symlink()
    command("mine/task -n a --resume --max_step 120")  # the whole run may be a link


def test_force_does_not_replace_a_folder_that_is_not_a_run(command):
    RUN.mkdir(parents=True)
    assert "is not a run" in command.fail("mine/task -n a --force")
    assert RUN.exists()


@NO_LINKS
@pytest.mark.parametrize("name", ["log.txt", "metrics.csv", "checkpoints", "faults.log", "sessions.jsonl"])
def test_a_run_with_a_link_out_of_its_folder_is_played_but_not_continued(name, command, run):
    path, moved = RUN / name, Path("elsewhere", name).absolute()
    moved.parent.mkdir()
    path.rename(moved) if path.exists() else moved.touch()
    path.symlink_to(moved)
    before = sorted(moved.parent.rglob("*"))
    for options in ("--resume --max_step 120", "--run --logger_in_file"):
        line = command.fail(f"mine/task -n a {options}")
        assert f"runs/mine/task/a/{name} is a link to {moved}, and a run writes only into" in line
    command("mine/task -n a --run")
    assert sorted(moved.parent.rglob("*")) == before


def test_playing_prints_the_evaluation_of_max_iter_episodes_per_lane(command, run):
    printed = command.json("mine/task --run")
    played = {"agent": TWENTY_EPISODES}
    assert printed == {"run": "runs/mine/task/a", "mode": "greedy", "evaluation": played, "status": 0}
    assert command.json("mine/task --run --agents 3 --max_iter 4")["evaluation"]["agent"]["episodes"] == 12
    cut = command.json("mine/task --run --agents 1 --max_iter 1 --set base_config.max_step_each_iter=4")
    one = {"mean": 4.0, "low": None, "high": None, "std": 0.0, "length": 4.0, "episodes": 1, "returns": [4.0]}
    assert cut["evaluation"]["agent"] == one


def test_max_iter_ends_training_when_every_lane_has_ended_this_many_episodes(command):
    printed = command.json("mine/task -n a --max_iter 2 --max_step 9999")
    assert (printed["episodes"], printed["env_steps"]) == (6, 60)
    cut = command.json("mine/task -n b --max_iter 2 --set base_config.max_step_each_iter=4")
    assert (cut["episodes"], cut["env_steps"], cut["returns"]) == (6, 24, {"agent": 4.0})


def test_a_checkpoint_is_played_by_its_env_steps_or_its_folder(monkeypatch, command, run):
    played = []
    load = playing.load_agent
    monkeypatch.setattr(playing, "load_agent", lambda *args: played.append(args[2].folder.name) or load(*args))
    for option in ("--ckpt 30", "--ckpt runs/mine/task/a/checkpoints/000000000060", ""):
        command(f"mine/task --run {option}")
    assert [int(name) for name in played] == [30, 60, 90]


def test_use_env_nn_takes_the_network_of_the_environment_folder(task, command, run):
    own = RUN / "nn.py"
    (task / "nn.py").write_text(NN.replace("8", "4"))
    for mode in ("--run", "--resume"):
        assert "another network" in command.fail(f"mine/task {mode} --use_env_nn --seed 1", 1)
        assert own.read_text() == NN
    changed = NN + "# the same network, with another comment\n"
    (task / "nn.py").write_text(changed)
    command("mine/task --run --use_env_nn")
    assert own.read_text() == NN
    command("mine/task --resume --use_env_nn --max_step 120")
    assert own.read_text() == changed


def test_nn_selects_another_file_for_the_network(task, command):
    (task / "nn.py").rename(task / "other.py")
    (task / "nn.py").write_text("raise ValueError")
    command("mine/task -n a --nn other.py")
    command("mine/task --run")


def test_logger_in_file_writes_the_output_to_the_run_folder(command):
    first, _, shown = command("mine/task -n a --logger_in_file").out.partition("\n")
    assert first == "loading PyTorch for mine/task ..."  # before there is a folder
    log = RUN / "log.txt"
    assert log.read_text() == shown
    shown += command("mine/task -n a --run --logger_in_file").out.partition("\n")[2]
    assert log.read_text() == shown
    assert command.fail("mine/task -n a --run --logger_in_file --ckpt 7") in log.read_text()
    assert "Traceback" in log.read_text()


def test_env_args_reach_the_environment(task, command):
    code = """
def make(limit, names):
    assert names == ['a', 'b']
    return gymnasium.make('CartPole-v1', max_episode_steps=limit)
"""
    write_env(task, code, n_envs=1, max_step=60)
    shown = command(["mine/task", "-n", "a", "--env_args", "limit=3", "names=[a, b]"]).out
    assert result("a")["returns"] == {"agent": 3.0}
    assert "training mine/task with ACER in runs/mine/task/a" in shown
    assert RunFolder.find("mine/task", "a").load_settings().base.env_args == {"limit": 3, "names": ["a", "b"]}
