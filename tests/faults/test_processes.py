"""Training runs that are stopped or killed, whose disk is full, or whose output has no reader."""

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import pytest

from algorithm.cli import main
from algorithm.cli.output import Output
from tests.faults.runs import (
    ARGUMENTS,
    BROKEN,
    Run,
    assert_playable,
    saved_steps,
    start_training,
    wait_until,
    write_task,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks processes and sends them signals")
resource = pytest.importorskip("resource")
ROOT = Path(__file__).resolve().parents[2]


def test_a_run_resumes_after_kill_9_at_any_time():
    write_task(save_every=20, max_step=100_000)
    rng = random.Random(0)
    for attempt in range(6):
        run = Run(*ARGUMENTS, *(["--resume"] if attempt else []))
        run.wait_for("steps/s")
        time.sleep(rng.random() * 0.2)
        run.signal(signal.SIGKILL, group=True)
        assert run.status() == -signal.SIGKILL
        assert run.err.read_text() == ""
        assert_playable()
    killed_at = max(saved_steps())
    assert main.main([*ARGUMENTS, "--resume", "--max_step", str(killed_at + 200)]) == 0
    assert max(saved_steps()) >= killed_at + 200


@pytest.mark.parametrize(
    ("number", "status", "word"),
    [(signal.SIGHUP, 129, "Hung up"), (signal.SIGINT, 130, "Interrupted"), (signal.SIGTERM, 143, "Terminated")],
)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_signal_ends_a_run_after_saving(number, status, word, kind):
    run = start_training(n_envs=1, max_step=None, save_every=None, env_args={"vectorization_mode": kind})
    assert run.stop(number, group=number != signal.SIGTERM) == status  # a terminal signals the group
    resume = "python main.py own/task -n a --resume"
    assert run.err.read_text() == f"{word}. Checkpoint saved in runs/own/task/a; resume with: {resume}\n"
    assert not run.has_processes()
    assert len(saved_steps()) == 1
    assert_playable()


def test_a_run_whose_environments_take_turns_is_interrupted_and_resumed():
    run = start_training(
        n_envs=3, env_groups=2, max_step=None, save_every=None, env_args={"vectorization_mode": "async"}
    )
    assert run.stop(signal.SIGINT, group=True) == 130 and not run.has_processes()
    (saved,) = saved_steps()
    assert main.main([*ARGUMENTS, "--resume", "--max_step", str(saved + 200)]) == 0
    assert max(saved_steps()) >= saved + 200
    assert_playable()


def test_a_closed_terminal_ends_a_run_after_saving():
    write_task(n_envs=1, max_step=None, save_every=None, env_args={"vectorization_mode": "async"})
    run, terminal = Run.in_terminal(*ARGUMENTS, "--logger_in_file")
    output = b""
    while b"steps" not in output:
        output += os.read(terminal, 1000)
    os.close(terminal)
    assert run.status() == 129
    log = Path("runs/own/task/a/log.txt").read_text().splitlines()
    assert log[-1].startswith("Hung up. Checkpoint saved in runs/own/task/a; ")
    assert not run.has_processes()
    assert_playable()


def test_a_run_in_training_is_not_resumed_or_replaced_but_can_be_read(capsys):
    write_task(max_step=None, save_every=100)
    run = Run(*ARGUMENTS)
    run.wait_for("300 steps")
    for arguments in (["--resume"], ["--force"], ["--force", "--repeat", "2"]):
        name = "a-1" if "--repeat" in arguments else "a"
        if name == "a-1":
            changing = shutil.ignore_patterns(".lock", "checkpoints", "tensorboard", "*.new")
            shutil.copytree("runs/own/task/a", "runs/own/task/a-1", ignore=changing)
            os.link("runs/own/task/a/.lock", "runs/own/task/a-1/.lock")  # as if it were also in training
        assert main.main([*ARGUMENTS, *arguments]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"run runs/own/task/{name} is in training in process {run.pid}: ")
        assert err.count("\n") == 1
    assert main.main([*ARGUMENTS, "--run", "--max_iter", "1"]) == 0
    assert main.main(["list"]) == 0
    assert "unfinished" in capsys.readouterr().out
    assert main.main(["export", *ARGUMENTS]) == 0
    assert run.stop(signal.SIGKILL) == -signal.SIGKILL
    assert run.err.read_text() == ""
    assert main.main([*ARGUMENTS, "--resume", "--max_step", str(max(saved_steps()) + 50)]) == 0
    assert main.main([*ARGUMENTS, "--force", "--max_step", "100"]) == 0


def test_several_signals_are_harmless():
    run = start_training(max_step=None, save_every=None)
    for _ in range(5):
        run.signal(signal.SIGINT)
        time.sleep(0.002)
    assert run.status() == 130
    assert "Traceback" not in run.err.read_text()
    assert_playable()


def test_a_second_signal_ends_a_hanging_step():
    write_task(BROKEN.format(fault="if Broken.steps == 100: print('stuck', flush=True), time.sleep(1000)"))
    run = Run(*ARGUMENTS)
    run.wait_for("stuck")
    run.signal(signal.SIGTERM)
    time.sleep(2)  # the system delivers two signals as one if the process does not run in between
    assert run.stop(signal.SIGTERM) == 143
    assert_playable()


def test_a_signal_before_the_first_step_leaves_no_run():
    write_task("import time\ndef make():\n    print('starting', flush=True)\n    time.sleep(1000)\n")
    run = Run(*ARGUMENTS)
    run.wait_for("starting")
    assert run.stop(signal.SIGTERM) == 143
    assert run.err.read_text() == "Terminated. Nothing was saved: the run had no checkpoint yet.\n"
    assert not Path("runs").exists()


def test_a_signal_while_torch_is_imported_saves_nothing():
    write_task()
    # A forked process has imported torch already, so a new one imports this module, which never finishes.
    Path("torch.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(1000)\n")
    command = [sys.executable, str(ROOT / "main.py"), *ARGUMENTS]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    with subprocess.Popen(command, env=environment, stdout=PIPE, stderr=PIPE, text=True) as run:
        assert run.stdout.readline() == "loading PyTorch for own/task ...\n"
        assert run.stdout.readline() == "importing\n"
        run.send_signal(signal.SIGTERM)
        assert run.communicate() == ("", "Terminated. Nothing was saved.\n")
    assert run.returncode == 143
    assert not Path("runs").exists()


def test_a_signal_from_the_first_line_on_saves_nothing(monkeypatch, capsys):
    write_task()

    def terminate(output: Output, text: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Output, "log_plain", terminate)
    assert main.main(ARGUMENTS) == 143
    assert capsys.readouterr().err == "Terminated. Nothing was saved.\n"
    assert not Path("runs").exists()


# Checkpoints of about 60 kB fill this disk within a few hundred steps.
ON_A_SMALL_DISK = """
mkdir -p runs && mount -t tmpfs -o size=400k none runs || exit 77
"$PYTHON" "$MAIN" own/task -n a > out.txt 2> err.txt
echo $? > status.txt
cp -r runs kept
"""


def test_a_full_disk_is_an_error_and_the_last_complete_checkpoint_remains():
    if shutil.which("unshare") is None:
        pytest.skip("unshare, which mounts a tmpfs, is missing")
    write_task(save_every=100, keep_checkpoints=50)
    where = {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable, "MAIN": str(ROOT / "main.py")}
    command = ["unshare", "-rm", "sh", "-c", ON_A_SMALL_DISK]
    finished = subprocess.run(command, env={**os.environ, **where}, capture_output=True, text=True, timeout=100)
    if not Path("status.txt").exists():
        pytest.skip(f"a tmpfs cannot be mounted here: {finished.stderr.strip()}")
    assert_disk_error(int(Path("status.txt").read_text()), Path("err.txt").read_text())
    shutil.rmtree("runs")
    Path("kept").rename("runs")
    assert_playable()


def test_a_file_size_limit_is_an_error_and_the_last_complete_checkpoint_remains():
    run = start_training(save_every=100, max_step=None)
    wait_until(saved_steps)
    resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (1000, 1000))
    status = run.status()
    assert status == 1
    assert run.err.read_text().count("\n") == 1
    assert_playable()


