"""Launching scenes of Godot: an exported scene, or a project in the engine."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from algorithm.adapters.adapter import EnvConfig, EnvironmentStartError
from algorithm.adapters.curriculum import Value
from algorithm.adapters.scenes.client import SceneClient
from algorithm.adapters.scenes.launch import EDITOR, LaunchConfig
from algorithm.adapters.scenes.player import find_player
from algorithm.errors import UserError

PROJECT_FILE = "project.godot"
CONFIG_VERSION = re.compile(r"^config_version *= *(\d+)", re.MULTILINE)  # in the file of a project
LAST_OF_GODOT_3 = 4  # the version of the projects of Godot 3; those of Godot 4 have 5
HEADLESS = ("--headless", "--disable-render-loop")  # as Godot RL Agents starts Godot 4
# Programs that open a project, the first that is installed: of Godot 4, of Godot 3, and its servers without graphics.
GODOT_4, GODOT_3, GODOT_3_SERVERS = ("godot4", "godot"), ("godot3", "godot"), ("godot3-server", "godot-server")
SETTING_OF_ARGUMENT = {
    "env_seed": "base_config.seed",
    "speedup": "base_config.godot_args.speedup",
    "action_repeat": "base_config.godot_args.action_repeat",
    "port": "base_config.godot_args.base_port",
}


class GodotLaunchConfig(LaunchConfig):
    """The configuration of Godot scenes, as `godot_args` describes them.

    Attributes:
        project: Folder of a project that the engine opens; None for an exported scene and for the editor.
        time_limit: Steps after which the end of an episode is a truncation; None for no limit.
        ignored: Names of observations to leave out.

    Raises:
        UserError: As LaunchConfig does, and for `env_args` in the editor or with the name of another setting.
    """

    engine: ClassVar[str] = "Godot"
    section: ClassVar[str] = "godot_args"
    editor_port: ClassVar[int] = 11008  # in Godot RL Agents
    port_advice: ClassVar[str] = "give --port, and set it in Godot too"
    editor_note: ClassVar[str] = "; the scene's own action_repeat, speedup and seed apply"

    def __init__(self, config: EnvConfig):
        args = config.section
        build = args["build_path"] or args["project_path"] or EDITOR
        super().__init__(replace(config, section={**args, "build_path": build}))
        self.project = Path(build) if not args["build_path"] and args["project_path"] else None
        for name in config.args:
            if setting := SETTING_OF_ARGUMENT.get(name):
                raise UserError(f"base_config.env_args.{name} is what {setting} sets")
        if self.path is None and config.args:
            raise UserError(
                f"base_config.env_args ({', '.join(config.args)}) has no effect in the editor, whose scene has no "
                "command line: set the values in the scene"
            )
        self.time_limit: int | None = args["time_limit"]
        self.ignored = config.ignore_observations
        self._program: str | None = args["program"]
        self._fixed_fps: int | None = None if config.render_mode else args["fixed_fps"]
        speed = {"speedup": 1 if config.render_mode else args["speedup"], "action_repeat": args["action_repeat"]}
        self._named_arguments = {**speed, **config.args}

    def open(
        self, number: int, seed: int, parameters: Mapping[str, Value], on_listening: Callable[[], object]
    ) -> SceneClient:
        from algorithm.adapters.godot.client import GodotClient  # for this process only

        return GodotClient(
            None if self.path is None else self.find_program(),
            port=self.get_port(number),
            on_listening=on_listening,
            start_limit=None if self.path is None else self.timeout,
            limit=self.timeout,
            arguments=() if self.path is None else self.make_arguments(seed),
            time_limit=self.time_limit,
            ignored=self.ignored,
            log=self.make_log_file(number),
        )

    def find_program(self) -> Path:
        if self.project is None:
            return find_player(Path(self.path or ""))
        programs: tuple[str, ...] = GODOT_4
        if self._is_of_godot_3(self.project):
            programs = GODOT_3_SERVERS if self.no_graphics else GODOT_3
        names = (self._program,) if self._program else programs
        for name in names:
            if program := shutil.which(name):
                return Path(program)
        raise EnvironmentStartError(
            f"no program is installed that opens the project {self.project} ({', '.join(names)}): install Godot, "
            "name its program in base_config.godot_args.program, or set no_graphics to false for one with graphics"
        )

    def make_arguments(self, seed: int) -> list[str]:
        """Return the arguments of the command line of a scene, except for the port."""
        project = ["--path", str(self.project.absolute())] if self.project else []
        is_headless = self.no_graphics and not (self.project and self._is_of_godot_3(self.project))
        speed = [] if self._fixed_fps is None else ["--fixed-fps", str(self._fixed_fps)]
        named = {"env_seed": seed, **self._named_arguments}
        return [
            *project,
            *self._additional_args,
            *(HEADLESS if is_headless else ()),
            *speed,
            *(f"--{name}={value}" for name, value in named.items() if value is not None),
        ]

    @staticmethod
    def _is_of_godot_3(project: Path) -> bool:
        """Return whether a project is of Godot 3. Raises EnvironmentStartError for a folder without a project."""
        file = project / PROJECT_FILE
        if not file.is_file():
            raise EnvironmentStartError(
                f"there is no {PROJECT_FILE} in {project}, the base_config.godot_args.project_path: give the folder of "
                "a project of Godot"
            )
        version = CONFIG_VERSION.search(file.read_text(encoding="utf-8", errors="replace"))
        return version is not None and int(version[1]) <= LAST_OF_GODOT_3
