"""Real runs of small environments, in processes that can be killed."""

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

import main
from algorithm import load
from algorithm.runs.run_folder import RunFolder

BASE = {"env_name": "env.py", "n_envs": 2, "max_step": 600, "log_every": 100, "save_every": 300}
AGENT = {"learning_starts": 50, "batch_size": 2, "sequence_length": 10, "rollout_length": 10, "replay_ratio": 1}
CARTPOLE = "import gymnasium\ndef make():\n    return gymnasium.make('CartPole-v1')\n"
OUT, ERR = "out.txt", "err.txt"
ARGUMENTS = ["own/task", "-n", "a"]


def write_task(env: str = CARTPOLE, **base) -> None:
    """An environment folder own/task in the working directory, with `env` as its env.py."""
    folder = Path("envs/own/task")
    folder.mkdir(parents=True)
    tree = {"base_config": {**BASE, **base}, "replay_config": {"capacity": 1000}, "acer_config": AGENT}
    (folder / "config.yaml").write_text(yaml.safe_dump({"default": tree}))
    (folder / "env.py").write_text(env)


def run_folder() -> RunFolder:
    return RunFolder.find("own/task", "a")


def saved_steps() -> list[int]:
    """env_steps of the checkpoints on disk."""
    return sorted(int(path.name) for path in (run_folder().path / "checkpoints").glob("[0-9]*"))


def assert_playable() -> None:
    """The newest checkpoint loads and acts."""
    assert load(run_folder().path).act(np.zeros(4)) in (0, 1)


class Run:
    """`main.py arguments` in a forked process, the leader of a group of its own: it begins where imports are done.

    What it prints goes to the files `out` and `err`, or to the open files of these names.
    """

    def __init__(self, *arguments: str, out: int | None = None, err: int | None = None):
        self.out, self.err = Path(OUT), Path(ERR)
        for path in (self.out, self.err):
            path.write_text("")
        resource_tracker.ensure_running()  # else the run has one, which tells what os._exit leaves
        self.pid = os.fork()
        if self.pid == 0:
            self._become(arguments, out, err)

    def _become(self, arguments, out, err) -> None:
        status = 99
        try:
            if os.getsid(0) != os.getpid():  # as in a terminal of its own
                os.setsid()
            for number, path, given in ((1, OUT, out), (2, ERR, err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND) if given is None else given, number)
            sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: PTH123
            sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores, if it started the tests
            status = main.main(list(arguments))
            sys.stdout.flush()
        finally:
            os._exit(status)

    @classmethod
    def in_terminal(cls, *arguments: str) -> tuple[Run, int]:
        """A run in a terminal of its own, and the end at which that is read."""
        resource_tracker.ensure_running()
        pid, terminal = pty.fork()
        run = cls.__new__(cls)
        run.pid = pid
        if pid == 0:
            run._become(arguments, 1, 2)
        return run, terminal

    def wait_for(self, text: str, seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while text not in self.out.read_text():
            assert time.monotonic() < until, self.err.read_text()
            time.sleep(0.01)

    def signal(self, number: int, group: bool = False) -> None:
        (os.killpg if group else os.kill)(self.pid, number)

    def status(self) -> int:
        """Exit status; minus the signal that ended it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def left_behind(self) -> bool:
        """A process of its group still lives."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True