def assert_disk_error(status: int, err: str) -> None:
    assert status == 1, err
    assert err.count("\n") == 1, err
    assert "space" in err.lower() or "disk" in err.lower()


PRINTING = BROKEN.format(fault="print('a step', flush=True)")


def assert_complete() -> None:
    """Check that the run has finished, and that log.txt and metrics.csv are complete."""
    folder = Path("runs/own/task/a")
    log = (folder / "log.txt").read_text().splitlines()
    assert log[0].startswith("training ") and log[-1].startswith("curves:")
    with (folder / "metrics.csv").open(newline="") as file:
        assert max(int(row["env_steps"]) for row in csv.DictReader(file)) >= 600
    assert json.loads((folder / "result.json").read_text())["status"] == 0
    assert_playable()


def test_a_run_continues_if_its_reader_exits():
    write_task(PRINTING, n_envs=1, env_args={"vectorization_mode": "async"})  # the worker process prints
    command = [sys.executable, str(ROOT / "main.py"), *ARGUMENTS, "--logger_in_file"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(100) == 0
    assert not Path("runs/own/task/a/faults.log").exists()
    assert_complete()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_run_continues_if_standard_output_is_a_full_disk(arguments):
    write_task(PRINTING)
    with Path("/dev/full").open("w") as full:
        assert Run(*ARGUMENTS, "--logger_in_file", *arguments, out=full.fileno(), err=full.fileno()).status() == 0
    assert_complete()
