"""Short calls for the configuration of an adapter."""

from __future__ import annotations

from gymnasium.vector import AutoresetMode

from algorithm.adapters.adapter import EnvConfig


def config(name, n_envs=1, args=None, max_episode_steps=None, **others) -> EnvConfig:
    """Return an EnvConfig; its first fields are positional."""
    return EnvConfig(name=name, n_envs=n_envs, args=args or {}, max_episode_steps=max_episode_steps, **others)


def vectorized(kind: str, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **env_args) -> dict:
    """Return arguments of environments with a vectorization mode and an autoreset mode."""
    return {"vectorization_mode": kind, "vector_kwargs": {"autoreset_mode": mode}, **env_args}
