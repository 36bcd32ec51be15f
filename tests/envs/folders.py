"""The environment folders of the project, and a loader of their Python files."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from algorithm.parts.env_folder import PROJECT_ENVS

# Folders that a user adds to envs/ are not tested.
FOLDERS = [
    "atari/breakout",
    "atari/pong",
    "dm_control/cartpole_swingup",
    "dm_control/cheetah_run",
    "dm_control/humanoid_walk",
    "exploration/deep_sea",
    "exploration/noisy_tv",
    "gym/acrobot",
    "gym/cartpole",
    "gym/frozen_lake",
    "gym/lunar_lander",
    "gym/lunar_lander_continuous",
    "gym/mountain_car",
    "gym/mountain_car_continuous",
    "gym/pendulum",
    "hybrid/parking",
    "masked/coins",
    "masked/lights",
    "memory/cartpole_hidden_velocity",
    "memory/minigrid_memory",
    "memory/recall",
    "minatar/breakout",
    "minatar/space_invaders",
    "minigrid/doorkey_5x5",
    "minigrid/key_corridor_s3r1",
    "minigrid/multiroom_n4_s5",
    "mujoco/ant",
    "mujoco/half_cheetah",
    "mujoco/hopper",
    "mujoco/humanoid",
    "mujoco/inverted_pendulum",
    "mujoco/walker2d",
    "pybullet/inverted_pendulum",
    "unity/3dball",
    "unity/gridworld",
    "unity/roller",
    "visual/errand",
]
FOLDERS_WITH_CODE = [name for name in FOLDERS if (PROJECT_ENVS / name / "env.py").is_file()]


def load(name: str, file: str = "env.py") -> ModuleType:
    """Return a Python file of an environment folder as a module."""
    path = Path(PROJECT_ENVS / name / file)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_simulators() -> list[str]:
    """Return the folders whose env.py contains a simulator rather than a wrapper of a Gymnasium environment."""
    return [name for name in FOLDERS_WITH_CODE if load(name).make().spec is None]
