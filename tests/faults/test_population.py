"""A population on Ray, whose processes are killed or hang, and which is stopped and resumed."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from algorithm.cli import main
from tests.faults.namespaces import MAIN, NamespaceRun, start_run  # noqa: F401
from tests.population.members import CONFIG
from tests.task_folder import NN

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs network namespaces"),
    pytest.mark.usefixtures("start_run"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
WORKER = "ray::Member"  # a process of Ray
MEMBER = "spawn_main"  # the process in which it trains a member
# A member whose folder contains this file waits, so that a test has the time to kill it.
WAIT = "import time\nfrom pathlib import Path\nwhile Path({pause!r}).exists():\n    time.sleep(0.05)\n"


NEW = ["mine/task", "-n", "there", "--population", "4", "--ray", "local", "--set", "cluster_config.token_auth=false"]
LIMITS = ["population_config.processes=2", "cluster_config.timeout=20", "population_config.timeout=120"]


@pytest.fixture
def pause() -> Path:
    """Create the folder mine/task, whose members wait while the file `pause` exists."""
    folder, pause = Path("envs/mine/task"), Path("pause").absolute()
    folder.mkdir(parents=True)
    tree = yaml.safe_load(CONFIG)
    tree["default"]["base_config"]["save_every"] = 20
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    (folder / "nn.py").write_text(f"{WAIT.format(pause=str(pause))}{NN}")
    return pause


def read_lineage(name: str) -> list[dict]:
    return [json.loads(line) for line in Path(f"runs/mine/task/{name}/lineage.jsonl").read_text().splitlines()]


def read_state(name: str) -> dict[str, bytes]:
    """Return weights, moments, replay and environments in the last checkpoints of the members."""
    runs = [Path(f"runs/mine/task/{name}-{member}/checkpoints") for member in range(1, 5)]
    newest = [max(run.glob("[0-9]*")) for run in runs]
    return {
        f"{number}/{path.relative_to(folder)}": path.read_bytes()
        for number, folder in enumerate(newest)
        for path in folder.rglob("*")
        if path.suffix in (".pt", ".npz")
    }


def wait_for_workers(run: NamespaceRun) -> list[int]:
    """Wait until two processes of Ray have a member each, which waits. Return the ids of the processes of Ray."""

    def find_workers() -> list[int]:
        return sorted({read_parent(member) for member in run.find(MEMBER)}.intersection(run.find(WORKER)))

    run.wait_until(lambda: len(find_workers()) == 2)
    return find_workers()


def read_parent(process: int) -> int:
    """Return the id of the parent of a process; 0 if it has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{process}/stat").read_text().split()[3])
    return 0


def test_a_population_whose_processes_are_killed_or_hang_and_which_is_stopped_is_resumed(start_run, pause):  # noqa: F811
    pause.touch()
    run = start_run(*MAIN, *NEW, *LIMITS)
    killed, hung = wait_for_workers(run)
    os.kill(killed, signal.SIGKILL)
    os.kill(hung, signal.SIGSTOP)
    pause.unlink()
    run.wait_for("interval 1")
    lines = run.out.read_text().splitlines()
    assert sum("it continues from its last checkpoint" in line for line in lines) == 2
    assert sum("has not replied for 20 s (cluster_config.timeout)" in line for line in lines) == 1
    os.kill(run.find("main.py")[0], signal.SIGTERM)
    assert run.wait() == 143, run.out.read_text()
    assert "Terminated. Checkpoints saved" in run.out.read_text()
    resumed = start_run(*MAIN, "mine/task", "-n", "there", "--resume")
    resumed.wait_for("interval 2")
    resumed.kill()  # with all processes of the namespace
    assert main.main("mine/task -n there --resume --set base_config.runtime=LOCAL".split()) == 0
    arguments = "mine/task -n here --population 4 --max_step 180 --set population_config.processes=2"
    assert main.main(arguments.split()) == 0
    assert read_lineage("there") == read_lineage("here") and len(read_lineage("there")) == 12
    assert read_state("there") == read_state("here")  # as in processes of this machine
