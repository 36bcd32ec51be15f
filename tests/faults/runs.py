"""Training runs of a small environment, in processes that a test can signal or kill."""

from __future__ import annotations

import os
import pty
import signal
import sys
import time
from multiprocessing import resource_tracker
from pathlib import Path

import numpy as np
import yaml

from algorithm import load
from algorithm.cli import main
from algorithm.parts.run_folder import RunFolder

BASE = {"env_name": "env.py", "n_envs": 2, "max_step": 600, "log_every": 100, "save_every": 300}
AGENT = {"learning_starts": 50, "batch_size": 2, "sequence_length": 10, "rollout_length": 10, "replay_ratio": 1}
CARTPOLE = "import gymnasium\ndef make():\n    return gymnasium.make('CartPole-v1')\n"
# Runs in which a test waits for something leave most of the processors to other processes.
SLOW_CARTPOLE = """
import time
import gymnasium


class Slow(gymnasium.Wrapper):
    def step(self, action):
        time.sleep(0.005)
        return self.env.step(action)


def make():
    return Slow(gymnasium.make("CartPole-v1"))
"""
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


def saved_steps() -> list[int]:
    """Return the env_steps of the checkpoints on disk."""
    return sorted(int(path.name) for path in (run_folder().path / "checkpoints").glob("[0-9]*"))


def assert_playable() -> None:
    """Check that the newest checkpoint loads and acts."""
    assert load(run_folder().path).act(np.zeros(4)) in (0, 1)


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
        deadline = time.monotonic() + seconds
        while text not in self.out.read_text():
            assert time.monotonic() < deadline, self.err.read_text()
            time.sleep(0.01)

    def signal(self, number: int, group: bool = False) -> None:
        (os.killpg if group else os.kill)(self.pid, number)

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
