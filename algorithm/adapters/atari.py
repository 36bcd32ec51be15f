"""Atari 2600 games of the Arcade Learning Environment, one frame of Gymnasium's AtariPreprocessing at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import AtariPreprocessing

from algorithm.adapters.adapter import EnvConfig, UnsupportedEnvironment
from algorithm.adapters.envpool import SEED_LIMIT, EnvPoolVectorEnv
from algorithm.adapters.gym import GymAdapter
from algorithm.adapters.gym_ids import find_id
from algorithm.adapters.missing_extras import convert_start_errors, require_env_name
from algorithm.adapters.vector import limit_episode_steps, make_sync_or_async, reject_timeout, split_env_args
from algorithm.adapters.wrappers.env_wrappers import reject_wrappers

MAX_FRAMES = 108_000  # of an episode at most: half an hour of play, as all ids of v5 have it
ALE_ARGS = ("repeat_action_probability", "full_action_space")
EXCLUDED_ARGS = ("env", "grayscale_newaxis")  # a frame in grey has no axis of colors


def make_atari(config: EnvConfig) -> VectorEnv:
    """Return a vector environment of one game (`ALE/Pong-v5`, `Pong` or `pong`) that shows one frame [84, 84] per step.

    `args` are those of Gymnasium's AtariPreprocessing, `repeat_action_probability` and `full_action_space`, which
    mean the same in every `vectorization_mode`: vector_entry_point (ALE's own; where it is absent), sync, async, and
    envpool. Wrappers are applied to AtariPreprocessing in sync and async. Raises what `GymAdapter` raises.
    """
    mode, vector_kwargs, atari_args = split_env_args(config.args)
    spec = _find_spec(require_env_name(config.name, "ATARI"))
    settings, limit = _merge_settings(spec, atari_args), config.max_episode_steps
    if config.render or mode in ("sync", "async") or (config.wrappers and mode is None):
        make = partial(limit_episode_steps, partial(_make_preprocessed, spec, settings), limit)
        vector_args = {key: value for key, value in config.args.items() if key not in atari_args}
        return make_sync_or_async(replace(config, name=spec.id, args=vector_args), make)
    reject_wrappers(config, f"vectorization_mode {mode}")
    reject_timeout(config.timeout)
    if mode not in (*VECTOR_MAKERS, None):
        raise UnsupportedEnvironment(
            f"env_args.vectorization_mode {mode!r} is none of sync, async, {', '.join(VECTOR_MAKERS)}"
        )
    if "autoreset_mode" in vector_kwargs:
        raise UnsupportedEnvironment(
            "env_args.vector_kwargs.autoreset_mode is for sync and async; others have their own"
        )
    with convert_start_errors(spec.id):
        return VECTOR_MAKERS[mode or NATIVE_MODE](spec, config.n_envs, settings, vector_kwargs, limit)


AtariAdapter = partial(GymAdapter, make=make_atari)


def _find_spec(env_name: str) -> EnvSpec:
    with convert_start_errors(env_name):
        import ale_py

        gymnasium.register_envs(ale_py)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner for each copy
    game = env_name.rpartition(":")[2].removeprefix("ALE/")
    spec = gymnasium.spec(find_id(game, "ALE"))
    if spec.namespace != "ALE" or re.search(r"-v(?!5$)", game):
        raise UnsupportedEnvironment(
            f"env_name {env_name!r} is none of the ids ALE/...-v5; what v0 and v4 were is set by env_args "
            "(frame_skip, repeat_action_probability)"
        )
    return spec


def _merge_settings(spec: EnvSpec, atari_args: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a game: what is given, then Gymnasium's and ALE's defaults."""
    defaults = {
        key: value.default
        for key, value in signature(AtariPreprocessing).parameters.items()
        if key not in EXCLUDED_ARGS
    }
    defaults |= {key: spec.kwargs[key] for key in ALE_ARGS}
    for key in atari_args:
        if key not in defaults:
            raise UnsupportedEnvironment(f"env_args.{key} is none of what ATARI takes: {', '.join(sorted(defaults))}")
        expected_type = (int, float) if isinstance(defaults[key], float) else type(defaults[key])
        size = key == "screen_size" and isinstance(atari_args[key], (list, tuple)) and len(atari_args[key]) == 2
        if not size and (
            not isinstance(atari_args[key], expected_type)
            or isinstance(atari_args[key], bool) != (expected_type is bool)
        ):
            raise UnsupportedEnvironment(f"env_args.{key} is {atari_args[key]!r}; its default is {defaults[key]!r}")
    settings = {**defaults, **atari_args}
    size = settings["screen_size"]
    return settings | {"screen_size": (size, size) if isinstance(size, int) else tuple(size)}


def _make_preprocessed(spec: EnvSpec, settings: Mapping[str, Any], **env_args: Any) -> gymnasium.Env:
    ale_args = {key: settings[key] for key in ALE_ARGS}
    game = gymnasium.make(spec, frameskip=1, max_num_frames_per_episode=MAX_FRAMES, **ale_args, **env_args)
    return AtariPreprocessing(game, **{key: value for key, value in settings.items() if key not in ALE_ARGS})


def _make_native(spec: EnvSpec, n_envs: int, settings: dict, vector_kwargs: dict, limit: int | None) -> VectorEnv:
    from ale_py.vector_env import AtariVectorEnv

    width, height = settings["screen_size"]
    env = AtariVectorEnv(
        spec.kwargs["game"],
        n_envs,
        **{key: settings[key] for key in (*ALE_ARGS, "noop_max")},
        img_width=width,
        img_height=height,
        frameskip=settings["frame_skip"],
        maxpool=settings["frame_skip"] > 1,
        grayscale=settings["grayscale_obs"],
        episodic_life=settings["terminal_on_life_loss"],
        max_num_frames_per_episode=MAX_FRAMES,
        stack_num=1,
        reward_clipping=False,
        use_fire_reset=False,
        **vector_kwargs,
    )
    return AtariFrames(VectorTimeLimit(env, limit) if limit else env, settings)


def _make_envpool(spec: EnvSpec, n_envs: int, settings: dict, vector_kwargs: dict, limit: int | None) -> VectorEnv:
    if settings["terminal_on_life_loss"] or not settings["noop_max"]:
        raise UnsupportedEnvironment(
            "EnvPool has neither a noop_max of 0, nor terminal_on_life_loss as the others have it (its game goes on)"
        )
    width, height = settings["screen_size"]
    pool_args = {
        **{key: settings[key] for key in (*ALE_ARGS, "noop_max", "frame_skip")},
        "img_width": width,
        "img_height": height,
        "gray_scale": settings["grayscale_obs"],
        "max_episode_steps": min(limit or MAX_FRAMES, MAX_FRAMES // settings["frame_skip"]),
        "stack_num": 1,
        "reward_clip": False,
        "use_fire_reset": False,
    }
    return AtariFrames(EnvPoolVectorEnv(spec.id.removeprefix("ALE/"), n_envs, {**pool_args, **vector_kwargs}), settings)


NATIVE_MODE = "vector_entry_point"
VECTOR_MAKERS = {NATIVE_MODE: _make_native, "envpool": _make_envpool}


class AtariFrames(VectorWrapper):
    """Stacks of one frame as AtariPreprocessing shows a frame, with seeds of any size."""

    def __init__(self, env: VectorEnv, settings: Mapping[str, Any]):
        super().__init__(env)
        self._is_scaled, self._is_color = settings["scale_obs"], not settings["grayscale_obs"]
        width, height = settings["screen_size"]
        shape = (height, width, 3) if self._is_color else (height, width)
        bounds, dtype = ((0, 1), np.float32) if self._is_scaled else ((0, 255), np.uint8)
        self.single_observation_space = Box(*bounds, shape, dtype)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode in every copy."""
        obs, info = self.env.reset(seed=None if seed is None else seed % (SEED_LIMIT - self.num_envs), options=options)
        return self._unstack(obs), info

    def step(self, actions: Any) -> Any:
        """All copies in parallel."""
        obs, *rest = self.env.step(actions)
        return self._unstack(obs), *rest

    def _unstack(self, obs: np.ndarray) -> np.ndarray:
        """[copies, 1, height, width], [copies, 1, height, width, 3] or [copies, 3, height, width] without the stack."""
        if obs.shape[1] == 1:
            obs = obs[:, 0]
        elif self._is_color:
            obs = np.moveaxis(obs, 1, -1)
        return obs.astype(np.float32) / 255 if self._is_scaled else obs


class VectorTimeLimit(VectorWrapper):
    """Episodes of `limit` steps at most: ALE's own limit counts frames, and those before the first step too."""

    def __init__(self, env: VectorEnv, limit: int):
        super().__init__(env)
        self._limit = limit

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode in every copy."""
        self._steps = np.zeros(self.num_envs, np.int64)
        self._truncated = self._done = np.zeros(self.num_envs, bool)
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        """All copies in parallel; those that were cut are reset here, the others that ended by the environment."""
        obs, reward, terminated, truncated, info = self.env.step(actions)
        if self._truncated.any():
            obs, _ = self.env.reset(options={"reset_mask": self._truncated})
            reward, terminated, truncated = (
                np.where(self._truncated, 0, x).astype(x.dtype) for x in (reward, terminated, truncated)
            )
        self._steps = np.where(self._done, 0, self._steps + 1)
        ended = terminated | truncated
        self._truncated = (self._steps >= self._limit) & ~ended
        self._done = ended | self._truncated
        return obs, reward, terminated, truncated | (self._steps >= self._limit), info
