"""The environment folders of the project, and the code in them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from algorithm.runs.env_folder import PROJECT_ENVS

# Those of the project: a folder that a user adds next to them is the user's to test.
FOLDERS = [
    "atari/breakout",
    "atari/pong",
    "dm_control/cartpole_swingup",
    "gym/acrobot",
    "gym/cartpole",
    "gym/frozen_lake",
    "gym/lunar_lander",
    "gym/lunar_lander_continuous",
    "gym/mountain_car_continuous",
    "gym/pendulum",
    "hybrid/parking",
    "masked/coins",
    "masked/lights",
    "memory/cartpole_hidden_velocity",
    "memory/recall",
    "minatar/breakout",
    "minatar/space_invaders",
    "mujoco/half_cheetah",
    "mujoco/inverted_pendulum",
    "pybullet/inverted_pendulum",
    "unity/3dball",
    "unity/gridworld",
    "unity/roller",
    "visual/errand",
]
OWN = [name for name in FOLDERS if (PROJECT_ENVS / name / "env.py").is_file()]


def load(name: str, file: str = "env.py") -> ModuleType:
    """A Python file of an environment's folder as a module."""
    path = Path(PROJECT_ENVS / name / file)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def simulators() -> list[str]:
    """Folders whose env.py is a simulator itself rather than a wrapper around one of Gymnasium's."""
    return [name for name in OWN if load(name).make().spec is None]
