"""Tasks of the DeepMind Control Suite."""

import numpy as np
import pytest

from algorithm.adapters.dm_control import DmControlAdapter
from tests.adapters.configs import config, opened
from tests.adapters.contract import drive, make_contract

pytest.importorskip("shimmy")
pytest.importorskip("dm_control")


def swing_up(n_envs=1, name="cartpole-swingup", limit=None, **env_args):
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
