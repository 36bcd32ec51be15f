"""Settings are passed to the adapter."""

import numpy as np
import pytest

from algorithm.config.loader import resolve
from algorithm.errors import UserError
from algorithm.runs.make_env import Environments
from algorithm.runs.run_folder import RunFolder

ENV = """from gymnasium import Env, spaces
from numpy import inf
class Own(Env):
    observation_space, action_space = spaces.Box(0, 1), spaces.Dict(gas=spaces.Box(-inf, inf))
make = Own
"""


def test_unbounded_action_limit_scales_actions_without_bounds(tmp_path):
    (tmp_path / "env.py").write_text(ENV)
    base = {"env_name": "env.py", "unbounded_action_limit": 2.5}
    adapter = Environments(resolve([("test", {"base_config": base})]), RunFolder(tmp_path)).open(1)
    native = adapter.roles["agent"].action_spec.to_env_units(np.array([[-1], [1]], np.float32))
    assert native["gas"].tolist() == [[-2.5], [2.5]]
    adapter.close()
    with pytest.raises(
        UserError, match="base_config: action 'gas' is a Box without bounds; set base_config.unbounded_action_limit"
    ):
        Environments(resolve([("test", {"base_config": {"env_name": "env.py"}})]), RunFolder(tmp_path)).open(1)
