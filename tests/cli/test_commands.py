"""The files and the output of each command, for people and for scripts."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from algorithm.checkpointing.manifest import Manifest
from algorithm.cli import main
from algorithm.parts.run_folder import RunFolder
from algorithm.runs import results
from algorithm.training.monitor import Monitor
from tests.task_folder import NN, write_task

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
default:
  base_config: {env_type: PROBE, env_name: truncation, max_step: 90, log_every: 30, save_every: 30, n_envs: 3}
  acer_config: {rollout_length: 5, sequence_length: 5}
goal:
  goal: {return: 10}
"""
TWENTY_EPISODES = dict.fromkeys(("mean", "low", "high", "length"), 10.0)
TWENTY_EPISODES |= {"std": 0.0, "episodes": 20, "returns": [10.0] * 20}


@pytest.fixture(autouse=True)
def task():
    """Create the folder mine/task: episodes of ten steps with return 10 in three lanes."""
    return write_task(CONFIG)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train the run mine/task/a in a working directory, once."""
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        write_task(CONFIG)
        assert main.main("mine/task -n a".split()) == 0
    return place / "runs"


@pytest.fixture
def run(trained, capsys):
    """Copy the run mine/task/a."""
    shutil.copytree(trained, "runs")
    capsys.readouterr()


def make_empty_runs(*names: str) -> list[Path]:
    """Create folders of runs without results."""
    folders = [Path("runs/mine/task", name) for name in names]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("")
    return folders


def result(name: str) -> dict:
    """Return result.json of a run."""
    return json.loads(Path(f"runs/mine/task/{name}/result.json").read_text())


def call(command: str, capsys) -> dict:
    """Return the JSON that a command prints for a script."""
    status = main.main([*command.split(), "--json"])
    shown = capsys.readouterr().out
    assert shown.count("\n") == 1, shown
    record = json.loads(shown)
    assert record["status"] == status
    return record


def test_a_run_writes_and_prints_its_result(capsys):
    printed = call("mine/task -n a -c goal", capsys)
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
    printed = call("mine/task -n b -c goal --max_step 400", capsys)
    assert (printed["reached"], printed["confirmed_by"]) == (True, "evaluation")
    assert printed["evaluation"] == {"agent": TWENTY_EPISODES}
    assert call("mine/task -n c", capsys)["reached"] is None


def test_result_last_line_and_last_picture_have_the_same_seconds(monkeypatch, capsys):
    from algorithm.cli import display

    shown = []
    monkeypatch.setattr(display.LineDisplay, "on_progress", lambda self, progress: shown.append(progress))
    assert main.main("mine/task -n a".split()) == 0
    seconds, cpu_seconds = result("a")["seconds"], result("a")["cpu_seconds"]
    rows = Path("runs/mine/task/a/metrics.csv").read_text().splitlines()
    assert 0 < float(rows[-1].split(",")[rows[0].split(",").index("time/cpu_seconds")]) <= cpu_seconds
    assert shown[-1].has_ended and shown[-1].counters.seconds == pytest.approx(seconds, abs=1e-3)
    assert sum(shown[-1].throughput.shares.values()) == pytest.approx(1) and shown[-1].throughput.shares["starting"] > 0
    assert f"done after 90 env steps, 6 episodes, {seconds:.1f} s" in capsys.readouterr().out
    assert main.main("mine/task -n a --resume --max_step 150".split()) == 0
    assert result("a")["seconds"] > seconds and result("a")["cpu_seconds"] > cpu_seconds


def test_cpu_seconds_are_unknown_after_a_checkpoint_that_lacks_them(capsys, run):
    folder = max(Path("runs/mine/task/a/checkpoints").glob("0*"))  # the newest
    content = json.loads((folder / "counters.json").read_text())
    del content["counters"]["cpu_seconds"]
    manifest = Manifest.read(folder)
    with manifest.open_file("counters.json") as file:
        file.write(json.dumps(content).encode())
    manifest.write()
    assert main.main("mine/task -n a --resume --max_step 150".split()) == 0
    assert result("a")["cpu_seconds"] is None


def test_text_for_people_is_written_to_standard_error_with_json(capsys, run):
    assert main.main("mine/task --run --json".split()) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("{") and "mean length" in shown.err
    assert main.main("mine/task --run".split()) == 0
    shown = capsys.readouterr()
    assert "mean length" in shown.out and shown.err == ""


def test_output_of_native_code_is_not_mixed_with_the_json(task):
    loud = "import os, gymnasium\ndef make():\n    os.write(1, b'loud')\n    return gymnasium.make('CartPole-v1')\n"
    (task / "env.py").write_text(loud)
    changes = ["--set", "base_config.env_type=GYM", "base_config.env_name=env.py", "base_config.max_step=30"]
    command = [sys.executable, ROOT / "main.py", "mine/task", "-n", "a", "--json", *changes]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(process.stdout)["env_steps"] >= 30
    assert "loud" in process.stderr


def test_failures_are_reported_as_json_too(capsys):
    assert call("mine/tusk", capsys)["error"].startswith("no environment folder 'mine/tusk'")
    assert call("mine/task --nonsense", capsys)["status"] == 2


def test_a_failed_run_writes_its_result(task, capsys):
    (task / "config.yaml").write_text("default: {base_config: {env_name: env.py, n_envs: 1, max_step: 500}}\n")
    (task / "env.py").write_text(
        "import gymnasium, itertools\n"
        "STEPS = itertools.count()\n"  # of all environments: a restarted one raises too
        "class Breaks(gymnasium.Wrapper):\n"
        "    def step(self, action):\n"
        "        if next(STEPS) > 100:\n"
        "            raise OSError('the motor is hot')\n"
        "        return super().step(action)\n"
        "def make():\n"
        "    return Breaks(gymnasium.make('CartPole-v1'))\n"
    )
    printed = call("mine/task -n a", capsys)
    assert "crashed 11 times" in printed.pop("error")
    assert printed == {"run": "runs/mine/task/a", **result("a")}
    assert printed["status"] == 1 and printed["env_steps"] > 50 and printed["episodes"] > 0


def test_an_interrupted_run_writes_its_result(monkeypatch, capsys):
    def interrupt(monitor, actor):
        tick(monitor, actor)
        raise KeyboardInterrupt

    tick = Monitor.tick
    monkeypatch.setattr(Monitor, "tick", interrupt)
    error = call("mine/task -n a", capsys)["error"]
    resume = "python main.py mine/task -n a --resume"
    assert error == f"Interrupted. Checkpoint saved in runs/mine/task/a; resume with: {resume}"
    assert result("a")["status"] == 130
    assert result("a")["returns"] == {"agent": None}  # no episode has ended


def test_repeated_runs_have_consecutive_seeds(capsys):
    printed = call("mine/task -n a --seed 5 --repeat 3 --set base_config.env_name=choice", capsys)
    assert [Path(one["run"]).name for one in printed["runs"]] == ["a-1", "a-2", "a-3"]
    assert [RunFolder.find("mine/task", f"a-{k}").load_settings().base.seed for k in (1, 2, 3)] == [5, 6, 7]
    alone = call("mine/task -n b --seed 6 --set base_config.env_name=choice", capsys)
    for key in ("env_steps", "updates", "episodes", "returns"):
        assert alone[key] == printed["runs"][1][key]
    returns = [one["returns"]["agent"] for one in printed["runs"]]
    assert len(set(returns)) > 1
    spread = printed["spread"]["return"]
    assert spread["mean"] == pytest.approx(sum(returns) / 3)
    assert spread["std"] == pytest.approx((sum((x - spread["mean"]) ** 2 for x in returns) / 2) ** 0.5)
    assert (spread["min"], spread["max"], spread["runs"]) == (min(returns), max(returns), 3)


def test_repeated_runs_print_their_statistics(capsys):
    assert main.main("mine/task -n a --repeat 2 -c goal --max_step 400".split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "2 runs: a-1, a-2" in lines
    assert "goal reached in 2 of 2" in lines
    assert "evaluation: 10.00 +- 0.00 (10.00 to 10.00)" in lines


def test_repeated_runs_stop_at_the_first_failure_and_report_the_others(monkeypatch, capsys):
    from algorithm import api

    whole = api.train_in_folder
    monkeypatch.setattr(
        api, "train_in_folder", lambda settings, *rest: whole(settings, *rest) if settings.base.seed == 0 else 1 / 0
    )
    printed = call("mine/task -n a --repeat 3", capsys)
    assert printed["status"] == 1 and len(printed["runs"]) == 1
    assert not Path("runs/mine/task/a-2").exists()


def test_runs_are_listed_with_their_results_newest_last(capsys):
    for name in ("b", "a"):
        assert main.main(["mine/task", "-n", name, "-c", "goal"]) == 0
    shutil.copytree("envs/mine/task", "envs/mine/other")
    assert main.main("mine/other -n c".split()) == 0
    capsys.readouterr()
    killed = {**result("a"), "env_steps": 0, "status": None}  # as it was written when the run began
    (Path("runs/mine/task/a") / "result.json").write_text(json.dumps(killed))
    assert main.main(["list"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "mine/" in line]
    assert [next(word for word in row.split() if "/" in word) for row in rows] == [
        "mine/task/b",
        "mine/task/a",
        "mine/other/c",
    ]
    for row, state in zip(rows, ["goal not reached", "unfinished", "done"], strict=True):
        assert state in row and " 90 " in row and " 6 " in row and " 10.00 " in row
    assert ["ACER (goal)" in row for row in rows] == [True, True, False]
    printed = call("list mine/task", capsys)
    assert [one["run"] for one in printed["runs"]] == ["runs/mine/task/b", "runs/mine/task/a"]
    assert printed["runs"][0] == {"run": "runs/mine/task/b", **result("b")}
    assert printed["runs"][1]["status"] is None and printed["runs"][1]["env_steps"] == 90
    assert printed["runs"][1]["variant"] == "goal"


def test_a_resumed_run_keeps_its_variant_and_is_unfinished_where_it_is_beyond_its_result(capsys):
    assert main.main("mine/task -n a -c goal".split()) == 0
    old = Path("runs/mine/task/a/result.json").read_text()
    assert main.main("mine/task -n a --resume --max_step 150".split()) == 0
    assert (result("a")["variant"], result("a")["env_steps"]) == ("goal", 150)
    Path("runs/mine/task/a/result.json").write_text(old)
    capsys.readouterr()
    listed = call("list", capsys)["runs"][0]
    assert (listed["status"], listed["env_steps"]) == (None, 150)
    Path("runs/mine/task/a/result.json").unlink()
    assert main.main("mine/task -n a --resume --max_step 200".split()) == 0
    assert (result("a")["variant"], result("a")["env_steps"]) == (None, 201)


def test_a_run_has_its_origin_from_the_start(monkeypatch):
    from algorithm import api

    seen = []
    monkeypatch.setattr(api, "train_in_folder", lambda *_, **__: seen.append(result("a")) or 1 / 0)
    assert main.main("mine/task -n a -c goal --seed 3".split()) == 1
    (began,) = seen
    assert (began["environment"], began["algorithm"], began["variant"]) == ("mine/task", "ACER", "goal")
    assert (began["seed"], began["status"], began["env_steps"]) == (3, None, 0)
    assert not Path("runs/mine/task/a").exists()


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


NAN_RESULT = {"reached": None, "status": 0, "env_steps": 9, "updates": 1, "episodes": 1, "seconds": 1, "returns": {}}
NAN_RESULT |= {"evaluation": None, "note": float("nan")}
# Damaged contents of result.json and metrics.csv; the line that reports it, and the env steps that can be read.
HARM = {
    "no JSON": ("{", None, "result.json is damaged", 0),
    "no UTF-8": (b"\xff{}", None, "result.json is damaged", 0),
    "no record": ("[]", None, "result.json is damaged", 0),
    "not of this form": ('{"status": 0, "env_steps": "many"}', None, "result.json is damaged", 0),
    "not a number": (json.dumps(NAN_RESULT), None, "result.json is damaged", 0),
    "a byte in a row": (None, b"env_steps,time/seconds\n10,1\n2\xff,2\n", "metrics.csv is damaged: 1 of its lines", 10),
    "a byte in the header": (None, b"env_steps,time/s\xffconds\n10,1\n20,2\n", "metrics.csv is damaged: 3 of its", 0),
    "a row too short": (None, b"env_steps,time/seconds\n10,1\n20\n", "metrics.csv is damaged: 1 of its lines", 10),
}


@pytest.mark.parametrize(("record", "metrics", "problem", "env_steps"), HARM.values(), ids=HARM)
def test_damaged_results_are_reported_and_all_runs_are_listed(record, metrics, problem, env_steps, capsys):
    _, folder = make_empty_runs("a", "b")
    for name, content in (("result.json", record), ("metrics.csv", metrics)):
        if content is not None:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main.main(["list", "--json"]) == 0
    shown = capsys.readouterr()
    assert {one["run"]: one["env_steps"] for one in json.loads(shown.out)["runs"]} == {
        "runs/mine/task/a": 0,
        "runs/mine/task/b": env_steps,
    }
    assert shown.err.count("damaged") == 1 and f"runs/mine/task/b/{problem}" in shown.err


def test_runs_that_vanish_while_they_are_listed_are_left_out(monkeypatch, capsys):
    folders = make_empty_runs(*"abc")
    (folders[0] / "config.yaml").unlink()
    (folders[0] / "config.yaml").symlink_to("gone")  # as a folder that vanished after its names were read
    read = results.read_record

    def read_and_remove(folder, log):
        shutil.rmtree(folders[1], ignore_errors=True)
        return read(folder, log)

    monkeypatch.setattr(results, "read_record", read_and_remove)
    assert [run["run"] for run in call("list", capsys)["runs"]] == ["runs/mine/task/c"]


def test_the_list_ends_quietly_if_its_reader_has_exited():
    make_empty_runs(*map(str, range(300)))
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from algorithm.cli.main import run_process; run_process()"
    for arguments in (["list"], ["list", "--json"]):
        command = [sys.executable, "-c", code, *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            process.stdout.close()
            assert b"Traceback" not in process.stderr.read() and process.wait() == 0
        if os.name == "posix":
            shell = ["sh", "-c", '"$0" "$@" >&-', *command]  # closed from the start
            process = subprocess.run(shell, stderr=subprocess.PIPE, check=True)
            assert b"Traceback" not in process.stderr


def test_force_replaces_a_run_and_restores_it_if_the_new_run_does_not_start(capsys, run):
    old = result("a")
    assert main.main("mine/task -n a --force --set base_config.env_name=nothing".split()) == 2
    assert result("a") == old
    assert main.main("mine/task -n a --force --max_step 30".split()) == 0
    assert result("a")["env_steps"] == 30
    assert [path.name for path in Path("runs/mine/task").iterdir()] == ["a"]
    assert main.main("mine/task -n b --force".split()) == 0  # nothing to replace


def interrupt_replacement(*missing: str) -> None:
    """Leave the folder of a run as a process does that is killed while it replaces the run, in a copy of the old run.

    Args:
        missing: what the new run does not have yet.
    """
    folder = Path("runs/mine/task")
    (folder / "a").rename(folder / ".a")
    shutil.copytree(folder / ".a", folder / "a")
    (folder / "a/new.txt").touch()
    for name in missing:
        path = folder / "a" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    "arguments", ["--resume --max_step 120", "--run", "--force --set base_config.env_name=nothing"]
)
@pytest.mark.parametrize("missing", [["checkpoints"], ["checkpoints", "metrics.csv", "result.json"], ["."]])
def test_the_old_run_is_put_back_if_force_was_killed_before_a_checkpoint(arguments, missing, capsys, run):
    interrupt_replacement(*missing)
    assert main.main(["mine/task", "-n", "a", *arguments.split()]) == (2 if "nothing" in arguments else 0)
    assert [path.name for path in Path("runs/mine/task").iterdir()] == ["a"]
    assert not Path("runs/mine/task/a/new.txt").exists() and result("a")["env_steps"] == (
        120 if "120" in arguments else 90
    )
    line = "runs/mine/task/a is the run from before --force, which was killed before the new run had a checkpoint"
    assert (line in capsys.readouterr().out) == ("nothing" not in arguments)


@pytest.mark.parametrize("arguments", ["--resume --max_step 120", "--run"])
def test_the_new_run_stays_if_force_was_killed_after_a_checkpoint(arguments, capsys, run):
    interrupt_replacement("result.json")
    assert main.main(["mine/task", "-n", "a", *arguments.split()]) == 0
    assert [path.name for path in Path("runs/mine/task").iterdir()] == ["a"]
    assert Path("runs/mine/task/a/new.txt").exists()
    assert "before --force" not in capsys.readouterr().out


def test_a_name_is_taken_while_force_was_killed_between_the_two_runs(capsys, run):
    interrupt_replacement(".")
    assert main.main("mine/task -n a".split()) == 2
    assert "run runs/mine/task/a exists already" in capsys.readouterr().err
    assert [path.name for path in Path("runs/mine/task").iterdir()] == ["a"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit for the size of files")
def test_force_keeps_the_old_run_if_the_disk_has_no_room_for_a_checkpoint_of_the_new_one(capsys):
    import resource

    assert main.main("mine/task -n a".split()) == 0
    old, limits = result("a"), resource.getrlimit(resource.RLIMIT_FSIZE)
    capsys.readouterr()
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # metrics are smaller, a replay is larger
    try:
        status = main.main("mine/task -n a --force --max_step 60".split())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    shown = capsys.readouterr()
    folder = Path("runs/mine/task/a").absolute()
    assert status == 1 and f"the checkpoint of 60 env steps cannot be written to {folder}/checkpoints" in shown.err
    assert "the new run has no checkpoint: runs/mine/task/a is again the run that it was to replace" in shown.out
    assert result("a") == old and [path.name for path in Path("runs/mine/task").iterdir()] == ["a"]
    assert main.main("mine/task -n a --run".split()) == 0


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege")
def test_force_refuses_a_linked_run_before_it_trains(capsys, run):
    Path("runs/mine/task/a").rename("elsewhere")
    Path("runs/mine/task/a").symlink_to(Path("elsewhere").absolute())
    capsys.readouterr()
    assert main.main("mine/task -n a --force".split()) == 2
    shown = capsys.readouterr()
    assert "training" not in shown.out and "runs/mine/task/a is a link to " in shown.err
    assert "--force replaces no folder elsewhere: remove the link, or give another name" in shown.err
    assert result("a")["env_steps"] == 90 and Path("runs/mine/task/a").is_symlink()


def test_force_does_not_replace_a_folder_that_is_not_a_run(capsys):
    Path("runs/mine/task/a").mkdir(parents=True)
    assert main.main("mine/task -n a --force".split()) == 2
    assert "is not a run" in capsys.readouterr().err
    assert Path("runs/mine/task/a").exists()


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege")
@pytest.mark.parametrize("name", ["log.txt", "metrics.csv", "checkpoints", "faults.log", "sessions.jsonl"])
def test_a_run_with_a_link_out_of_its_folder_is_played_but_not_continued(name, capsys, run):
    path, moved = Path("runs/mine/task/a", name), Path("elsewhere", name).absolute()
    moved.parent.mkdir()
    path.rename(moved) if path.exists() else moved.touch()
    path.symlink_to(moved)
    before = sorted(moved.parent.rglob("*"))
    capsys.readouterr()
    for arguments in ("--resume --max_step 120", "--run --logger_in_file"):
        assert main.main(["mine/task", "-n", "a", *arguments.split()]) == 2
        assert f"runs/mine/task/a/{name} is a link to {moved}, and a run writes only into" in capsys.readouterr().err
    assert main.main("mine/task -n a --run".split()) == 0
    assert sorted(moved.parent.rglob("*")) == before
    path.unlink()
    moved.rename(path)
    Path("runs/mine/task/a").rename("elsewhere/a")  # the whole run may be a link
    Path("runs/mine/task/a").symlink_to(Path("elsewhere/a").absolute())
    assert main.main("mine/task -n a --resume --max_step 120".split()) == 0


def test_playing_prints_the_evaluation(capsys, run):
    printed = call("mine/task --run", capsys)
    played = {"agent": TWENTY_EPISODES}
    assert printed == {"run": "runs/mine/task/a", "mode": "greedy", "evaluation": played, "status": 0}


def test_with_run_max_iter_is_the_number_of_episodes_per_lane(capsys, run):
    printed = call("mine/task --run --agents 3 --max_iter 4", capsys)
    assert printed["evaluation"]["agent"]["episodes"] == 12
    cut = call("mine/task --run --agents 1 --max_iter 1 --set base_config.max_step_each_iter=4", capsys)
    one = {"mean": 4.0, "low": None, "high": None, "std": 0.0, "length": 4.0, "episodes": 1, "returns": [4.0]}
    assert cut["evaluation"]["agent"] == one


def test_max_iter_ends_training_when_every_lane_has_ended_this_many_episodes(capsys):
    printed = call("mine/task -n a --max_iter 2 --max_step 9999", capsys)
    assert (printed["episodes"], printed["env_steps"]) == (6, 60)
    cut = call("mine/task -n b --max_iter 2 --set base_config.max_step_each_iter=4", capsys)
    assert (cut["episodes"], cut["env_steps"], cut["returns"]) == (6, 24, {"agent": 4.0})


def test_an_iteration_needs_an_ended_episode_of_every_lane(task, capsys):
    (task / "config.yaml").write_text("default: {base_config: {env_name: env.py, n_envs: 2, max_step: 500}}\n")
    (task / "env.py").write_text(
        "import gymnasium, numpy\n"
        "LANES = iter([[1, 1, 1, 30], [6, 6, 6, 6, 6]] + [[1]] * 20)\n"
        "class Lane(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(0, 1, (1,))\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def __init__(self):\n"
        "        self.own = next(LANES) * 99\n"
        "    def reset(self, seed=None, options=None):\n"
        "        self.lengths = self.lengths if seed is None else iter(self.own)\n"
        "        self.left = next(self.lengths)\n"
        "        return numpy.zeros(1, numpy.float32), {}\n"
        "    def step(self, action):\n"
        "        self.left -= 1\n"
        "        return numpy.zeros(1, numpy.float32), 1.0, self.left == 0, False, {}\n"
        "make = Lane\n"
    )
    # The first lane ends three episodes in the first iteration; none of them counts for the second.
    assert call("mine/task -n a --max_iter 2", capsys)["episodes"] == 4 + 5


def test_a_checkpoint_is_played_by_its_env_steps_or_its_folder(monkeypatch, capsys):
    from algorithm.runs import playing

    played = []
    load = playing.load_agent
    monkeypatch.setattr(playing, "load_agent", lambda *args: played.append(args[2].folder.name) or load(*args))
    assert main.main("mine/task -n a".split()) == 0
    for which in ("30", "runs/mine/task/a/checkpoints/000000000060", None):
        assert main.main(["mine/task", "--run", *(["--ckpt", which] if which else [])]) == 0
    assert [int(name) for name in played] == [30, 60, 90]


def test_use_env_nn_takes_the_network_of_the_environment_folder(task, capsys, run):
    own = Path("runs/mine/task/a/nn.py")
    (task / "nn.py").write_text(NN.replace("8", "4"))
    for mode in ("--run", "--resume"):
        assert main.main(["mine/task", mode, "--use_env_nn", "--seed", "1"]) == 1
        assert "another network" in capsys.readouterr().err
        assert own.read_text() == NN
    changed = NN + "# the same network, with another comment\n"
    (task / "nn.py").write_text(changed)
    assert main.main("mine/task --run --use_env_nn".split()) == 0
    assert own.read_text() == NN
    assert main.main("mine/task --resume --use_env_nn --max_step 120".split()) == 0
    assert own.read_text() == changed


def test_nn_selects_another_file_for_the_network(task, capsys):
    (task / "other.py").write_text(NN.replace("8", "4"))
    assert main.main("mine/task -n a --nn other.py".split()) == 0
    assert main.main("mine/task --run".split()) == 0


def test_logger_in_file_writes_the_output_to_the_run_folder(capsys):
    assert main.main("mine/task -n a --logger_in_file".split()) == 0
    first, _, shown = capsys.readouterr().out.partition("\n")
    assert first == "loading PyTorch for mine/task ..."  # before there is a folder
    log = Path("runs/mine/task/a/log.txt")
    assert log.read_text() == shown
    assert main.main("mine/task -n a --run --logger_in_file".split()) == 0
    assert log.read_text() == shown + capsys.readouterr().out.partition("\n")[2]
    assert main.main("mine/task -n a --run --logger_in_file --ckpt 7".split()) == 2
    assert capsys.readouterr().err in log.read_text()
    assert "Traceback" in log.read_text()


def test_env_args_reach_the_environment(task, capsys):
    (task / "config.yaml").write_text("default: {base_config: {env_name: env.py, max_step: 60, n_envs: 1}}\n")
    (task / "env.py").write_text(
        "import gymnasium\n"
        "def make(limit, names):\n"
        "    assert names == ['a', 'b']\n"
        "    return gymnasium.make('CartPole-v1', max_episode_steps=limit)\n"
    )
    assert main.main(["mine/task", "-n", "a", "--env_args", "limit=3", "names=[a, b]"]) == 0
    assert result("a")["returns"] == {"agent": 3.0}
    assert "training mine/task with ACER in runs/mine/task/a" in capsys.readouterr().out
    assert RunFolder.find("mine/task", "a").load_settings().base.env_args == {"limit": 3, "names": ["a", "b"]}


def test_a_skipped_checkpoint_is_reported_outside_of_the_json(capsys):
    call("mine/task -n a -c goal --max_step 400", capsys)
    places = sorted(Path("runs/mine/task/a/checkpoints").glob("0*"))
    shutil.copytree(places[-1], places[-1].with_name("0" * 12))
    weights = places[-1] / "agent" / "weights.pt"
    weights.write_bytes(weights.read_bytes()[:100])
    assert main.main("mine/task -n a --run --json".split()) == 0
    shown = capsys.readouterr()
    assert shown.out.count("\n") == 1 and json.loads(shown.out)["evaluation"]
    assert "weights.pt is damaged" in shown.err
