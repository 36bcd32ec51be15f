"""Errors of environments with a missing package, and of ids that need another env_type."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gymnasium.error import NamespaceNotFound

from algorithm import program
from algorithm.adapters.adapter import UnsupportedEnvironment
from algorithm.adapters.env_errors import make_missing_error
from algorithm.adapters.gym import GymAdapter
from tests.adapters.configs import config

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from algorithm.adapters.adapter import EnvConfig, UnsupportedEnvironment
from algorithm.config.registry import find_class

try:
    mode = {"vectorization_mode": sys.argv[4]} if sys.argv[4] else {}
    find_class("env_type", sys.argv[3])(EnvConfig(name=sys.argv[2], args=mode))
except UnsupportedEnvironment as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("package", "env_name", "env_type", "how", "extra", "needed"),
    [
        ("mujoco", "HalfCheetah-v5", "GYM", "", "mujoco", ""),
        ("imageio", "gymnasium:InvertedPendulum-v5", "GYM", "", "mujoco", ""),
        ("Box2D", "LunarLander-v3", "GYM", "", "box2d", ""),
        ("ale_py", "Pong", "ATARI", "", "atari", ""),
        ("cv2", "ALE/Pong-v5", "ATARI", "sync", "atari", "ale_py"),
        ("envpool", "ALE/Pong-v5", "ATARI", "envpool", "envpool", "ale_py"),
        ("envpool", "CartPole-v1", "GYM", "envpool", "envpool", ""),
        ("shimmy", "cartpole-swingup", "DM_CONTROL", "", "dm-control", "dm_control"),
        ("dm_control", "cartpole-swingup", "DM_CONTROL", "", "dm-control", ""),
        ("mujoco", "cartpole-swingup", "DM_CONTROL", "", "dm-control", "dm_control"),
        ("pettingzoo", "classic/rps_v2", "PETTINGZOO", "", "pettingzoo", ""),
        ("minatar", "minatar.gym:MinAtar/Breakout-v1", "GYM", "", "minatar", ""),
        ("minigrid", "minigrid:MiniGrid-DoorKey-5x5-v0", "GYM", "", "minigrid", ""),
        ("pybullet_envs_gymnasium", "pybullet_envs_gymnasium:HopperBulletEnv-v0", "GYM", "", "pybullet", ""),
    ],
)
def test_a_missing_package_is_one_line_with_the_extra(package, env_name, env_type, how, extra, needed):
    if needed:
        pytest.importorskip(needed)
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, env_name, env_type, how],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    start, _, end = process.stdout.strip().partition(" (No module named ")
    name = f"dm_control/{env_name}" if env_type == "DM_CONTROL" else env_name
    assert start == f"the environment {name!r} needs the extra {extra}"
    assert end.endswith(f'): pip install -e ".[{extra}]"')
    assert "\n" not in end


def test_a_missing_namespace_is_an_error_with_its_extra():
    """If MinAtar is not installed, it has no entry point."""
    error = make_missing_error("MinAtar/Breakout-v1", NamespaceNotFound("Namespace MinAtar not found."))
    assert str(error).endswith('needs the extra minatar (Namespace MinAtar not found.): pip install -e ".[minatar]"')


def test_an_extra_of_the_installed_package_is_named_by_its_package(monkeypatch):
    monkeypatch.setattr(program, "IS_CHECKOUT", False)
    error = make_missing_error("MinAtar/Breakout-v1", NamespaceNotFound("Namespace MinAtar not found."))
    assert str(error).endswith('pip install "samara-rl[minatar]"')


@pytest.mark.parametrize(("name", "env_type"), [("ALE/Pong-v5", "ATARI"), ("dm_control/walker-run-v0", "DM_CONTROL")])
def test_an_id_that_needs_another_env_type_is_an_error_with_the_type(name, env_type):
    with pytest.raises(UnsupportedEnvironment, match=f"{name!r} needs env_type {env_type}: set base_config.env_type"):
        GymAdapter(config(name, 1, {}))
