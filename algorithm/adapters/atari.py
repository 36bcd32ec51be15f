"""The adapter of the Arcade Learning Environment: Atari 2600 games with Gymnasium's AtariPreprocessing."""

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
from algorithm.adapters.env_errors import convert_start_errors, require_env_name
from algorithm.adapters.gym import LOSS, GymAdapter
from algorithm.adapters.gym_ids import find_id
from algorithm.adapters.vector import (
    SEED_LIMIT,
    EnvPoolVectorEnv,
    limit_episode_steps,
    make_sync_or_async,
    reject_single_settings,
    split_env_args,
)

MAX_FRAMES = 108_000  # frames of an episode at most, half an hour of play, as in all ids of version 5
ALE_ARGS = ("repeat_action_probability", "full_action_space")
EXCLUDED_ARGS = ("env", "grayscale_newaxis")  # parameters of AtariPreprocessing that are not settings


def make_atari(config: EnvConfig) -> VectorEnv:
    """Return a vector environment of one game, which observes one frame [84, 84] per step.

    Args:
        config: Its name is for example `ALE/Pong-v5`, `Pong` or `pong`. Its `args` are the arguments of Gymnasium's
            AtariPreprocessing, `repeat_action_probability` and `full_action_space`, with the same meaning in every
            `vectorization_mode`: vector_entry_point (ALE's native vector environment, the default), sync, async and
            envpool. With `terminal_on_life_loss` a lost life is marked in the infos, and the game continues. Its
            wrappers wrap AtariPreprocessing, in sync and async only.

    Raises:
        UnsupportedEnvironment, EnvironmentStartError: As `GymAdapter` raises them.
    """
    mode, vector_kwargs, atari_args = split_env_args(config.args)
    spec = _find_spec(require_env_name(config.name, "ATARI"))
    settings, limit = _merge_settings(spec, atari_args), config.max_episode_steps
    if config.render_mode or mode in ("sync", "async") or (config.wrappers and mode is None):
        make = partial(limit_episode_steps, partial(_make_preprocessed, spec, settings), limit)
        vector_args = {key: value for key, value in config.args.items() if key not in atari_args}
        return make_sync_or_async(replace(config, name=spec.id, args=vector_args), make)
    reject_single_settings(config, f"vectorization_mode {mode}")
    if mode not in (*VECTOR_MAKERS, None):
        raise UnsupportedEnvironment(
            f"env_args.vectorization_mode {mode!r} is not one of sync, async, {', '.join(VECTOR_MAKERS)}"
        )
    if "autoreset_mode" in vector_kwargs:
        raise UnsupportedEnvironment(
            "env_args.vector_kwargs.autoreset_mode is for sync and async; other modes have a fixed one"
        )
    with convert_start_errors(spec.id):
        return VECTOR_MAKERS[mode or NATIVE_MODE](spec, config.n_envs, settings, vector_kwargs, limit)


class AtariAdapter(GymAdapter):
    """An adapter of Atari games."""

    make = staticmethod(make_atari)


def _find_spec(env_name: str) -> EnvSpec:
    with convert_start_errors(env_name):
        import ale_py

        gymnasium.register_envs(ale_py)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner for each environment
    game = env_name.rpartition(":")[2].removeprefix("ALE/")
    spec = gymnasium.spec(find_id(game, "ALE"))
    if spec.namespace != "ALE" or re.search(r"-v(?!5$)", game):
        raise UnsupportedEnvironment(
            f"env_name {env_name!r} is not one of the ids ALE/...-v5; env_args (frame_skip, "
            "repeat_action_probability) set what differs in v0 and v4"
        )
    return spec


