"""Launching players: their configuration, programs, processes and ports."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from algorithm.adapters.adapter import EnvConfig, EnvironmentStartError
from algorithm.adapters.unity import watchdog
from algorithm.errors import UserError, describe_exit

EDITOR = "editor"  # as unity_args.build_path
EDITOR_PORT, FIRST_PORT = 5004, 5005  # default ports of the editor and of the first player in ML-Agents
N_COMMON_PORTS = 8  # ports of players that are checked when no run is given
PLATFORMS = {"win32": "windows", "darwin": "macos"}  # by sys.platform; all others are linux
ENGINE_SETTINGS = ("time_scale", "quality_level", "width", "height", "target_frame_rate", "capture_frame_rate")
# By sys.platform: what Unity appends to the name of a build, and the programs in its folder (macOS: in its bundle).
PROGRAM_NAMES = {
    "darwin": ((".app",), ("Contents/MacOS/*", "*.app/Contents/MacOS/*")),
    "win32": ((".exe",), ("*.exe",)),
    "linux": ((".x86_64", ".x86"), ("*.x86_64", "*.x86")),
}
SET_EDITOR_PORT = "give --port, and set it in Unity too"
GRACE_SECONDS = 2.0  # seconds that a player has to quit before it is killed
LOOPBACK = "127.0.0.1"
LAST_PORT = 65535
LISTEN_STATE = "0A"  # the state of a listening socket in Linux's tables
SOCKET_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


class LaunchConfig:
    """The configuration of one or several scenes, in a built player or in the editor, as `unity_args` describes them.

    Attributes:
        path: Built player; None for the editor.
        name: Name of the player for messages.
        port: Port of the editor or of the first player; further players have the following ports. None for the
            default port of the editor, or any free port for each player.
        no_graphics: Whether the player runs without graphics.
        timeout: Seconds that a player may take to connect or to answer.
        engine: Settings of Unity's engine, by the names of ML-Agents.

    Raises:
        UserError: There is no player for this platform, or there are several environments of the editor.
    """

    def __init__(self, config: EnvConfig):
        args = config.section
        self.path = _choose_build(args["build_path"])
        if self.path is None and config.n_envs > 1:
            raise UserError(
                f"base_config.n_envs is {config.n_envs}, but there is only one Unity editor; use 1, or build_path"
            )
        self.name = self.path or "the Unity editor"
        self.port: int | None = args["base_port"]
        self.no_graphics = args["no_graphics"] and not config.render_mode
        self.timeout: float = args["timeout_wait"]
        self.engine: dict[str, float] = {name: args[name] for name in ENGINE_SETTINGS}
        if config.render_mode:
            self.engine |= {"time_scale": 1.0, "capture_frame_rate": 0}
        self._additional_args, self._first_number = args["additional_args"], config.first_env
        self._log_folder = Path(args["log_folder"]) if args["log_folder"] else config.log_folder

    def get_port(self, number: int) -> int:
        """Return the port of scene `number`; 0 for any free port."""
        if self.path is None:
            return EDITOR_PORT if self.port is None else self.port
        return 0 if self.port is None else self.port + self._first_number + number

    def make_log_file(self, number: int) -> Path | None:
        """Return the log file of scene `number`, with ML-Agents' name, and create its folder; None for no log file."""
        if self._log_folder is None or self.path is None:  # the editor has its own log file
            return None
        folder = self._log_folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"Player-{self._first_number + number}.log"

    def make_arguments(self, log_file: Path | None) -> list[str]:
        """Return the arguments of a player's command line."""
        graphics = ["-nographics", "-batchmode"] if self.no_graphics else []
        return [*graphics, *(["-logFile", str(log_file)] if log_file else []), *self._additional_args]


def _choose_build(build_path: str | Mapping[str, str]) -> str | None:
    """Return the player for this platform; None for the editor. Raise UserError if this platform has none."""
    if not isinstance(build_path, str):
        platform = PLATFORMS.get(sys.platform, "linux")
        if platform not in build_path:
            raise UserError(
                f"base_config.unity_args.build_path has no player for {platform}, only for {', '.join(build_path)}"
            )
        build_path = build_path[platform]
    return None if build_path == EDITOR else build_path


def find_player(path: Path) -> Path:
    """Return the program of a build: the file itself, or the file that Unity made of this name on this platform.

    Args:
        path: Program, its name without `.x86_64`, `.exe` or `.app`, or the folder of the build.

    Raises:
        EnvironmentStartError: If there is no program, there are several, or the program is not executable.
    """
    suffixes, patterns = PROGRAM_NAMES.get(sys.platform, PROGRAM_NAMES["linux"])
    for candidate in (path, *(path.with_name(path.name + suffix) for suffix in suffixes)):
        found = {candidate} if candidate.is_file() else {file for name in patterns for file in candidate.glob(name)}
        programs = sorted(file for file in found if file.is_file() and not file.name.startswith("UnityCrashHandler"))
        programs = [file for file in programs if file.stem == candidate.stem] or programs
        if len(programs) > 1:
            names = ", ".join(program.name for program in programs)
            raise EnvironmentStartError(f"there are several programs in {candidate}: {names}; name one of them")
        if programs and os.name == "posix" and not os.access(programs[0], os.X_OK):
            raise EnvironmentStartError(f"{programs[0]} is not executable: run chmod +x on it")
        if programs:
            return programs[0]
    raise EnvironmentStartError(f"there is no player at {path}: give the path of a build made for this platform")


def check_ports(numbers: Sequence[int], advice: str) -> str:
    """Return a line about ports that are free.

    Args:
        numbers: Ports, ascending.
        advice: Advice for a port that is taken; it follows "end it, or" in the message.

    Raises:
        EnvironmentStartError: If another program listens on a port, or a number is not a valid port.
    """
    if numbers[-1] > LAST_PORT:
        raise EnvironmentStartError(f"{numbers[-1]} is not a valid port, the largest is {LAST_PORT}: {advice}")
    if taken := [f"{port} is taken by {describe_holder(port)}" for port in numbers if is_taken(port)]:
        raise EnvironmentStartError(f"{', '.join(taken)}: end it, or {advice}")
    return f"{numbers[0]} is free" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} are free"


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
    sockets = set()  # that listen on the port
    for table in filter(Path.exists, SOCKET_TABLES):  # on Linux
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == LISTEN_STATE:
                sockets.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*") if sockets else ():
        try:
            if any(file.resolve().name in sockets for file in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (process {process.name})"
        except OSError:  # a process of another user, or one that has just ended
            continue
    return "another program"
