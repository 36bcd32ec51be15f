"""Godot scenes: exported, in the engine with their project, or in the editor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from algorithm.adapters.godot.launch import GodotLaunchConfig
from algorithm.adapters.scenes.adapter import SceneAdapter
from algorithm.adapters.scenes.launch import LaunchConfig


class GodotAdapter(SceneAdapter):
    """An adapter of Godot scenes; each policy of their agents is a role. Raises what a SceneAdapter does."""

    launch_config: ClassVar[type[LaunchConfig]] = GodotLaunchConfig
    section: ClassVar[str | None] = GodotLaunchConfig.section
    unsupported_settings: ClassVar[Mapping[str, str]] = {
        "max_step_each_iter": "the scene limits its episodes (reset_after); base_config.godot_args.time_limit names it",
        "env_timeout": "base_config.godot_args.timeout_wait is the limit",
        "env_wrappers": "they wrap environments in Python",
    }
