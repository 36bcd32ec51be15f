"""Players, the programs that show scenes: where they are, and their processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from algorithm.adapters.adapter import EnvironmentStartError
from algorithm.adapters.scenes import watchdog
from algorithm.errors import describe_exit

# By sys.platform: what an engine appends to the name of a build, and the programs in its folder (macOS: in its bundle).
PROGRAM_NAMES = {
    "darwin": ((".app",), ("Contents/MacOS/*", "*.app/Contents/MacOS/*")),
    "win32": ((".exe",), ("*.exe",)),
    "linux": ((".x86_64", ".x86"), ("*.x86_64", "*.x86")),
}
GRACE_SECONDS = 2.0  # seconds that a player has to quit before it is killed


def find_player(path: Path, without: str = "") -> Path:
    """Return the program of a build: the file itself, or the file that an engine made of this name on this platform.

    Args:
        path: Program, its name without `.x86_64`, `.exe` or `.app`, or the folder of the build.
        without: Start of the names of other programs in the folder.

    Raises:
        EnvironmentStartError: If there is no program, there are several, or the program is not executable.
    """
    suffixes, patterns = PROGRAM_NAMES.get(sys.platform, PROGRAM_NAMES["linux"])
    for candidate in (path, *(path.with_name(path.name + suffix) for suffix in suffixes)):
        found = {candidate} if candidate.is_file() else {file for name in patterns for file in candidate.glob(name)}
        programs = sorted(file for file in found if file.is_file() and not (without and file.name.startswith(without)))
        programs = [file for file in programs if file.stem == candidate.stem] or programs
        if len(programs) > 1:
            names = ", ".join(program.name for program in programs)
            raise EnvironmentStartError(f"there are several programs in {candidate}: {names}; name one of them")
        if programs and os.name == "posix" and not os.access(programs[0], os.X_OK):
            raise EnvironmentStartError(f"{programs[0]} is not executable: run chmod +x on it")
        if programs:
            return programs[0]
    raise EnvironmentStartError(f"there is no player at {path}: give the path of a build made for this platform")


class PlayerProcess:
    """A player under a watchdog, which ends it when this object's pipe to the watchdog is closed or broken."""

    def __init__(self, command: Sequence[str], log: Path | None = None, records_output: bool = False):
        """Start the player by the command, program and arguments, with the file of its log.

        The player writes this file itself, unless `records_output`: then it receives what the player prints.

        An existing log is renamed to `<name>-prev.log`. Raises EnvironmentStartError if the program cannot be started.
        """
        self._log_file, self._last_output = log, ""
        if log and log.exists():
            log.replace(log.with_stem(f"{log.stem}-prev"))
        output_file = str(log) if log and records_output else ""
        script = str(Path(watchdog.__file__).resolve())
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", script, str(GRACE_SECONDS), output_file, *command],
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
