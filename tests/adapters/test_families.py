"""Families of environments that are opened if their packages are installed: MinAtar, PyBullet, the Control Suite."""

import numpy as np
import pytest

from algorithm.adapters.dm_control import DmControlAdapter
from algorithm.adapters.gym import GymAdapter
from algorithm.adapters.gym_ids import find_id
from algorithm.adapters.wrappers import EnvGroups
from tests.adapters.configs import config, open_gym, opened
from tests.adapters.contract import assert_groups_play_the_same, drive, make_contract

POOL = config("CartPole-v1", 3, {"vectorization_mode": "envpool"}, max_episode_steps=20)
TestMinAtar = make_contract(lambda: GymAdapter(config("MinAtar/Breakout-v1", 3, {}, 30)), package="minatar")
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


def swing_up(n_envs=1, name="cartpole-swingup", limit=None, **env_args):
    pytest.importorskip("shimmy")
    pytest.importorskip("dm_control")
    return opened(DmControlAdapter(config(name, n_envs, env_args, limit)))


TestSync = make_contract(lambda: swing_up(2, limit=20), ticks=60)


@pytest.mark.parametrize("name", ["cartpole-swingup", "dm_control/cartpole-swingup-v0", "dm_control/cartpole-swingup"])
def test_observations_are_named_and_float32(name):
    role = swing_up(name=name).roles["agent"]
    assert {key: (spec.shape, spec.dtype) for key, spec in role.obs_specs.items()} == {
        "position": ((3,), "float32"),
        "velocity": ((2,), "float32"),
    }
    assert (role.action_spec.continuous, role.action_spec.branches) == (1, ())


def test_1000_steps_end_in_truncation():
    """The discount of the suite is 1 at the time limit."""
    steps = drive(swing_up(), 1001, action=0.3)
    assert [t for t, step in enumerate(steps) if step.first[0]] == [0, 1001]
    assert [t for t, step in enumerate(steps) if step.is_bootstrap_row[0]] == [1000]
    reward = np.array([step.reward[0] for step in steps])
    assert all(step.alive[0] for step in steps)
    assert (reward[1:1001] > 0).any() and (reward <= 1).all()


def test_worker_processes_use_the_arguments_of_a_task():
    adapter = swing_up(vectorization_mode="async", task_kwargs={"time_limit": 0.05})
    last = drive(adapter, 5)[-1]
    assert last.is_bootstrap_row.all() and last.alive.all()
