"""Settings are passed to the adapter."""

from contextlib import closing

import numpy as np
import pytest

from algorithm.adapters.curriculum import EnvironmentParameters
from algorithm.config.loader import read_assignments, resolve
from algorithm.errors import UserError
from algorithm.parts.make_env import Environments
from algorithm.parts.run_folder import RunFolder

ENV = """from gymnasium import Env, spaces
from numpy import inf
class Own(Env):
    observation_space, action_space = spaces.Box(0, 1), spaces.Dict(gas=spaces.Box(-inf, inf))
make = Own
"""


def open_environments(tmp_path, **base) -> Environments:
    return Environments(resolve([("test", {"base_config": base})]), RunFolder(tmp_path))


def test_unbounded_action_limit_scales_actions_without_bounds(tmp_path):
    (tmp_path / "env.py").write_text(ENV)
    with closing(open_environments(tmp_path, env_name="env.py", unbounded_action_limit=2.5).open(1)) as adapter:
        native = adapter.roles["agent"].action_spec.to_env_units(np.array([[-1], [1]], np.float32))
    assert native["gas"].tolist() == [[-2.5], [2.5]]
    with pytest.raises(UserError, match="^base_config: action 'gas' is a Box without bounds; set base_config.unb"):
        open_environments(tmp_path, env_name="env.py").open(1)


# Type of environment and setting, with the end of the error.
UNSUPPORTED = """
PROBE env_args={length: 3} | probes have no arguments
PROBE env_timeout=1 | probes run in this process
PROBE env_wrappers=[a:B] | they wrap
PROBE ignore_observations=[obs] | only the observation
PETTINGZOO env_timeout=1 |
UNITY max_step_each_iter=5 | Max Step
UNITY env_args={size: 5} | reset_config
UNITY env_wrappers=[a:B] | they wrap
UNITY ignore_observations=[a] | leave
"""


@pytest.mark.parametrize("row", UNSUPPORTED.strip().splitlines())
def test_a_setting_that_the_adapter_does_not_support_is_an_error(row, tmp_path):
    given, _, advice = row.partition(" |")
    env_type, _, assignment = given.partition(" ")
    setting = read_assignments([assignment])
    environments = open_environments(tmp_path, env_type=env_type, env_name="chain", **setting)
    with pytest.raises(
        UserError, match=rf"^base_config.{next(iter(setting))} is not for env_type {env_type}: .*{advice.strip()}"
    ):
        environments.open(1)


def test_only_training_environments_in_other_processes_take_turns(tmp_path):
    args = {"vectorization_mode": "async", "vector_kwargs": {"context": "fork"}}
    environments = open_environments(tmp_path, env_name="CartPole-v1", n_envs=2, env_groups=2, env_args=args)
    parameters = EnvironmentParameters({})
    for adapter, lanes in (
        (environments.open_training(parameters), [0]),
        (environments.defer_evaluation(parameters), [0, 1]),
        (environments.open(2), [0, 1]),
    ):
        with closing(adapter):
            step = adapter.reset(0)["agent"]
            assert step.lane.tolist() == [0, 1]
            assert adapter.step({"agent": np.zeros((2, 1), np.float32)})["agent"].lane.tolist() == lanes
    environments = open_environments(tmp_path, env_name="CartPole-v1", env_groups=2)
    with pytest.raises(UserError, match="^base_config: env_groups is 2, but only environments of Gymnasium"):
        environments.open_training(EnvironmentParameters({}))
