"""Launching Unity's players: their arguments and the settings of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from algorithm.adapters.adapter import EnvConfig
from algorithm.adapters.curriculum import Value
from algorithm.adapters.scenes.client import SceneClient
from algorithm.adapters.scenes.launch import LaunchConfig
from algorithm.adapters.scenes.player import find_player

ENGINE_SETTINGS = ("time_scale", "quality_level", "width", "height", "target_frame_rate", "capture_frame_rate")


class UnityLaunchConfig(LaunchConfig):
    """The configuration of Unity scenes, as `unity_args` describes them.

    Attributes:
        settings: Settings of the engine, by the names of ML-Agents.
    """

    engine: ClassVar[str] = "Unity"
    section: ClassVar[str] = "unity_args"
    editor_port: ClassVar[int] = 5004  # in ML-Agents
    port_advice: ClassVar[str] = "give --port, and set it in Unity too"

    def __init__(self, config: EnvConfig):
        super().__init__(config)
        self.settings: dict[str, float] = {name: config.section[name] for name in ENGINE_SETTINGS}
        if config.render_mode:
            self.settings |= {"time_scale": 1.0, "capture_frame_rate": 0}

    def open(
        self, number: int, seed: int, parameters: Mapping[str, Value], on_listening: Callable[[], object]
    ) -> SceneClient:
        from algorithm.adapters.unity.client import UnityClient  # ML-Agents' client, for this process only

        log_file = self.make_log_file(number)
        return UnityClient(
            None if self.path is None else self.find_program(),
            port=self.get_port(number),
            on_listening=on_listening,
            start_limit=None if self.path is None else self.timeout,
            limit=self.timeout,
            arguments=self.make_arguments(log_file),
            seed=seed,
            engine=self.settings,
            parameters=parameters,
            log=log_file,
        )

    def find_program(self) -> Path:
        return find_player(Path(self.path or ""), without="UnityCrashHandler")

    def make_arguments(self, log_file: Path | None) -> list[str]:
        """Return the arguments of a player's command line."""
        graphics = ["-nographics", "-batchmode"] if self.no_graphics else []
        return [*graphics, *(["-logFile", str(log_file)] if log_file else []), *self._additional_args]
