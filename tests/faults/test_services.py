"""Workers, actors and members of a population on one machine, which are stopped or killed, hang or fail."""

import gc
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from algorithm.cli import main
from tests.faults.runs import (
    ARGUMENTS,
    BROKEN,
    SLOW_CARTPOLE,
    Run,
    assert_playable,
    is_alive,
    list_workers,
    read_last_metric,
    run_folder,
    saved_steps,
    start_training,
    wait_until,
    wait_until_dead,
    write_task,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks processes and sends them signals")
WORKERS = {"runtime": "WORKERS", "n_workers": 2}


def test_a_killed_worker_is_replaced():
    run = start_training(**WORKERS, max_step=None, save_every=None)
    workers = list_workers(run.pid)
    assert len(workers) == 2
    os.kill(workers[1], signal.SIGKILL)
    run.wait_for("another worker with an empty replay replaces it", 60)
    killed_at = int(re.search(r"env step ([\d,]+): worker", run.out.read_text())[1].replace(",", ""))
    wait_until(lambda: len(set(list_workers(run.pid)) - set(workers)) == 1)
    (started,) = set(list_workers(run.pid)) - set(workers)
    wait_until(lambda: "libtorch" in Path(f"/proc/{started}/maps").read_text())  # the new worker imports torch
    assert run.stop(signal.SIGTERM) == 143
    wait_until_dead([*workers, started], 2)
    assert re.search(r"env step [\d,]+: worker 1 crashed with signal SIGKILL: another worker", run.out.read_text())
    (env_steps,) = saved_steps()
    assert env_steps > killed_at
    assert_playable()


def test_neither_workers_nor_their_environments_outlive_the_main_process():
    run = start_training(**WORKERS, max_step=None, save_every=100, env_args={"vectorization_mode": "async"})
    wait_until(lambda: len(saved_steps()) >= 2)
    workers = list_workers(run.pid)
    below = [child for worker in workers for child in list_workers(worker)]
    assert len(below) == 4
    assert run.stop(signal.SIGKILL) == -signal.SIGKILL
    wait_until_dead([*workers, *below], 20)
    assert_playable()
    limit = max(saved_steps()) + 200
    assert main.main([*ARGUMENTS, "--resume", "--max_step", str(limit)]) == 0
    assert max(saved_steps()) >= limit


@pytest.mark.parametrize(
    ("number", "status", "word"), [(signal.SIGINT, 130, "Interrupted"), (signal.SIGTERM, 143, "Terminated")]
)
def test_a_signal_to_all_processes_ends_a_run_after_saving(number, status, word):
    run = start_training(**WORKERS, max_step=None, save_every=None)
    assert run.stop(number, group=True) == status
    resume = "python main.py own/task -n a --resume"
    assert run.err.read_text() == f"{word}. Checkpoint saved in runs/own/task/a; resume with: {resume}\n"
    assert not run.has_processes()
    assert len(saved_steps()) == 1
    metadata = (run_folder().find_latest().folder / "counters.json").read_text()
    assert '"workers": {"1"' in metadata
    assert_playable()


NAN_IN_WORKER_1 = """
import multiprocessing
import torch
from algorithm.networks import Blueprint, Mlp, Vector

class Spoiled(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.size, self.calls = inner, inner.size, 0

    def forward(self, x):
        x = self.inner(x)
        self.calls += torch.is_grad_enabled()
        spoils = multiprocessing.current_process().name.startswith("Worker-1-") and torch.is_grad_enabled()
        return x * float("nan") if spoils else x

    def numpy(self):
        return self.inner.numpy()

class SpoiledVector:
    def __call__(self, spec):
        return Spoiled(Vector()(spec))

blueprint = Blueprint(encoders={"*": SpoiledVector()}, body=Mlp(8))
"""


def test_nan_in_one_worker_never_reaches_the_shared_parameters():
    write_task(**WORKERS, max_step=1500, max_nonfinite_updates=10_000)
    Path("envs/own/task/nn.py").write_text(NAN_IN_WORKER_1)
    run = Run(*ARGUMENTS)
    assert run.status() == 0, run.err.read_text()
    assert "updates of role 'agent' were skipped" in run.out.read_text()
    run_folder().find_latest().weights("agent")  # which raises an error if any is not finite
    learner = torch.load(run_folder().find_latest().folder / "agent" / "learner.pt", weights_only=True)
    assert 0 < learner["kept"] < learner["updates"]
    assert all(tensor.isfinite().all() for name, tensor in learner.items() if name.startswith("moments"))


def test_an_environment_that_does_not_start_is_reported_as_in_a_local_run():
    write_task("def make(): raise OSError('no such simulator')\n", **WORKERS)
    run = Run(*ARGUMENTS)
    status, error = run.status(), run.err.read_text()
    config = Path("envs/own/task/config.yaml")
    config.write_text(config.read_text().replace("runtime: WORKERS", "runtime: LOCAL").replace("n_workers: 2", ""))
    local = Run(*ARGUMENTS, "--force")
    assert (status, error) == (local.status(), local.err.read_text())
    assert not run.has_processes()


def test_an_environment_that_raises_is_restarted_and_then_ends_the_run():
    fault = "if Broken.steps % 80 == 0: raise ValueError('the arm is broken')"
    write_task(BROKEN.format(fault=fault), **WORKERS, max_env_restarts=2, max_step=None)
    run = Run(*ARGUMENTS)
    assert run.status() == 1
    assert "ValueError: the arm is broken" in run.out.read_text()
    assert re.search(r"env step [\d,]+: worker [01]: ", run.out.read_text())
    assert "max_env_restarts" in run.err.read_text()
    assert not run.has_processes()
    assert len(saved_steps()) >= 1


def test_a_worker_that_exits_again_and_again_ends_the_run():
    write_task(BROKEN.format(fault="if Broken.steps == 80: os._exit(7)"), **WORKERS, max_env_restarts=1, max_step=None)
    run = Run(*ARGUMENTS)
    assert run.status() == 1
    assert "ended with exit code 7: another worker with an empty replay replaces it" in run.out.read_text()
    assert re.search(r"worker [01] ended with exit code 7", run.err.read_text())
    assert len(run.err.read_text().splitlines()) == 1
    assert not run.has_processes()


def list_shared_memory() -> set[str]:
    """Return the names of shared memory, without the semaphores of other programs."""
    return {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith("sem.")}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_starts_and_stops_leave_nothing():
    shared = list_shared_memory()
    write_task(**WORKERS, max_step=20, log_every=20, save_every=None)
    children = set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    for attempt in range(10):
        assert main.main([*ARGUMENTS, "--force"]) == 0
        if not attempt:
            gc.collect()
            descriptors = len(list(Path("/proc/self/fd").iterdir()))
    now = set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    new = [pid for pid in now - children if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert not new
    assert list_shared_memory() <= shared
    gc.collect()  # maps of shared memory, each with a descriptor, end with the tensors in them, which are in cycles
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors + 2


def test_a_second_signal_ends_a_run_whose_worker_hangs():
    is_due = "Broken.steps == 400 and multiprocessing.current_process().name.startswith('Worker-1-')"
    fault = f"if {is_due}: Path('hangs').touch(), time.sleep(300)"
    write_task(BROKEN.format(fault=fault), **WORKERS, max_step=None, save_every=None, log_every=100_000)
    run = Run(*ARGUMENTS)
    wait_until(Path("hangs").exists)
    run.signal(signal.SIGINT)
    time.sleep(2)
    assert is_alive(run.pid)
    assert run.stop(signal.SIGINT) == 130
    assert "Interrupted. Checkpoint saved" in run.err.read_text()
    assert not run.has_processes()
    assert len(saved_steps()) == 1
    assert_playable()


ON_CLUSTER = ["--set", "base_config.runtime=CLUSTER", "cluster_config.timeout=5"]


def test_actors_that_are_killed_or_hang_are_replaced_and_end_with_the_main_process():
    run = start_training(*ON_CLUSTER, env=SLOW_CARTPOLE, max_step=None, save_every=200)
    first, second = list_workers(run.pid)
    os.kill(first, signal.SIGKILL)
    run.wait_for("crashed with signal SIGKILL: about")
    os.kill(second, signal.SIGSTOP)
    run.wait_for("has not replied for 5 s (cluster_config.timeout): about")
    wait_until(lambda: read_last_metric("cluster/restarts") == 2 and read_last_metric("cluster/actors") == 2)
    assert read_last_metric("cluster/lost_env_steps") > 0
    wait_until_dead([first, second], 1)
    actors, saved = list_workers(run.pid), saved_steps()[-1]
    assert len(actors) == 2
    assert run.stop(signal.SIGKILL) == -signal.SIGKILL
    wait_until_dead(actors, 20)
    assert main.main([*ARGUMENTS, "--resume", "--max_step", str(saved + 100)]) == 0
    assert_playable()


MEMBERS = ["own/task", "-n", "a", "--population", "2", "--set", "population_config.interval=100000"]


def list_checkpoints() -> list[list[str]]:
    """Return the names of the checkpoints of both members."""
    return [sorted(path.name for path in Path(f"runs/own/task/a-{k}/checkpoints").glob("[0-9]*")) for k in (1, 2)]


def start_members(*settings: str) -> tuple[Run, list[int]]:
    """Start a population of two. Return it with the processes of its members, which train."""
    write_task(SLOW_CARTPOLE, max_step=100_000, save_every=None)
    run = Run(*MEMBERS, "population_config.processes=2", *settings)
    wait_until(lambda: all(Path(f"runs/own/task/a-{k}/metrics.csv").exists() for k in (1, 2)), 90)
    return run, list_workers(run.pid)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_members_of_a_population_that_is_stopped_save_a_checkpoint(number, status):
    run, members = start_members()
    assert len(members) == 2
    assert run.stop(number, group=True) == status, run.err.read_text()
    assert "Checkpoints saved" in run.err.read_text()
    wait_until_dead(members, 5)
    assert [len(names) for names in list_checkpoints()] == [1, 1]


def test_members_end_with_the_main_process_and_the_population_is_resumed():
    run, members = start_members("base_config.save_every=200")
    wait_until(lambda: all(list_checkpoints()))
    assert run.stop(signal.SIGKILL) == -signal.SIGKILL
    wait_until_dead(members, 20)
    last = max(int(name) for names in list_checkpoints() for name in names)
    limits = ["--max_step", str(last + 50), "--set", "population_config.processes=1"]
    assert main.main([*MEMBERS[:3], "--resume", *limits]) == 0
    assert all(int(names[-1]) >= last + 50 for names in list_checkpoints())
