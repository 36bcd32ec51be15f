"""The simulators of a run: those it trains in, those it is evaluated in, and those it plays in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from algorithm.adapters.adapter import Adapter, EnvConfig, UnsupportedEnvironment
from algorithm.adapters.unity.adapter import Ended, UnityAdapter
from algorithm.adapters.unity.curriculum import Scene
from algorithm.adapters.unity.launch import Engine, Launch
from algorithm.adapters.wrappers.previous_action_reward import Remembering
from algorithm.adapters.wrappers.restart import Restarting
from algorithm.adapters.wrappers.shared_agents import SharedAgents
from algorithm.config.loader import Settings
from algorithm.config.registry import find
from algorithm.errors import UserError
from algorithm.runs.run_folder import RunFolder
from algorithm.training.history import WINDOW

EDITOR = "editor"  # as unity_args.build_path
PLATFORMS = {"win32": "windows", "darwin": "macos"}  # by sys.platform; others are linux
# What Unity decides by itself, and how.
UNITYS_OWN: Mapping[str, str] = {
    "env_args": "reset_config holds what a scene is told",
    "max_step_each_iter": "Max Step of the agent in Unity cuts its episodes",
    "env_timeout": "base_config.unity_args.timeout_wait is the limit",
    "env_wrappers": "they wrap environments of Python",
    "ignore_observations": "leave the sensor out in Unity",
}


def make_adapter(
    settings: Settings,
    folder: RunFolder,
    copies: int,
    render: bool = False,
    scene: Scene | None = None,
    ended: Ended | None = None,
    beside: int = 0,
    teams: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Adapter:
    """Return the simulator of the settings; `beside` is the number of other environments that are open.

    A scene of Unity takes its parameters from `scene`, and passes its episodes to `ended`. `teams` are the lanes of a
    resumed run: {agent: the team of each lane}.
    """
    base = settings.base
    if of_unity(settings):
        make = _unity(settings, folder, copies, render, scene or Scene(settings.reset), ended, beside)
    else:
        make = _other(settings, folder, copies, render)
    try:
        adapter: Adapter = Restarting(make, base.max_env_restarts)
        if settings.agents or adapter.shared_agents is not None:
            adapter = SharedAgents(adapter, settings.agents, teams)
        return Remembering(adapter, base.observe_previous) if base.observe_previous else adapter
    except UnsupportedEnvironment as error:
        raise UserError(f"base_config: {error}") from error


def missing_limit(settings: Settings) -> str | None:
    """Return a line for the user if an environment of Gymnasium, which has been opened, limits no episode."""
    base = settings.base
    limited = base.max_step_each_iter or base.env_args.get("max_episode_steps")
    if base.env_type.casefold() != "gym" or limited or base.env_name.endswith(".py"):
        return None
    from algorithm.adapters.gym_ids import registered  # which loads Gymnasium

    if registered(base.env_name).max_episode_steps:
        return None
    return (
        f"{base.env_name} registers no limit of steps per episode: if its episodes may never end, "
        "set base_config.max_step_each_iter, for example to 1000"
    )


def evaluation_copies(settings: Settings) -> int:
    """As many as there are episodes to play; no more processes than training has, though, and one scene of Unity."""
    if of_unity(settings):
        return 1
    asynchronous = settings.base.env_args.get("vectorization_mode") == "async"
    return settings.base.n_envs if asynchronous else WINDOW


def of_unity(settings: Settings) -> bool:
    """Whether the simulator is Unity."""
    return settings.base.env_type.casefold() == "unity"


def in_editor(settings: Settings) -> bool:
    """Whether it is the Unity editor, of which there is one."""
    return of_unity(settings) and settings.base.unity_args.build_path == EDITOR


def _other(settings: Settings, folder: RunFolder, copies: int, render: bool) -> Callable[[], Adapter]:
    base = settings.base
    if settings.reset:
        raise UserError(
            "reset_config is for env_type UNITY; base_config.env_args holds what other environments are told"
        )
    cls, config = find("env_type", base.env_type), env_config(settings, folder.environment(settings), copies, render)
    return lambda: cls(config)


def env_config(settings: Settings, name: str | Callable[..., Any], n_envs: int, render: bool = False) -> EnvConfig:
    """Return the record from which `n_envs` environments of the settings are opened."""
    base = settings.base
    return EnvConfig(
        name=name,
        n_envs=n_envs,
        args=base.env_args,
        max_episode_steps=base.max_step_each_iter,
        render=render,
        timeout=base.env_timeout,
        unbounded_action_limit=base.unbounded_action_limit,
        wrappers=base.env_wrappers,
        ignore_observations=base.ignore_observations,
    )


def _unity(
    settings: Settings,
    folder: RunFolder,
    copies: int,
    render: bool,
    scene: Scene,
    ended: Ended | None,
    beside: int,
) -> Callable[[], Adapter]:
    base = settings.base
    for name, instead in UNITYS_OWN.items():
        if getattr(base, name):
            raise UserError(f"base_config.{name} is not for env_type UNITY: {instead}")
    if in_editor(settings) and copies > 1:
        raise UserError(
            f"base_config.n_envs is {copies}, but there is one Unity editor; use 1, or players (build_path)"
        )
    launch = launch_of(settings, render)
    launch = replace(launch, first=beside, log_folder=launch.log_folder or str(folder.path))
    return lambda: UnityAdapter(launch, copies, base.unity_args.agents, scene, ended)


def launch_of(settings: Settings, render: bool = False) -> Launch:
    """How the scenes of the settings are opened. Raises UserError where there is none for this platform."""
    args = settings.base.unity_args
    engine = Engine(
        args.time_scale, args.quality_level, args.width, args.height, args.target_frame_rate, args.capture_frame_rate
    )
    if render:
        engine = replace(engine, time_scale=1.0, capture_frame_rate=0)
    return Launch(
        _build_path(args.build_path),
        args.base_port,
        args.no_graphics and not render,
        args.timeout_wait,
        tuple(args.additional_args),
        args.log_folder,
        engine,
    )


def _build_path(given: str | Mapping[str, str]) -> str | None:
    """The player for this platform; None for the editor. Raises UserError where there is none for it."""
    if not isinstance(given, str):
        platform = PLATFORMS.get(sys.platform, "linux")
        if platform not in given:
            raise UserError(
                f"base_config.unity_args.build_path has no player for {platform}, only for {', '.join(given)}"
            )
        given = given[platform]
    return None if given == EDITOR else given
