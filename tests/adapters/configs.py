"""The record that adapters are made from, in one short call."""

from __future__ import annotations

from algorithm.adapters.adapter import EnvConfig


def config(name, n_envs=1, args=None, max_episode_steps=None, **others) -> EnvConfig:
    """An EnvConfig from its first fields in their order."""
    return EnvConfig(name=name, n_envs=n_envs, args=args or {}, max_episode_steps=max_episode_steps, **others)
