"""The start of a scene: its configuration, the program of its player, its ports, and checks before the start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from algorithm.adapters.adapter import EnvConfig, EnvironmentStartError, StartCheck
from algorithm.adapters.unity.os_process import LAST_PORT, describe_holder, is_taken
from algorithm.errors import UserError

EDITOR = "editor"  # as unity_args.build_path
EDITOR_PORT, FIRST_PORT = 5004, 5005  # default ports of the editor and of the first player in ML-Agents
N_COMMON_PORTS = 8  # ports of players that are checked when no run is given
PLATFORMS = {"win32": "windows", "darwin": "macos"}  # by sys.platform; all others are linux
ENGINE_SETTINGS = (
    "time_scale",
    "quality_level",
    "width",
    "height",
    "target_frame_rate",
    "capture_frame_rate",
)
# By sys.platform: what Unity appends to the name of a build, and the programs in its folder (macOS: in its bundle).
PROGRAM_NAMES = {
    "darwin": ((".app",), ("Contents/MacOS/*", "*.app/Contents/MacOS/*")),
    "win32": ((".exe",), ("*.exe",)),
    "linux": ((".x86_64", ".x86"), ("*.x86_64", "*.x86")),
}
SET_EDITOR_PORT = "give --port, and set it in Unity too"


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """The configuration of one or several scenes, in a built player or in the editor.

    Attributes:
        path: Built player; None for the editor.
        port: Port of the editor or of the first player; further players have the following ports. None for the
            default port of the editor, or any free port for each player.
        no_graphics: Whether the player runs without graphics.
        timeout: Seconds that a player may take to connect or to answer.
        additional_args: Further arguments of the player's command line.
        log_folder: Folder of the players' log files; None for no log files.
        engine: Settings of Unity's engine, by the names of ML-Agents.
        first_number: Number of the first scene among all scenes of the run.
    """

    path: str | None
    port: int | None
    no_graphics: bool
    timeout: float
    additional_args: tuple[str, ...]
    log_folder: Path | None
    engine: Mapping[str, float]
    first_number: int = 0

    @classmethod
    def from_env_config(cls, config: EnvConfig) -> LaunchConfig:
        """Return the launch configuration that follows from `base_config.unity_args`.

        Raises:
            UserError: If there is no player for this platform, or several environments of the editor.
        """
        args = config.section
        path = _choose_build(args["build_path"])
        if path is None and config.n_envs > 1:
            raise UserError(
                f"base_config.n_envs is {config.n_envs}, but there is only one Unity editor; use 1, or build_path"
            )
        engine = {name: args[name] for name in ENGINE_SETTINGS}
        if config.render_mode:
            engine |= {"time_scale": 1.0, "capture_frame_rate": 0}
        return cls(
            path=path,
            port=args["base_port"],
            no_graphics=args["no_graphics"] and not config.render_mode,
            timeout=args["timeout_wait"],
            additional_args=tuple(args["additional_args"]),
            log_folder=Path(args["log_folder"]) if args["log_folder"] else config.log_folder,
            engine=engine,
            first_number=config.first_env,
        )

    @property
    def name(self) -> str:
        """Return the name of the player for messages."""
        return "the Unity editor" if self.path is None else self.path

    def get_port(self, number: int) -> int:
        """Return the port of scene `number`; 0 for any free port."""
        if self.path is None:
            return EDITOR_PORT if self.port is None else self.port
        return 0 if self.port is None else self.port + self.first_number + number

    def make_log_file(self, number: int) -> Path | None:
        """Return the log file of scene `number`, with ML-Agents' name, and create its folder; None for no log file."""
        if self.log_folder is None or self.path is None:  # the editor has its own log file
            return None
        folder = self.log_folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"Player-{self.first_number + number}.log"

    def make_arguments(self, log_file: Path | None) -> list[str]:
        """Return the arguments of a player's command line."""
        graphics = ["-nographics", "-batchmode"] if self.no_graphics else []
        return [*graphics, *(["-logFile", str(log_file)] if log_file else []), *self.additional_args]


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
    program = path if path.is_file() else _find_build(path)
    if os.name == "posix" and not os.access(program, os.X_OK):
        raise EnvironmentStartError(f"{program} is not executable: run chmod +x on it")
    return program


def _find_build(path: Path) -> Path:
    suffixes, patterns = PROGRAM_NAMES.get(sys.platform, PROGRAM_NAMES["linux"])
    for candidate in (path, *(path.with_name(path.name + suffix) for suffix in suffixes)):
        found = {candidate} if candidate.is_file() else {file for name in patterns for file in candidate.glob(name)}
        programs = sorted(file for file in found if file.is_file() and not file.name.startswith("UnityCrashHandler"))
        programs = [file for file in programs if file.stem == candidate.stem] or programs
        if len(programs) > 1:
            names = ", ".join(program.name for program in programs)
            raise EnvironmentStartError(f"there are several programs in {candidate}: {names}; name one of them")
        if programs:
            return programs[0]
    raise EnvironmentStartError(f"there is no player at {path}: give the path of a build made for this platform")


def list_start_checks(config: EnvConfig | None) -> list[StartCheck]:
    """Return the checks of the protocol, the player and the ports; for the default ports if `config` is None."""
    protocol = StartCheck(name="handshake", run=check_protocol, in_subprocess=True)
    if config is None:
        players = range(FIRST_PORT, FIRST_PORT + N_COMMON_PORTS)
        return [
            StartCheck(name="port of the editor", run=partial(check_ports, [EDITOR_PORT], SET_EDITOR_PORT)),
            StartCheck(name="ports of players", run=partial(check_ports, players, "players take others")),
            protocol,
        ]
    launch = LaunchConfig.from_env_config(config)
    if launch.path is None:
        ports = StartCheck(name="ports", run=partial(check_ports, [launch.get_port(0)], SET_EDITOR_PORT))
        return [protocol, ports]
    player = StartCheck(name="player", run=lambda: str(find_player(Path(launch.path or ""))))
    if launch.port is None:
        return [protocol, player]
    advice = "give another base_config.unity_args.base_port, or null for any free ports"
    numbers = range(launch.port, launch.port + config.n_envs + 1)  # one more for evaluation
    return [protocol, player, StartCheck(name="ports", run=partial(check_ports, numbers, advice))]


def check_protocol() -> str:
    """Exchange messages with a scene over gRPC, and return the versions of the packages that took part."""
    from algorithm.adapters.unity.self_test import run_self_test  # which loads ML-Agents' client

    return run_self_test()


def check_ports(numbers: Iterable[int], advice: str) -> str:
    """Return a line about ports that are free.

    Args:
        numbers: Ports, ascending.
        advice: Advice for a port that is taken; it follows "end it, or" in the message.

    Raises:
        EnvironmentStartError: If another program listens on a port, or a number is not a valid port.
    """
    numbers = list(numbers)
    if numbers[-1] > LAST_PORT:
        raise EnvironmentStartError(f"{numbers[-1]} is not a valid port, the largest is {LAST_PORT}: {advice}")
    if taken := [f"{port} is taken by {describe_holder(port)}" for port in numbers if is_taken(port)]:
        raise EnvironmentStartError(f"{', '.join(taken)}: end it, or {advice}")
    return f"{numbers[0]} is free" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} are free"