def _merge_settings(spec: EnvSpec, atari_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a game: `atari_args`, then the defaults of AtariPreprocessing and ALE."""
    defaults = {
        key: value.default
        for key, value in signature(AtariPreprocessing).parameters.items()
        if key not in EXCLUDED_ARGS
    }
    defaults |= {key: spec.kwargs[key] for key in ALE_ARGS}
    for key, value in atari_args.items():
        if key not in defaults:
            raise UnsupportedEnvironment(f"unknown setting env_args.{key}; ATARI has {', '.join(sorted(defaults))}")
        is_size = key == "screen_size" and isinstance(value, (list, tuple)) and len(value) == 2
        if not is_size and not _has_type_of(defaults[key], value):
            raise UnsupportedEnvironment(f"env_args.{key} is {value!r}; its default is {defaults[key]!r}")
    settings = {**defaults, **atari_args}
    size = settings["screen_size"]
    return settings | {"screen_size": (size, size) if isinstance(size, int) else tuple(size)}


def _has_type_of(default: Any, value: Any) -> bool:
    """Return whether a value has the type of a default; an integer is accepted for a float."""
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    return isinstance(value, (int, float) if isinstance(default, float) else type(default))


def _make_preprocessed(spec: EnvSpec, settings: Mapping[str, Any], **env_args: Any) -> gymnasium.Env:
    ale_args = {key: settings[key] for key in ALE_ARGS}
    game = gymnasium.make(spec, frameskip=1, max_num_frames_per_episode=MAX_FRAMES, **ale_args, **env_args)
    others = {key: value for key, value in settings.items() if key not in ALE_ARGS}
    if others.pop("terminal_on_life_loss"):
        return LifeLosses(AtariPreprocessing(game, **others))
    return AtariPreprocessing(game, **others)


def _make_native(spec: EnvSpec, n_envs: int, settings: dict, vector_kwargs: dict, limit: int | None) -> VectorEnv:
    from ale_py.vector_env import AtariVectorEnv

    env = AtariVectorEnv(
        spec.kwargs["game"],
        n_envs,
        **_make_shared_args(settings),
        frameskip=settings["frame_skip"],
        maxpool=settings["frame_skip"] > 1,
        grayscale=settings["grayscale_obs"],
        max_num_frames_per_episode=MAX_FRAMES,
        reward_clipping=False,
        **vector_kwargs,
    )
    return AtariFrames(env, settings, limit)


def _make_envpool(spec: EnvSpec, n_envs: int, settings: dict, vector_kwargs: dict, limit: int | None) -> VectorEnv:
    if not settings["noop_max"]:
        raise UnsupportedEnvironment("EnvPool does not support noop_max 0; use another vectorization_mode")
    pool_args = {
        **_make_shared_args(settings),
        "frame_skip": settings["frame_skip"],
        "gray_scale": settings["grayscale_obs"],
        "max_episode_steps": min(limit or MAX_FRAMES, MAX_FRAMES // settings["frame_skip"]),
        "reward_clip": False,
    }
    return AtariFrames(EnvPoolVectorEnv(spec.id.removeprefix("ALE/"), n_envs, {**pool_args, **vector_kwargs}), settings)


def _make_shared_args(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that ALE's vector environment and EnvPool have in common."""
    width, height = settings["screen_size"]
    shared = {key: settings[key] for key in (*ALE_ARGS, "noop_max")}
    return {**shared, "img_width": width, "img_height": height, "stack_num": 1, "use_fire_reset": False}


NATIVE_MODE = "vector_entry_point"
VECTOR_MAKERS = {NATIVE_MODE: _make_native, "envpool": _make_envpool}


class LifeLosses(gymnasium.Wrapper):
    """A wrapper of one game that marks the steps in which a life is lost and the game continues, in their infos."""

    def step(self, action: Any) -> Any:
        """Step the game."""
        lives = self.unwrapped.ale.lives()  # type: ignore[attr-defined]
        obs, reward, terminated, truncated, info = self.env.step(action)
        is_lost = info["lives"] < lives and not terminated
        return obs, reward, terminated, truncated, {**info, LOSS: is_lost}


class AtariFrames(VectorWrapper):
    """A wrapper of ALE's vector environment, or of EnvPool, that returns the steps of AtariPreprocessing.

    Stacks of one frame become frames. Episodes are truncated after `limit` steps unless that is None; ALE's own limit
    counts frames, including those before the first step. A seed may be any integer; ALE's are int32. The wrapper steps
    by `send` and `recv` only, as the environments inside do.
    """

    env: Any
    steps_in_background = True

    def __init__(self, env: Any, settings: Mapping[str, Any], limit: int | None = None):
        super().__init__(env)
        self.send, self._limit, self._marks_losses = env.send, limit, settings["terminal_on_life_loss"]
        self._is_scaled, self._is_color = settings["scale_obs"], not settings["grayscale_obs"]
        width, height = settings["screen_size"]
        shape = (height, width, 3) if self._is_color else (height, width)
        bounds, dtype = ((0, 1), np.float32) if self._is_scaled else ((0, 255), np.uint8)
        self.single_observation_space = Box(*bounds, shape, dtype)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode in every environment."""
        self._steps = np.zeros(self.num_envs, np.int64)
        self._truncated = self._done = np.zeros(self.num_envs, bool)
        obs, info = self.env.reset(seed=None if seed is None else seed % (SEED_LIMIT - self.num_envs), options=options)
        self._lives = np.array(info["lives"])
        return self._unstack(obs), info

    def recv(self) -> Any:
        """Wait until the step that `send` started has ended, and return what `step` returns."""
        step = self.env.recv()
        if self._limit:
            step = self._limit_steps(self._limit, *step)
        obs, reward, terminated, truncated, info = step
        if self._marks_losses:
            lives, self._lives = self._lives, np.array(info["lives"])
            info = {**info, LOSS: (self._lives < lives) & ~terminated}
        return self._unstack(obs), reward, terminated, truncated, info

    def _limit_steps(self, limit: int, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        """Return a step in which the episodes with `limit` steps are truncated.

        This method resets the environments that it truncated; ALE resets those whose episode ended otherwise.
        """
        if self._truncated.any():
            obs, _ = self.env.reset(options={"reset_mask": self._truncated})
            reward, terminated, truncated = (
                np.where(self._truncated, 0, x).astype(x.dtype) for x in (reward, terminated, truncated)
            )
        self._steps = np.where(self._done, 0, self._steps + 1)
        ended = terminated | truncated
        self._truncated = (self._steps >= limit) & ~ended
        self._done = ended | self._truncated
        return obs, reward, terminated, truncated | (self._steps >= limit), info

    def _unstack(self, obs: np.ndarray) -> np.ndarray:
        """Return frames [n_envs, height, width] or, in color, [n_envs, height, width, 3].

        Args:
            obs: [n_envs, 1, height, width], or in color [n_envs, 1, height, width, 3] or [n_envs, 3, height, width].
        """
        if obs.shape[1] == 1:
            obs = obs[:, 0]
        elif self._is_color:
            obs = np.moveaxis(obs, 1, -1)
        return obs.astype(np.float32) / 255 if self._is_scaled else obs
