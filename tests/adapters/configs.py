"""Short calls that configure and open environments; a fixture closes them after each test."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from gymnasium.vector import AutoresetMode

from algorithm.adapters.adapter import Adapter, EnvConfig
from algorithm.adapters.gym import GymAdapter

OPENED = ExitStack()  # of the current test
every_mode = pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)


def config(name, n_envs=1, args=None, max_episode_steps=None, **others) -> EnvConfig:
    """Return an EnvConfig; its first fields are positional."""
    return EnvConfig(name=name, n_envs=n_envs, args=args or {}, max_episode_steps=max_episode_steps, **others)


def vectorized(kind: str, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **env_args) -> dict:
    """Return arguments of environments with a vectorization mode and an autoreset mode."""
    return {"vectorization_mode": kind, "vector_kwargs": {"autoreset_mode": mode}, **env_args}


def opened(adapter: Adapter) -> Adapter:
    """Return an adapter that is closed after the test."""
    OPENED.callback(adapter.close)
    return adapter


def open_gym(*fields, **others) -> GymAdapter:
    """Return the environments of `config` for a test."""
    return opened(GymAdapter(config(*fields, **others)))
