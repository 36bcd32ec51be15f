"""A player's process: found, started, watched, and ended whatever happens to the trainer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from algorithm.adapters.adapter import EnvironmentStartError
from algorithm.adapters.unity import watchdog as keeper

GRACE_SECONDS = 2.0  # seconds for a player to leave by itself


def find_player(path: Path) -> Path:
    """The program of a build: the file itself, or what Unity made of that name on this platform.

    `path` may leave out `.x86_64`, `.exe` or `.app`, or be the folder of the build. Raises EnvironmentStartError where
    there is none, there are several, or it may not be run.
    """
    program = path if path.is_file() else _find_build(path)
    if os.name == "posix" and not os.access(program, os.X_OK):
        raise EnvironmentStartError(f"{program} may not be run: chmod +x it")
    return program


def _find_build(path: Path) -> Path:
    for candidate in (path, *(path.with_name(path.name + suffix) for suffix in _get_suffixes())):
        programs = [candidate] if candidate.is_file() else _find_programs(candidate)
        if len(programs) > 1:
            named = [program for program in programs if program.stem == candidate.stem]
            programs = named or programs
        if len(programs) > 1:
            names = ", ".join(program.name for program in programs)
            raise EnvironmentStartError(f"there are several programs in {candidate}: {names}; name one of them")
        if programs:
            return programs[0]
    raise EnvironmentStartError(f"there is no player at {path}: give the path of a build made for this platform")


def _get_suffixes() -> tuple[str, ...]:
    return {"darwin": (".app",), "win32": (".exe",)}.get(sys.platform, (".x86_64", ".x86"))


def _find_programs(folder: Path) -> list[Path]:
    """The programs in a build's folder; on macOS a bundle, or a folder with a bundle, has them further inside."""
    if sys.platform == "darwin":
        inside = [folder / "Contents" / "MacOS", *folder.glob("*.app/Contents/MacOS")]
        return sorted(program for place in inside for program in place.glob("*") if program.is_file())
    found = (program for suffix in _get_suffixes() for program in folder.glob(f"*{suffix}"))
    return sorted(program for program in found if not program.name.startswith("UnityCrashHandler"))


class UnityProcess:
    """A player that runs under a keeper, which ends it when this object's pipe to it is closed or broken.

    `log` is the file that the player writes its log to; one that is there is kept as `<name>-prev.log`. Raises
    EnvironmentStartError where the program cannot be started.
    """

    def __init__(self, command: Sequence[str], log: Path | None = None):
        self._log_file, self._last_output = log, ""
        if log and log.exists():
            log.replace(log.with_stem(f"{log.stem}-prev"))
        script = str(Path(keeper.__file__).resolve())
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", script, str(GRACE_SECONDS), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            **keeper.make_detach_args(),
        )
        word, _, rest = self._read_line().partition(" ")
        self._exit_reason = None if word == "pid" else f"cannot be started: {rest or 'its keeper ended'}"
        if self._exit_reason:
            self.close()
            raise EnvironmentStartError(self._exit_reason)
        self.pid = int(rest)

    def get_exit_reason(self) -> str | None:
        """How the player ended, as the predicate of a sentence; None while it runs."""
        if self._exit_reason is None and self._watchdog.poll() is not None:
            word, _, rest = self._read_line().partition(" ")
            code, _, self._last_output = rest.partition(" ")
            self._exit_reason = (
                describe_exit(int(code)) if word == "exit" else "ended with its keeper, which was killed"
            )
            if word != "exit":
                keeper.kill_player(self.pid)
        return self._exit_reason

    def last_lines(self) -> str:
        """Return the end of the player's log as part of a sentence, or else of what it printed before it ended."""
        if self._log_file and self._log_file.exists():
            with self._log_file.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - keeper.TAIL_BYTES))
                if logged := keeper.last_lines(file.read()):
                    return f"; its log ends with: {logged}"
        return f"; it printed: {self._last_output}" if self._last_output else ""

    def close(self, at_once: bool = False) -> None:
        """Wait until the player has left, and kill it after some seconds, or at once; calling it twice is harmless."""
        pipes = self._watchdog.stdin, self._watchdog.stdout
        if not pipes[0] or pipes[0].closed:
            return
        try:
            if at_once:
                pipes[0].write(b"k")
            pipes[0].close()
        except OSError:  # the keeper has ended
            pass
        try:
            self._watchdog.wait(2 * GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            keeper.kill_player(self.pid)
            self._watchdog.kill()
            self._watchdog.wait()
        self.get_exit_reason()
        for pipe in pipes:
            if pipe:
                pipe.close()

    def _read_line(self) -> str:
        return self._watchdog.stdout.readline().decode().strip() if self._watchdog.stdout else ""


def describe_exit(code: int) -> str:
    """How a process ended, from its exit code; negative ones are signals, as subprocess gives them."""
    if code == 0:
        return "left by itself"
    if code < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"crashed with signal {names.get(-code, -code)}"
    return f"ended with exit code {code}" + (f" ({code:#x})" if code > 255 else "")
