"""The adapters of a run: those for training, for evaluation and for playing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from algorithm.adapters.adapter import Adapter, EnvConfig, UnsupportedEnvironment
from algorithm.adapters.curriculum import EnvironmentParameters
from algorithm.adapters.wrappers.previous_action_reward import PreviousActionReward
from algorithm.adapters.wrappers.restart import RestartOnFailure
from algorithm.adapters.wrappers.shared_agents import SharedAgents
from algorithm.config.loader import Settings
from algorithm.config.registry import find_class
from algorithm.errors import UserError
from algorithm.runs.run_folder import RunFolder
from algorithm.training.history import WINDOW


def make_adapter(
    settings: Settings,
    folder: RunFolder,
    n_envs: int,
    render: bool = False,
    parameters: EnvironmentParameters | None = None,
    on_episode_end: Callable[[str, float], None] | None = None,
    n_other_envs: int = 0,
    teams: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Adapter:
    """Return an adapter for the environments of the settings.

    Args:
        settings: Settings of the run.
        folder: Folder of the run, or of the environment; it holds env.py and receives log files.
        n_envs: Number of environments.
        render: Whether the environments are shown.
        parameters: Environment parameters; None for those of the settings, each at its first lesson.
        on_episode_end: Receives role and return of each episode, from an adapter that takes parameters.
        n_other_envs: Number of environments of the run that other adapters have opened.
        teams: Lanes of a resumed run, as {agent: the team of each lane}.

    Raises:
        UserError: If the settings do not suit the environment.
    """
    base = settings.base
    adapter_class = find_adapter_class(settings)
    _check_settings(settings, adapter_class)
    name = folder.load_environment(settings) if adapter_class.needs_name else ""
    config = make_env_config(
        settings,
        name,
        n_envs,
        render=render,
        parameters=parameters or EnvironmentParameters(settings.reset),
        on_episode_end=on_episode_end,
        log_folder=folder.path,
        first_env=n_other_envs,
    )
    try:
        adapter: Adapter = RestartOnFailure(
            lambda: find_class("env_type", base.env_type)(config), base.max_env_restarts
        )
        if settings.agents or adapter.shared_agents is not None:
            adapter = SharedAgents(adapter, settings.agents, teams)
        return PreviousActionReward(adapter, base.observe_previous) if base.observe_previous else adapter
    except UnsupportedEnvironment as error:
        raise UserError(f"base_config: {error}") from error


def find_adapter_class(settings: Settings) -> type[Adapter]:
    """Return the adapter class of `base_config.env_type`."""
    return find_class("env_type", settings.base.env_type)


def make_env_config(settings: Settings, name: str | Callable[..., Any], n_envs: int, **fields: Any) -> EnvConfig:
    """Return the configuration of `n_envs` environments of the settings; `fields` are further fields of EnvConfig."""
    base = settings.base
    section = find_adapter_class(settings).section
    return EnvConfig(
        name=name,
        n_envs=n_envs,
        args=base.env_args,
        max_episode_steps=base.max_step_each_iter,
        timeout=base.env_timeout,
        unbounded_action_limit=base.unbounded_action_limit,
        wrappers=base.env_wrappers,
        ignore_observations=base.ignore_observations,
        section=getattr(base, section).model_dump() if section else {},
        **fields,
    )


def _check_settings(settings: Settings, adapter_class: type[Adapter]) -> None:
    """Raise UserError for a setting that the adapter does not support."""
    base = settings.base
    env_type = base.env_type.upper()
    for name, advice in adapter_class.unsupported_settings.items():
        if getattr(base, name):
            raise UserError(f"base_config.{name} is not for env_type {env_type}: {advice}")
    if settings.reset and not adapter_class.takes_parameters:
        raise UserError(
            f"reset_config is not for env_type {env_type}: base_config.env_args holds the arguments of its environments"
        )


def describe_missing_limit(settings: Settings) -> str | None:
    """Return a line for the user if an environment of Gymnasium, which has been opened, limits no episode."""
    base = settings.base
    limit = base.max_step_each_iter or base.env_args.get("max_episode_steps")
    if base.env_type.casefold() != "gym" or limit or not base.env_name or base.env_name.endswith(".py"):
        return None
    from algorithm.adapters.gym_ids import find_spec  # which loads Gymnasium

    if find_spec(base.env_name).max_episode_steps:
        return None
    return (
        f"{base.env_name} registers no limit of steps per episode: if its episodes may never end, "
        "set base_config.max_step_each_iter, for example to 1000"
    )


def count_evaluation_envs(settings: Settings) -> int:
    """Return the number of environments in which evaluation episodes are played."""
    config = make_env_config(settings, settings.base.env_name or "", settings.base.n_envs)
    return find_adapter_class(settings).count_evaluation_envs(config, WINDOW)


def find_evaluation_obstacle(settings: Settings) -> str | None:
    """Return why a run cannot be evaluated during training; None if it can."""
    config = make_env_config(settings, settings.base.env_name or "", settings.base.n_envs)
    return find_adapter_class(settings).find_evaluation_obstacle(config)
