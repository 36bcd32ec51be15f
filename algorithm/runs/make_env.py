"""The simulators of a run: those it trains in, those it is evaluated in, and those it plays in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from algorithm.adapters.adapter import Adapter, EnvConfig, UnsupportedEnvironment
from algorithm.adapters.unity.adapter import OnEpisodeEnd, UnityAdapter
from algorithm.adapters.unity.curriculum import SceneParameters
from algorithm.adapters.unity.launch import EngineSettings, LaunchConfig
from algorithm.adapters.wrappers.previous_action_reward import PreviousActionReward
from algorithm.adapters.wrappers.restart import RestartOnFailure
from algorithm.adapters.wrappers.shared_agents import SharedAgents
from algorithm.config.loader import Settings
from algorithm.config.registry import find_class
from algorithm.errors import UserError
from algorithm.runs.run_folder import RunFolder
from algorithm.training.history import WINDOW

EDITOR = "editor"  # as unity_args.build_path
PLATFORMS = {"win32": "windows", "darwin": "macos"}  # by sys.platform; others are linux
# What Unity decides by itself, and how.
UNITY_REPLACEMENTS: Mapping[str, str] = {
    "env_args": "reset_config holds what a scene is told",
    "max_step_each_iter": "Max Step of the agent in Unity cuts its episodes",
    "env_timeout": "base_config.unity_args.timeout_wait is the limit",
    "env_wrappers": "they wrap environments of Python",
    "ignore_observations": "leave the sensor out in Unity",
}


def make_adapter(
    settings: Settings,
    folder: RunFolder,
    n_envs: int,
    render: bool = False,
    scene_parameters: SceneParameters | None = None,
    on_episode_end: OnEpisodeEnd | None = None,
    n_other_envs: int = 0,
    teams: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Adapter:
    """Return the simulator of the settings; `n_other_envs` is the number of other environments that are open.

    A scene of Unity takes its parameters from `scene_parameters`, and passes its episodes to `on_episode_end`. `teams` are the lanes of a
    resumed run: {agent: the team of each lane}.
    """
    base = settings.base
    if is_unity(settings):
        make = _prepare_unity(
            settings,
            folder,
            n_envs,
            render,
            scene_parameters or SceneParameters(settings.reset),
            on_episode_end,
            n_other_envs,
        )
    else:
        make = _prepare_adapter(settings, folder, n_envs, render)
    try:
        adapter: Adapter = RestartOnFailure(make, base.max_env_restarts)
        if settings.agents or adapter.shared_agents is not None:
            adapter = SharedAgents(adapter, settings.agents, teams)
        return PreviousActionReward(adapter, base.observe_previous) if base.observe_previous else adapter
    except UnsupportedEnvironment as error:
        raise UserError(f"base_config: {error}") from error


def describe_missing_limit(settings: Settings) -> str | None:
    """Return a line for the user if an environment of Gymnasium, which has been opened, limits no episode."""
    base = settings.base
    limit = base.max_step_each_iter or base.env_args.get("max_episode_steps")
    if base.env_type.casefold() != "gym" or limit or base.env_name.endswith(".py"):
        return None
    from algorithm.adapters.gym_ids import find_spec  # which loads Gymnasium

    if find_spec(base.env_name).max_episode_steps:
        return None
    return (
        f"{base.env_name} registers no limit of steps per episode: if its episodes may never end, "
        "set base_config.max_step_each_iter, for example to 1000"
    )


def count_evaluation_envs(settings: Settings) -> int:
    """As many as there are episodes to play; no more processes than training has, though, and one scene of Unity."""
    if is_unity(settings):
        return 1
    asynchronous = settings.base.env_args.get("vectorization_mode") == "async"
    return settings.base.n_envs if asynchronous else WINDOW


def is_unity(settings: Settings) -> bool:
    """Whether the simulator is Unity."""
    return settings.base.env_type.casefold() == "unity"


def is_editor(settings: Settings) -> bool:
    """Whether it is the Unity editor, of which there is one."""
    return is_unity(settings) and settings.base.unity_args.build_path == EDITOR


def _prepare_adapter(settings: Settings, folder: RunFolder, n_envs: int, render: bool) -> Callable[[], Adapter]:
    base = settings.base
    if settings.reset:
        raise UserError(
            "reset_config is for env_type UNITY; base_config.env_args holds what other environments are told"
        )
    cls, config = (
        find_class("env_type", base.env_type),
        make_env_config(settings, folder.load_environment(settings), n_envs, render),
    )
    return lambda: cls(config)


def make_env_config(settings: Settings, name: str | Callable[..., Any], n_envs: int, render: bool = False) -> EnvConfig:
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


def _prepare_unity(
    settings: Settings,
    folder: RunFolder,
    n_envs: int,
    render: bool,
    scene_parameters: SceneParameters,
    on_episode_end: OnEpisodeEnd | None,
    n_other_envs: int,
) -> Callable[[], Adapter]:
    base = settings.base
    for name, advice in UNITY_REPLACEMENTS.items():
        if getattr(base, name):
            raise UserError(f"base_config.{name} is not for env_type UNITY: {advice}")
    if is_editor(settings) and n_envs > 1:
        raise UserError(
            f"base_config.n_envs is {n_envs}, but there is one Unity editor; use 1, or players (build_path)"
        )
    launch = make_launch_config(settings, render)
    launch = replace(launch, first_number=n_other_envs, log_folder=launch.log_folder or str(folder.path))
    return lambda: UnityAdapter(launch, n_envs, base.unity_args.agents, scene_parameters, on_episode_end)


def make_launch_config(settings: Settings, render: bool = False) -> LaunchConfig:
    """How the scenes of the settings are opened. Raises UserError where there is none for this platform."""
    args = settings.base.unity_args
    engine = EngineSettings(
        args.time_scale, args.quality_level, args.width, args.height, args.target_frame_rate, args.capture_frame_rate
    )
    if render:
        engine = replace(engine, time_scale=1.0, capture_frame_rate=0)
    return LaunchConfig(
        _choose_build(args.build_path),
        args.base_port,
        args.no_graphics and not render,
        args.timeout_wait,
        tuple(args.additional_args),
        args.log_folder,
        engine,
    )


def _choose_build(build_path: str | Mapping[str, str]) -> str | None:
    """The player for this platform; None for the editor. Raises UserError where there is none for it."""
    if not isinstance(build_path, str):
        platform = PLATFORMS.get(sys.platform, "linux")
        if platform not in build_path:
            raise UserError(
                f"base_config.unity_args.build_path has no player for {platform}, only for {', '.join(build_path)}"
            )
        build_path = build_path[platform]
    return None if build_path == EDITOR else build_path
