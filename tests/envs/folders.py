"""The environment folders of the project, a loader of their Python files, and a player of their simulators."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from algorithm.parts.env_folder import PROJECT_ENVS

# Folders that a user adds to envs/ are not tested.
GROUPS = {
    "atari": "breakout pong",
    "cooperative": "escape",
    "dm_control": "cartpole_swingup cheetah_run humanoid_walk walker_run",
    "entities": "collect",
    "exploration": "deep_sea noisy_tv",
    "goals": "point_maze",
    "godot": "ball chase",
    "gym": "acrobot cartpole frozen_lake lunar_lander lunar_lander_continuous mountain_car mountain_car_continuous "
    "pendulum",
    "hybrid": "parking",
    "masked": "coins lights",
    "memory": "cartpole_hidden_velocity minigrid_memory recall",
    "minatar": "breakout space_invaders",
    "minigrid": "doorkey_5x5 key_corridor_s3r1 multiroom_n4_s5",
    "mujoco": "ant half_cheetah hopper humanoid inverted_pendulum walker2d",
    "pettingzoo": "connect_four tictactoe",
    "pybullet": "inverted_pendulum",
    "unity": "3dball gridworld roller",
    "visual": "errand",
}
FOLDERS = [f"{group}/{name}" for group, names in GROUPS.items() for name in names.split()]
FOLDERS_WITH_CODE = [name for name in FOLDERS if (PROJECT_ENVS / name / "env.py").is_file()]


def load(name: str, file: str = "env.py") -> ModuleType:
    """Return a Python file of an environment folder as a module."""
    path = Path(PROJECT_ENVS / name / file)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_simulators() -> list[str]:
    """Return the folders whose env.py contains a simulator of one agent, not a wrapper of a Gymnasium environment."""
    teams = [name for name in FOLDERS_WITH_CODE if name.startswith("cooperative/")]
    return [name for name in FOLDERS_WITH_CODE if name not in teams and load(name).make().spec is None]


@dataclass
class Episode:
    """An episode from its first observation to its last one."""

    observations: list[Any]
    rewards: list[float]
    info: dict[str, Any]

    @property
    def total(self) -> float:
        """Return the episode return."""
        return sum(self.rewards)


def play(env: Any, select: Callable[[Any], Any], seed: int | None = None, *, has_limit: bool = False) -> Episode:
    """Play an episode with the actions that `select` returns for its observations, until it terminates.

    It may be truncated instead if `has_limit`.
    """
    obs, info = env.reset(seed=seed)
    episode, terminated, truncated = Episode([obs], [], info), False, False
    while not terminated and not truncated:
        obs, reward, terminated, truncated, episode.info = env.step(select(obs))
        assert has_limit or not truncated
        episode.observations.append(obs)
        episode.rewards.append(reward)
    return episode


def take(actions: Iterable[int]) -> Callable[[Any], int]:
    """Return a function that returns the next of some actions, whatever the observation."""
    remaining = iter(actions)
    return lambda obs: int(next(remaining))
