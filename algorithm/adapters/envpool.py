"""EnvPool: many environments in threads of one process, as one of Gymnasium's vector environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from algorithm.adapters.adapter import UnsupportedEnvironment
from algorithm.adapters.missing_extras import suppress_warnings

SEED_LIMIT = 2**31  # of seeds, which are int32


class EnvPoolVectorEnv(VectorEnv):
    """`n_envs` of EnvPool's `task`, made with `settings`; copy i has the seed of a reset, plus i.

    EnvPool takes seeds only when a pool is made, so there is another one for each.
    Raises UnsupportedEnvironment for a task that it does not have.
    """

    def __init__(self, task: str, n_envs: int, settings: Mapping[str, Any]):
        import envpool

        if task not in envpool.list_all_envs():
            raise UnsupportedEnvironment(f"EnvPool has no environment {task!r}; take another vectorization_mode")
        self._task, self._settings = task, {"num_envs": n_envs, **settings}
        self.num_envs = n_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        with suppress_warnings():
            spec = envpool.make_spec(task, **self._settings)
            self.single_observation_space = spec.gymnasium_observation_space
            self.single_action_space = spec.gymnasium_action_space
        self.observation_space = batch_space(self.single_observation_space, n_envs)
        self.action_space = batch_space(self.single_action_space, n_envs)
        self._pool: Any = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode in every copy."""
        import envpool

        with suppress_warnings():
            if seed is not None or self._pool is None:
                self.close_extras()
                seeds = (int(seed or 0) + np.arange(self.num_envs)) % SEED_LIMIT
                self._pool = envpool.make(self._task, env_type="gymnasium", seed=seeds.tolist(), **self._settings)
            return self._pool.reset(options=options)

    def step(self, actions: Any) -> Any:
        """All copies in parallel; what follows an episode's end ignores the action and starts the next one."""
        return self._pool.step(actions)

    def close_extras(self, **kwargs: Any) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
