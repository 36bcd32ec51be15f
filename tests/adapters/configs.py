"""A short call for the configuration of an adapter."""

from __future__ import annotations

from algorithm.adapters.adapter import EnvConfig


def config(name, n_envs=1, args=None, max_episode_steps=None, **others) -> EnvConfig:
    """Return an EnvConfig; its first fields are positional."""
    return EnvConfig(name=name, n_envs=n_envs, args=args or {}, max_episode_steps=max_episode_steps, **others)
