"""Training runs of a small environment, in processes that a test can signal or kill."""

from __future__ import annotations

import os
import pty
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import resource_tracker
from pathlib import Path

import numpy as np
import yaml

from algorithm import load
from algorithm.adapters.process_setup import DIE_WITH_PARENT
from algorithm.cli import main
from algorithm.parts.run_folder import RunFolder
from algorithm.training.metrics import read_table

BASE = {
    "env_name": "env.py",
    "suggest_settings": False,
    "n_envs": 2,
    "max_step": 600,
    "log_every": 100,
    "save_every": 300,
}
AGENT = {"learning_starts": 50, "batch_size": 2, "sequence_length": 10, "rollout_length": 10, "replay_ratio": 1}
CARTPOLE = "import gymnasium\ndef make():\n    return gymnasium.make('CartPole-v1')\n"
BROKEN = """
import multiprocessing, os, sys, time
import gymnasium
import numpy as np
from pathlib import Path

class Broken(gymnasium.Wrapper):
    steps = 0  # of all environments in this process

    def step(self, action):
        Broken.steps += 1
        obs, reward, terminated, truncated, info = self.env.step(action)
        {fault}
        return obs, reward, terminated, truncated, info

def make():
    return Broken(gymnasium.make("CartPole-v1"))
"""
# Runs in which a test waits for something leave most of the processors to other processes.
SLOW_CARTPOLE = BROKEN.format(fault="time.sleep(0.005)")
OUT, ERR = "out.txt", "err.txt"
ARGUMENTS = ["own/task", "-n", "a"]


def write_task(env: str = CARTPOLE, **base) -> None:
    """Write the environment folder own/task in the working directory, with `env` as its env.py."""
    folder = Path("envs/own/task")
    folder.mkdir(parents=True)
    tree = {"base_config": {**BASE, **base}, "replay_config": {"capacity": 1000}, "acer_config": AGENT}
    (folder / "config.yaml").write_text(yaml.safe_dump({"default": tree}))
    (folder / "env.py").write_text(env)


def run_folder() -> RunFolder:
    return RunFolder.find("own/task", "a")


def read_last_metric(name: str) -> float:
    """Return the last logged value of a metric."""
    return float(read_table(run_folder().path / "metrics.csv").rows[-1][name])


def saved_steps() -> list[int]:
    """Return the env_steps of the checkpoints on disk."""
    return sorted(int(path.name) for path in (run_folder().path / "checkpoints").glob("[0-9]*"))


def assert_playable() -> None:
    """Check that the newest checkpoint loads and acts."""
    assert load(run_folder().path).act(np.zeros(4)) in (0, 1)


def wait_until(condition: Callable[[], object], seconds: float = 60, describe: Callable[[], object] = str) -> None:
    """Wait until a condition is true; fail with a description after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.02)


def list_workers(pid: int) -> list[int]:
    """Return the process ids of the workers of a run: its children that execute Python code (not a tracker)."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_dead(pids: list[int], seconds: float) -> None:
    wait_until(lambda: not any(map(is_alive, pids)), seconds, lambda: [pid for pid in pids if is_alive(pid)])


class Run:
    """A call of `main.py` in a forked process, which is the leader of its process group and need not import anything.

    Args:
        arguments: The command line.
        out: File descriptor of standard output; None for the file `self.out`.
        err: File descriptor of standard error; None for the file `self.err`.
    """

    def __init__(self, *arguments: str, out: int | None = None, err: int | None = None):
        self.out, self.err = Path(OUT), Path(ERR)
        for path in (self.out, self.err):
            path.write_text("")
        resource_tracker.ensure_running()  # otherwise the run starts one, which warns about what os._exit leaves
        self.pid = os.fork()
        if self.pid == 0:
            self._become(arguments, out, err)

    def _become(self, arguments, out, err) -> None:
        status = 99
        if sys.platform == "linux":  # otherwise a test that fails would leave it
            eval(DIE_WITH_PARENT.format(parent=os.getppid()))
        try:
            if os.getsid(0) != os.getpid():  # as if it had its own terminal
                os.setsid()
            for number, path, descriptor in ((1, OUT, out), (2, ERR, err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND) if descriptor is None else descriptor, number)
            sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: PTH123
            sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
            status = main.main(list(arguments))
            sys.stdout.flush()
        finally:
            os._exit(status)

    @classmethod
    def in_terminal(cls, *arguments: str) -> tuple[Run, int]:
        """Return a run in its own terminal, and the file descriptor that reads this terminal."""
        resource_tracker.ensure_running()
        pid, terminal = pty.fork()
        run = cls.__new__(cls)
        run.pid = pid
        if pid == 0:
            run._become(arguments, 1, 2)
        return run, terminal

    def wait_for(self, text: str, seconds: float = 60) -> None:
        wait_until(lambda: text in self.out.read_text(), seconds, self.err.read_text)

    def signal(self, number: int, group: bool = False) -> None:
        (os.killpg if group else os.kill)(self.pid, number)

    def stop(self, number: int, group: bool = False) -> int:
        """Send a signal to the process, or to its group. Return the exit status."""
        self.signal(number, group)
        return self.status()

    def status(self) -> int:
        """Wait for the end; return the exit status, or minus the signal that ended the process."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def has_processes(self) -> bool:
        """Return whether a process of its group is still alive."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True


def start_training(*arguments: str, **task) -> Run:
    """Write the environment folder, as `write_task`, and start a run. Return it as soon as it trains."""
    write_task(**task)
    run = Run(*ARGUMENTS, *arguments)
    run.wait_for("steps/s", 120)
    return run
