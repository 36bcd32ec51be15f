"""Training runs whose output has no reader, or that write to a full disk."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.runs import ARGUMENTS, BROKEN, Run, assert_playable, write_task

pytestmark = pytest.mark.skipif(os.name == "nt", reason="forks processes")

ROOT = Path(__file__).resolve().parents[2]
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
    write_task(PRINTING)
    command = [sys.executable, str(ROOT / "main.py"), *ARGUMENTS, "--logger_in_file"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(100) == 0
    assert_complete()


def test_worker_processes_continue_if_their_reader_exits():
    write_task(PRINTING, n_envs=1, env_args={"vectorization_mode": "async"})
    reading, writing = os.pipe()
    run = Run(*ARGUMENTS, "--logger_in_file", out=writing)
    os.close(writing)
    os.read(reading, 10)
    os.close(reading)
    assert run.status() == 0
    assert not Path("runs/own/task/a/faults.log").exists()
    assert_complete()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_run_continues_if_standard_output_is_a_full_disk(arguments):
    write_task(PRINTING)
    with Path("/dev/full").open("w") as full:
        assert Run(*ARGUMENTS, "--logger_in_file", *arguments, out=full.fileno(), err=full.fileno()).status() == 0
    assert_complete()


def test_json_is_written_if_standard_error_has_no_reader():
    write_task()
    reading, writing = os.pipe()
    run = Run(*ARGUMENTS, "--logger_in_file", "--json", err=writing)
    for end in (writing, reading):
        os.close(end)
    assert run.status() == 0
    assert json.loads(run.out.read_text())["status"] == 0
    assert_complete()
