"""Episodes as Gymnasium's environments return them: datasets of Minari, and play with the keyboard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from algorithm.adapters.adapter import EnvConfig, EnvironmentCrashed, UnsupportedEnvironment
from algorithm.adapters.spaces import AgentSpaces
from algorithm.adapters.vector import make_vector
from algorithm.demonstrations import Demonstrations
from algorithm.errors import UserError
from algorithm.program import DEFAULT_ROLE, get_install_command


@dataclass(frozen=True, kw_only=True)
class EnvEpisode:
    """An episode of T steps as an environment returned it, batched: T+1 observations, T actions and rewards."""

    observations: Any
    actions: Any
    rewards: Sequence[float]
    terminated: bool


def gymnasium_play(env: Any, **arguments: Any) -> None:
    """Play an environment with Gymnasium, which opens a window with pygame."""
    from gymnasium.utils.play import play

    play(env, **arguments)


def convert_episodes(spaces: AgentSpaces, episodes: Iterable[EnvEpisode]) -> Demonstrations:
    """Return episodes as demonstrations; the observation after a truncated episode is a bootstrap row.

    Raises:
        ValueError: There is no episode, or it does not fit the spaces.
    """
    parts = []
    for episode in episodes:
        length, is_cut = len(episode.rewards), not episode.terminated
        rows = length + is_cut
        if not length:
            continue
        obs = spaces(episode.observations, [None] * (length + 1))
        action = spaces.role.action_spec.from_env_units(episode.actions)
        is_bootstrap_row = np.arange(rows) == length
        alive = np.ones(rows, bool)
        alive[length - 1] = is_cut
        parts.append(
            Demonstrations(
                role=spaces.role,
                obs={name: values[:rows] for name, values in obs.items()},
                action=np.concatenate((action, action[-1:]))[:rows],
                reward=np.append(np.asarray(episode.rewards, np.float32), np.float32(0))[:rows],
                alive=alive,
                first=np.arange(rows) == 0,
                is_bootstrap_row=is_bootstrap_row,
            )
        )
    if not parts:
        raise ValueError("there is no episode")
    return Demonstrations.join(parts)


def read_dataset(name: str) -> dict[str, Demonstrations]:
    """Return a dataset of Minari that is on this machine.

    Raises UserError if Minari or the dataset is missing, and for spaces that are not supported.
    """
    try:
        import minari
    except ImportError as error:
        raise UserError(f"minari:{name} needs Minari: {get_install_command('minari')}") from error
    try:
        dataset = minari.load_dataset(name)
        spaces = AgentSpaces(dataset.observation_space, dataset.action_space, EnvConfig(name=name), lambda: ())
        episodes = (
            EnvEpisode(
                observations=each.observations,
                actions=each.actions,
                rewards=each.rewards,
                terminated=bool(each.terminations[-1]),
            )
            for each in dataset.iterate_episodes()
        )
        return {DEFAULT_ROLE: convert_episodes(spaces, episodes)}
    except (UnsupportedEnvironment, EnvironmentCrashed, ValueError, OSError, KeyError) as error:
        raise UserError(f"minari:{name} cannot be read: {' '.join(str(error).split())}") from error


def play_by_hand(
    config: EnvConfig, keys: Mapping[str, int], play: Callable[..., object] = gymnasium_play
) -> dict[str, Demonstrations]:
    """Return the episodes that a person plays with the keyboard in a window, until it is closed.

    Args:
        config: The environment of Gymnasium.
        keys: The discrete action of each key; without any, those that the environment defines.
        play: Plays, as the function of this name in Gymnasium does.

    Raises:
        UserError: Nothing was played to its end.
        EnvironmentStartError: The environment does not start.
        UnsupportedEnvironment: It has no keys, or a space that is not supported.
    """
    episodes: list[EnvEpisode] = []
    steps: list[tuple[Any, Any, Any, float]] = []

    def record(before: Any, after: Any, action: Any, reward: float, terminated: bool, truncated: bool, _: Any) -> None:
        observation = before if steps else before[0]  # of a reset, with its info
        steps.append((observation, after, action, reward))
        if terminated or truncated:
            observations = [each[0] for each in steps] + [after]
            actions, rewards = [each[2] for each in steps], [each[3] for each in steps]
            episodes.append(
                EnvEpisode(observations=observations, actions=actions, rewards=rewards, terminated=terminated)
            )
            steps.clear()

    env = make_vector(replace(config, n_envs=1, render_mode="rgb_array")).envs[0]  # type: ignore[attr-defined]
    spaces = AgentSpaces(env.observation_space, env.action_space, config, lambda: ())
    if not keys and not env.has_wrapper_attr("get_keys_to_action"):
        raise UnsupportedEnvironment(f"{config.name} defines no keys: give them, as in --keys a=1 w=2 d=3")
    play(env, callback=record, **({"keys_to_action": dict(keys), "noop": 0} if keys else {}))
    try:
        return {DEFAULT_ROLE: convert_episodes(spaces, episodes)}
    except ValueError as error:
        raise UserError(f"nothing was recorded: {error}") from error
