"""The configuration of scenes: their program or editor, ports, log files and clients."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from algorithm.adapters.adapter import EnvConfig
from algorithm.adapters.curriculum import Value
from algorithm.adapters.scenes.client import SceneClient
from algorithm.adapters.scenes.ports import LAST_PORT
from algorithm.errors import UserError

EDITOR = "editor"  # as build_path
PLATFORMS = {"win32": "windows", "darwin": "macos"}  # by sys.platform; all others are linux


class LaunchConfig(ABC):
    """The configuration of one or several scenes, in a built player or in the editor of an engine.

    Attributes:
        path: Built player; None for the editor.
        name: Name of the player for messages.
        port: Port of the editor or of the first player; further players have the following ports. None for the
            default port of the editor, or any free port for each player.
        no_graphics: Whether the player runs without graphics.
        timeout: Seconds that a player may take to connect or to answer.

    Raises:
        UserError: There is no player for this platform, there are several environments of the editor, or too few
            ports from `base_port` on.
    """

    engine: ClassVar[str]  # its name
    section: ClassVar[str]  # its settings, in base_config
    editor_port: ClassVar[int]  # the default port of its editor
    port_advice: ClassVar[str]  # what to do if the port of the editor is taken
    editor_note: ClassVar[str] = ""  # what follows the request to press Play

    def __init__(self, config: EnvConfig):
        args = config.section
        self.path = self._choose_build(args["build_path"])
        self.name = self.path or f"the {self.engine} editor"
        self.port: int | None = args["base_port"]
        self.no_graphics = args["no_graphics"] and not config.render_mode
        self.timeout: float = args["timeout_wait"]
        self._additional_args, self._first_number = args["additional_args"], config.first_env
        self._log_folder = Path(args["log_folder"]) if args["log_folder"] else config.log_folder
        if self.path is None and config.n_envs > 1:
            raise UserError(
                f"base_config.n_envs is {config.n_envs}, but there is only one {self.engine} editor; use 1, or "
                "build_path"
            )
        if self.path and self.port and self.get_port(config.n_envs - 1) > LAST_PORT:
            raise UserError(
                f"base_config.{self.section}.base_port is {self.port}, so that environment {config.n_envs} of "
                f"{config.n_envs} has port {self.get_port(config.n_envs - 1)}; the largest is {LAST_PORT}"
            )

    @abstractmethod
    def open(
        self, number: int, seed: int, parameters: Mapping[str, Value], on_listening: Callable[[], object]
    ) -> SceneClient:
        """Open scene `number`, in the process of the scene, and call `on_listening` when the player can connect.

        Raises EnvironmentStartError if it does not start.
        """

    @abstractmethod
    def find_program(self) -> Path:
        """Return the program of the player. Raises EnvironmentStartError if there is none."""

    def get_port(self, number: int) -> int:
        """Return the port of scene `number`; 0 for any free port."""
        if self.path is None:
            return self.editor_port if self.port is None else self.port
        return 0 if self.port is None else self.port + self._first_number + number

    def make_log_file(self, number: int) -> Path | None:
        """Return the log file of scene `number`, with ML-Agents' name, and create its folder; None for no log file."""
        if self._log_folder is None or self.path is None:  # the editor has its own log file
            return None
        folder = self._log_folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"Player-{self._first_number + number}.log"

    def _choose_build(self, build_path: str | Mapping[str, str]) -> str | None:
        """Return the player for this platform; None for the editor. Raise UserError if this platform has none."""
        if not isinstance(build_path, str):
            platform = PLATFORMS.get(sys.platform, "linux")
            if platform not in build_path:
                raise UserError(
                    f"base_config.{self.section}.build_path has no player for {platform}, only for "
                    f"{', '.join(build_path)}"
                )
            build_path = build_path[platform]
        return None if build_path == EDITOR else build_path
