"""Families of environments that Gymnasium opens if their packages are installed."""

import numpy as np
import pytest

from algorithm.adapters.gym import GymAdapter
from algorithm.adapters.gym_ids import find_id
from algorithm.adapters.wrappers import EnvGroups
from tests.adapters.configs import config, open_gym
from tests.adapters.contract import assert_groups_play_the_same, drive, make_contract

POOL = config("CartPole-v1", 3, {"vectorization_mode": "envpool"}, max_episode_steps=20)
TestMinAtar = make_contract(
    lambda: GymAdapter(config("MinAtar/Breakout-v1", 3, {}, max_episode_steps=30)), package="minatar"
)
TestEnvPool = make_contract(lambda: GymAdapter(POOL), package="envpool")
TestGroupsOfEnvPool = make_contract(lambda: EnvGroups(GymAdapter, POOL, 2), package="envpool")


def test_groups_of_envpool_have_the_episodes_of_an_undivided_pool():
    pytest.importorskip("envpool")
    groups = assert_groups_play_the_same(GymAdapter, POOL, 2)
    groups.send({"agent": np.zeros((groups.reset(0)["agent"].lane.size, 1), np.float32)})  # closed while threads step


def test_minatar_is_found_by_name_and_has_the_minimal_set_of_actions():
    pytest.importorskip("minatar")
    assert find_id("space_invaders", "minatar") == "MinAtar/SpaceInvaders-v1"
    adapter = open_gym("MinAtar/SpaceInvaders-v1")
    assert adapter.roles["agent"].action_spec.branches == (4,)
    assert adapter.reset(0)["agent"].obs["obs"].size == 600


def test_pybullet_is_opened_by_its_module():
    pytest.importorskip("pybullet_envs_gymnasium")
    adapter = open_gym("pybullet_envs_gymnasium:HopperBulletEnv-v0", 2, max_episode_steps=5)
    assert drive(adapter, 5)[-1].is_bootstrap_row.all()
