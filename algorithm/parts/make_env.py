"""The environments of a run: the adapters for training, for evaluation and for playing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from algorithm.adapters.adapter import Adapter, EnvConfig, Recording, UnsupportedEnvironment
from algorithm.adapters.curriculum import EnvironmentParameters
from algorithm.adapters.recording import choose_offscreen_backends
from algorithm.adapters.self_play import Opponents, SelfPlay
from algorithm.adapters.team_view import TeamView
from algorithm.adapters.wrappers import EnvGroups, OnDemand, PreviousActionReward, RestartOnFailure, SharedAgents
from algorithm.config.loader import Settings
from algorithm.config.registry import find_class
from algorithm.config.sections import BaseConfig, count_evaluation_episodes
from algorithm.errors import UserError
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.user_code import load_environment
from algorithm.replay.hindsight import ComputeGoalRewards

MAX_EVALUATION_ENVS = 20  # each of them plays several episodes if an evaluation has more


class Environments:
    """The environments of a run, as its settings describe them; the constructor opens none of them.

    Attributes:
        adapter_class: Adapter class of `base_config.env_type`.
        config: Configuration of the training environments. Its name is `base_config.env_name`; an `env.py` is
            imported when the environments are opened.
        opponents: Opponents of training and of evaluation; None if no opponents play.
    """

    opponents: tuple[Opponents, Opponents] | None = None

    def __init__(self, settings: Settings, folder: RunFolder):
        """Resolve the settings of the environments; `folder` holds env.py and receives log files."""
        self._settings, self._folder = settings, folder
        self.adapter_class: type[Adapter] = find_class("env_type", settings.base.env_type)
        self.config = make_env_config(settings.base)

    def open(self, n_envs: int, render_mode: str | None = None, recording: Recording | None = None) -> Adapter:
        """Open environments for playing, with the first lesson of each environment parameter.

        Args:
            n_envs: Number of environments.
            render_mode: "human" shows them; with "rgb_array" they return pictures.
            recording: Episodes of which videos are recorded, in environments that return pictures.

        Raises:
            UserError: If the settings do not suit the environment, or it has no pictures.
        """
        if render_mode == "rgb_array":
            self.prepare_recording()
        parameters = EnvironmentParameters(self._settings.reset)
        return self._open(n_envs=n_envs, render_mode=render_mode, recording=recording, parameters=parameters)

    def open_training(self, parameters: EnvironmentParameters, first_env: int = 0) -> Adapter:
        """Open the training environments, with the teams that the run folder records.

        Args:
            parameters: Environment parameters; they receive the returns of all episodes.
            first_env: Number of the first environment among those of all processes.

        Raises:
            UserError: If the settings do not suit the environment.
        """
        teams = {name: role.teams for name, role in self._folder.read_roles().items()}
        fields = {"on_episode_end": parameters.record_episode, "first_env": first_env}
        adapter = self._open(teams, self._settings.base.env_groups, parameters=parameters, **fields)
        return SelfPlay(adapter, self.opponents[0]) if self.opponents else adapter

    def prepare_recording(self) -> None:
        """Choose how environments render without a display; some libraries read that when they are imported.

        Raises:
            UserError: If videos cannot be recorded of environments of this type.
        """
        if not self.adapter_class.supports_recording:
            raise UserError(
                f"videos cannot be recorded of environments with env_type {self._settings.base.env_type.upper()}"
            )
        choose_offscreen_backends()

    def defer_evaluation(self, parameters: EnvironmentParameters, n_processes: int = 1) -> Adapter:
        """Return an adapter that opens the evaluation environments at the first evaluation.

        The environment parameters are those of training, whose environments are in `n_processes` processes.
        """
        first_env = self.config.n_envs * n_processes

        def open_environments() -> Adapter:
            adapter = self._open(n_envs=self.count_evaluation_envs(), parameters=parameters, first_env=first_env)
            return SelfPlay(adapter, self.opponents[1]) if self.opponents else adapter

        return OnDemand(open_environments)

    def count_evaluation_envs(self) -> int:
        """Return the number of environments in which evaluation episodes are played."""
        episodes = min(count_evaluation_episodes(self._settings.goal), MAX_EVALUATION_ENVS)
        return self.adapter_class.count_evaluation_envs(self.config, episodes)

    def open_goal_rewards(self) -> ComputeGoalRewards:
        """Return the function of goals of a further environment, which stays open. Raises UserError if it has none."""
        args = {**self.config.args, "vectorization_mode": "sync"} if self.config.args else {}
        adapter = self._open(n_envs=1, args=args)
        compute_rewards = adapter.find_goal_rewards()
        if compute_rewards is None:
            raise UserError(
                f"replay_config.hindsight: {self._settings.base.env_name} has no method compute_reward(achieved_goal, "
                "desired_goal, info)"
            )
        return compute_rewards

    def collect_metrics(self) -> Mapping[str, float]:
        """Return the metrics of the opponents, by name."""
        return self.opponents[0].collect_metrics() if self.opponents else {}

    def find_evaluation_obstacle(self) -> str | None:
        """Return why the run cannot be evaluated during training; None if it can."""
        return self.adapter_class.find_evaluation_obstacle(self.config)

    def _open(
        self, teams: Mapping[str, Sequence[str]] = MappingProxyType({}), n_groups: int = 1, **fields: Any
    ) -> Adapter:
        """Open environments, whose `fields` of EnvConfig differ from those of the training environments.

        `teams` are the lanes of a resumed run, {agent: the team of each lane}; `n_groups` groups take turns.
        """
        check_supported(self._settings)
        base, agents = self._settings.base, self._settings.agents
        name: str | Callable[..., Any] = ""
        if self.adapter_class.needs_name:
            name = self._folder.make_env or load_environment(self._folder.path, base.env_name)
        config = replace(self.config, name=name, log_folder=self._folder.log_folder, **fields)
        make_adapter: Callable[[EnvConfig], Adapter] = find_class("env_type", base.env_type)
        make: Callable[[], Adapter] = partial(make_adapter, config)
        if n_groups > 1:
            make = partial(EnvGroups, make_adapter, config, n_groups)
        try:
            adapter: Adapter = RestartOnFailure(make, base.max_env_restarts)
            if agents or adapter.shared_agents is not None:
                adapter = SharedAgents(adapter, agents, teams)
            if base.observe_previous:
                adapter = PreviousActionReward(adapter, base.observe_previous)
            team_size = getattr(self._settings.agent, "team_size", None)
            return TeamView(adapter, team_size) if team_size else adapter
        except UnsupportedEnvironment as error:
            raise UserError(f"base_config: {error}") from error


def make_env_config(base: BaseConfig) -> EnvConfig:
    """Return the configuration of the environments of the settings; its name is `base_config.env_name`."""
    section = find_class("env_type", base.env_type).section
    return EnvConfig(
        name=base.env_name or "",
        n_envs=base.n_envs,
        args=base.env_args,
        max_episode_steps=base.max_step_each_iter,
        timeout=base.env_timeout,
        unbounded_action_limit=base.unbounded_action_limit,
        wrappers=base.env_wrappers,
        ignore_observations=base.ignore_observations,
        section=getattr(base, section).model_dump() if section else {},
    )


def check_several_processes(base: BaseConfig, user: str, instead: str) -> None:
    """Raise UserError if only one process at a time can open the environments of a run.

    Args:
        base: The section `base_config` of the run.
        user: What opens environments in several processes, the subject of the message.
        instead: What to do instead.
    """
    adapter_class: type[Adapter] = find_class("env_type", base.env_type)
    if obstacle := adapter_class.find_evaluation_obstacle(make_env_config(base)):
        raise UserError(f"{user} opens environments in several processes, but {obstacle}: {instead}")


def check_several_runs(base: BaseConfig, user: str, instead: str) -> None:
    """Raise UserError if only one run at a time can open its environments; see `check_several_processes`."""
    check_several_processes(base, user, instead)
    config = make_env_config(base)
    for name in ("base_port", "log_folder"):
        if config.section.get(name) is not None:
            section = find_class("env_type", base.env_type).section
            raise UserError(
                f"{user} trains several runs, whose programs would all have base_config.{section}.{name}: set it to "
                f"null, or {instead}"
            )


def check_supported(settings: Settings) -> None:
    """Raise UserError for a setting that the adapter does not support."""
    base, adapter_class = settings.base, find_class("env_type", settings.base.env_type)
    unsupported = {
        f"base_config.{name}": advice
        for name, advice in adapter_class.unsupported_settings.items()
        if getattr(base, name)
    }
    if settings.reset and not adapter_class.takes_parameters:
        unsupported["reset_config"] = "base_config.env_args holds the arguments of its environments"
    for name, advice in unsupported.items():
        raise UserError(f"{name} is not for env_type {base.env_type.upper()}: {advice}")


def find_episode_limit(base: BaseConfig) -> int | None:
    """Return the limit of steps per episode that is set, or that Gymnasium registers; None if none is known."""
    limit = base.max_step_each_iter or base.env_args.get("max_episode_steps")
    if limit or not _has_id(base):
        return limit
    from algorithm.adapters.gym_ids import find_spec  # which loads Gymnasium

    return find_spec(str(base.env_name)).max_episode_steps


def describe_missing_limit(base: BaseConfig) -> str | None:
    """Return a line for the user if an environment of Gymnasium, which has been opened, limits no episode."""
    if not _has_id(base) or find_episode_limit(base):
        return None
    return (
        f"{base.env_name} registers no limit of steps per episode: if its episodes may never end, "
        "set base_config.max_step_each_iter, for example to 1000"
    )


def _has_id(base: BaseConfig) -> bool:
    """Return whether the environment is an id of Gymnasium."""
    return base.env_type.casefold() == "gym" and bool(base.env_name) and not str(base.env_name).endswith(".py")
