"""Processes and ports of this machine: a player under its watchdog, and which program listens on a port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from algorithm.adapters.adapter import EnvironmentStartError
from algorithm.adapters.unity import watchdog
from algorithm.errors import describe_exit

GRACE_SECONDS = 2.0  # seconds that a player has to quit before it is killed
LOOPBACK = "127.0.0.1"
LAST_PORT = 65535
LISTEN_STATE = "0A"  # the state of a listening socket in Linux's tables
SOCKET_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


class UnityProcess:
    """A player under a watchdog, which ends it when this object's pipe to the watchdog is closed or broken."""

    def __init__(self, command: Sequence[str], log: Path | None = None):
        """Start the player by the command, program and arguments, with the file of its log.

        An existing log is renamed to `<name>-prev.log`. Raises EnvironmentStartError if the program cannot be started.
        """
        self._log_file, self._last_output = log, ""
        if log and log.exists():
            log.replace(log.with_stem(f"{log.stem}-prev"))
        script = str(Path(watchdog.__file__).resolve())
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", script, str(GRACE_SECONDS), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            **watchdog.make_detach_args(),
        )
        word, _, rest = self._read_line().partition(" ")
        self._exit_reason = None if word == "pid" else f"cannot be started: {rest or 'its watchdog ended'}"
        if self._exit_reason:
            self.close()
            raise EnvironmentStartError(self._exit_reason)
        self.pid = int(rest)

    def get_exit_reason(self) -> str | None:
        """Return how the player ended, as the predicate of a sentence; None while it runs."""
        if self._exit_reason is None and self._watchdog.poll() is not None:
            word, _, rest = self._read_line().partition(" ")
            code, _, self._last_output = rest.partition(" ")
            self._exit_reason = (
                describe_exit(int(code)) if word == "exit" else "ended with its watchdog, which was killed"
            )
            if word != "exit":
                watchdog.kill_player(self.pid)
        return self._exit_reason

    def last_lines(self) -> str:
        """Return the last lines of the player's log, or else of its output, as part of a sentence."""
        if self._log_file and self._log_file.exists():
            with self._log_file.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - watchdog.TAIL_BYTES))
                if logged := watchdog.last_lines(file.read()):
                    return f"; its log ends with: {logged}"
        return f"; it printed: {self._last_output}" if self._last_output else ""

    def close(self, at_once: bool = False) -> None:
        """Wait until the player has quit; kill it after `GRACE_SECONDS`, or at once. A second call does nothing."""
        stdin, stdout = self._watchdog.stdin, self._watchdog.stdout
        assert stdin and stdout, "pipes"
        if stdin.closed:
            return
        with suppress(OSError):  # raised if the watchdog has ended
            if at_once:
                stdin.write(b"k")
            stdin.close()
        try:
            self._watchdog.wait(2 * GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            watchdog.kill_player(self.pid)
            self._watchdog.kill()
            self._watchdog.wait()
        self.get_exit_reason()
        stdin.close()
        stdout.close()

    def _read_line(self) -> str:
        return self._watchdog.stdout.readline().decode().strip() if self._watchdog.stdout else ""


def is_taken(port: int) -> bool:
    """Return whether another program listens on the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if os.name == "posix":  # a port whose last connection has just been closed is free
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False


def find_free_port() -> int:
    """Return a port on which no program listens."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def describe_holder(port: int) -> str:
    """Return the name of the program that listens on the port, known on Linux only, for processes of the same user."""
    sockets = {f"socket:[{inode}]" for inode in _find_inodes(port)}
    for process in Path("/proc").glob("[0-9]*") if sockets else ():
        try:
            if any(_read_link(file) in sockets for file in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (process {process.name})"
        except OSError:  # a process of another user, or one that has just ended
            continue
    return "another program"


def _read_link(file: Path) -> str:
    """Return what a file descriptor of a process refers to; "" if it has just been closed."""
    try:
        return str(file.readlink())
    except OSError:
        return ""


def _find_inodes(port: int) -> Iterator[str]:
    """Yield the inodes of the sockets that listen on the port."""
    for table in SOCKET_TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:  # not Linux
            continue
        for line in lines:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == LISTEN_STATE:
                yield fields[9]
