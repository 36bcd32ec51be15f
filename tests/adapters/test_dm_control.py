"""Tasks of the DeepMind Control Suite."""

import numpy as np
import pytest

from algorithm.adapters.adapter import UnsupportedEnvironment
from algorithm.adapters.dm_control import DmControlAdapter
from tests.adapters.configs import config
from tests.adapters.contract import make_contract

pytest.importorskip("shimmy")
pytest.importorskip("dm_control")


TestSync = make_contract(lambda: DmControlAdapter(config("cartpole-swingup", 2, {}, max_episode_steps=20)), ticks=60)


@pytest.mark.parametrize("name", ["cartpole-swingup", "dm_control/cartpole-swingup-v0", "dm_control/cartpole-swingup"])
def test_observations_are_named_and_float32(name):
    adapter = DmControlAdapter(config(name, 1, {}))
    role = adapter.roles["agent"]
    assert {key: (spec.shape, spec.dtype) for key, spec in role.obs_specs.items()} == {
        "position": ((3,), "float32"),
        "velocity": ((2,), "float32"),
    }
    assert (role.action_spec.continuous, role.action_spec.branches) == (1, ())
    adapter.close()


def test_1000_steps_end_in_truncation():
    """The discount of the suite is 1 at the time limit."""
    adapter = DmControlAdapter(config("cartpole-swingup", 1, {}))
    step, rows = adapter.reset(0)["agent"], []
    for _ in range(1002):
        rows.append((bool(step.first[0]), bool(step.is_bootstrap_row[0]), bool(step.alive[0]), float(step.reward[0])))
        step = adapter.step({"agent": np.full((1, 1), 0.3, np.float32)})["agent"]
    first, final, alive, reward = np.array(rows).T
    assert np.flatnonzero(first).tolist() == [0, 1001]
    assert np.flatnonzero(final).tolist() == [1000]
    assert alive.all()
    assert (reward[1:1001] > 0).any() and (reward <= 1).all()
    adapter.close()


def test_worker_processes_use_the_arguments_of_a_task():
    adapter = DmControlAdapter(
        config("cartpole-swingup", 1, {"vectorization_mode": "async", "task_kwargs": {"time_limit": 0.05}})
    )
    step = adapter.reset(0)["agent"]
    for _ in range(5):
        step = adapter.step({"agent": np.zeros((1, 1), np.float32)})["agent"]
    assert step.is_bootstrap_row.all() and step.alive.all()
    adapter.close()


def test_lanes_and_seeds_differ():
    adapter = DmControlAdapter(config("cartpole-swingup", 2, {}))
    once, other = (adapter.reset(seed)["agent"].obs["position"].copy() for seed in (3, 9))
    assert not (once[0] == once[1]).all()
    assert not (once == other).any(1).all()
    adapter.close()


@pytest.mark.parametrize(
    ("name", "env_args", "message"),
    [
        ("cartpole-swingip", {}, "'cartpole-swingip' is not a task .* did you mean cartpole-swingup"),
        ("cartpole", {}, "'cartpole' is not a task"),
        (lambda: None, {}, "env_type DM_CONTROL needs a name"),
        ("cartpole-swingup", {"vectorization_mode": "envpool"}, "'envpool' is neither sync nor async"),
    ],
)
def test_an_unsupported_configuration_is_an_error_of_one_line(name, env_args, message):
    with pytest.raises(UnsupportedEnvironment, match=message) as error:
        DmControlAdapter(config(name, 1, env_args))
    assert "\n" not in str(error.value)
