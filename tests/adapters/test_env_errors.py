"""Errors of environments with a missing package."""

import pytest
from gymnasium.error import NamespaceNotFound

from algorithm import program
from algorithm.adapters.env_errors import make_missing_error
from tests.missing_packages import run_without

OPEN = """
from algorithm.adapters.adapter import EnvConfig, UnsupportedEnvironment
from algorithm.config.registry import find_class

try:
    find_class("env_type", {env_type!r})(EnvConfig(name={env_name!r}, args={args}))
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
    args = {"vectorization_mode": how} if how else {}
    message = run_without(package, OPEN.format(env_type=env_type, env_name=env_name, args=args))
    start, _, end = message.partition(" (No module named ")
    name = f"dm_control/{env_name}" if env_type == "DM_CONTROL" else env_name
    assert start == f"the environment {name!r} needs the extra {extra}"
    assert end.endswith(f'): pip install -e ".[{extra}]"')
    assert "\n" not in end


@pytest.mark.parametrize(("is_checkout", "package"), [(True, '-e ".[minatar]"'), (False, '"samara-rl[minatar]"')])
def test_a_missing_namespace_is_an_error_with_its_extra(is_checkout, package, monkeypatch):
    """If MinAtar is not installed, it has no entry point."""
    monkeypatch.setattr(program, "IS_CHECKOUT", is_checkout)
    error = make_missing_error("MinAtar/Breakout-v1", NamespaceNotFound("Namespace MinAtar not found."))
    assert str(error).endswith(f"needs the extra minatar (Namespace MinAtar not found.): pip install {package}")
