"""Gymnasium: native vector environments, SyncVectorEnv and AsyncVectorEnv, in every autoreset mode."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from algorithm.adapters.adapter import Adapter, EnvironmentFailed, UnsupportedEnvironment
from algorithm.rollout import Array, Step
from algorithm.specs import AGENT, ActionSpec, ObsSpec, Role

Make = Callable[..., gymnasium.Env]
Obs = dict[str, np.ndarray]

OBS = "obs"  # the name of an observation that has none
PACKAGES = {"ALE": "ale-py", "dm_control": "shimmy[dm-control]", "MiniGrid": "minigrid"}  # of namespaces, for pip
NATIVE_FROM = 5  # copies from which a native vector environment is faster than SyncVectorEnv (measured on CartPole)


class GymAdapter(Adapter):
    """Copies of one Gymnasium environment, one lane each.

    `env_name` is an id (`Name-v0`, `namespace/Name-v0`, `module:Name-v0`) or a function that makes an environment.
    `env_args` go to the environment, but for `vectorization_mode` (sync, async, vector_entry_point; chosen by
    speed where absent) and `vector_kwargs`, which have the meaning they have in `gymnasium.make_vec`.

    Raises UnsupportedEnvironment for an unknown id or a space that cannot be served, EnvironmentFailed where the
    environment does not start.
    """

    def __init__(
        self,
        env_name: str | Make,
        copies: int,
        env_args: Mapping[str, Any],
        max_episode_steps: int | None = None,
        render: bool = False,
    ):
        self._name = env_name
        self.env = _make(env_name, copies, dict(env_args), max_episode_steps, render)
        self._single_obs = not isinstance(self.env.single_observation_space, spaces.Dict)
        try:
            obs_specs = _obs_specs(self.env.single_observation_space)
            role = Role(copies, obs_specs, _action_spec(self.env.single_action_space))
        except UnsupportedEnvironment:
            self.env.close()
            raise
        self.roles = {AGENT: role}
        self._dtypes = {name: np.dtype(spec.dtype) for name, spec in role.obs_specs.items()}
        self._lanes = np.arange(copies)
        self._none = np.zeros(copies, bool)
        self._all = np.ones(copies, bool)
        mode = self.env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._advance = {
            AutoresetMode.NEXT_STEP: self._next_step,
            AutoresetMode.SAME_STEP: self._same_step,
            AutoresetMode.DISABLED: self._disabled,
        }[AutoresetMode(mode)]
        self._ended = self._none  # lanes whose episode ended at the last tick
        self._after_final: Step | None = None  # what follows a Step of final rows alone

    def reset(self, seed: int) -> dict[str, Step]:
        try:
            obs, _ = self.env.reset(seed=seed)
        except gymnasium.error.DependencyNotInstalled as error:
            raise _missing(self._name, error) from error
        except Exception as error:  # whatever a simulator raises when it starts
            raise EnvironmentFailed(_message(self._name, "does not start", error)) from error
        self._ended, self._after_final = self._none, None
        reward = np.zeros(len(self._lanes), np.float32)
        return {AGENT: Step(self._lanes, self._obs(obs), self._all, self._none, reward, self._all)}

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, Step]:
        if self._after_final is not None:
            step, self._after_final = self._after_final, None
            return {AGENT: step}
        native = self.roles[AGENT].action_spec.native(actions[AGENT])
        try:
            obs, reward, terminated, truncated, info = self.env.step(native)
        except Exception as error:  # whatever a simulator raises
            raise EnvironmentFailed(_message(self._name, "broke", error)) from error
        return {AGENT: self._advance(obs, reward.astype(np.float32), terminated, truncated, info)}

    def close(self) -> None:
        self.env.close()

    def _next_step(self, obs: Any, reward: Array, terminated: Array, truncated: Array, info: dict[str, Any]) -> Step:
        """The final observation comes by itself; the step after it ignores the action and starts the episode."""
        first, self._ended = self._ended, terminated | truncated
        return Step(self._lanes, self._obs(obs), first, self._ended, reward, ~terminated)

    def _same_step(self, obs: Any, reward: Array, terminated: Array, truncated: Array, info: dict[str, Any]) -> Step:
        """The next episode's observation is already here, the final one stands in `info`."""
        final = {}
        if (truncated & ~terminated).any():
            shown = np.flatnonzero(truncated & ~terminated)
            final = self._obs(_stack([info["final_obs"][lane] for lane in shown]))
        return self._restarted(self._obs(obs), final, reward, terminated, truncated)

    def _disabled(self, obs: Any, reward: Array, terminated: Array, truncated: Array, info: dict[str, Any]) -> Step:
        """Every observation is the episode's own; lanes that ended are reset here."""
        obs = self._obs(obs)
        ended = terminated | truncated
        if not ended.any():
            return Step(self._lanes, obs, self._none, self._none, reward, self._all)
        final = {name: value[truncated & ~terminated].copy() for name, value in obs.items()}
        obs, _ = self.env.reset(options={"reset_mask": ended})
        return self._restarted(self._obs(obs), final, reward, terminated, truncated)

    def _restarted(self, obs: Obs, final: Obs, reward: Array, terminated: Array, truncated: Array) -> Step:
        """New starts where episodes ended; the final rows of cut ones come before them, as a Step of their own."""
        cut = truncated & ~terminated
        following = Step(self._lanes, obs, terminated | truncated, self._none, reward, ~terminated)
        if not cut.any():
            return following
        self._after_final = following
        following.reward = np.where(cut, np.float32(0), reward)
        shown = np.flatnonzero(cut)
        none, every = self._none[shown], self._all[shown]
        return Step(shown, final, none, every, reward[shown], every)

    def _obs(self, obs: Any) -> Obs:
        named = {OBS: obs} if self._single_obs else obs
        return {name: np.asarray(named[name], dtype) for name, dtype in self._dtypes.items()}


def _make(env_name: str | Make, copies: int, env_args: dict, limit: int | None, render: bool) -> VectorEnv:
    mode = env_args.pop("vectorization_mode", None)
    vector_kwargs = env_args.pop("vector_kwargs", {})
    if render:
        mode, env_args = "sync", {**env_args, "render_mode": "human"}
    if limit:
        env_args["max_episode_steps"] = limit
    native = not callable(env_name) and _spec(env_name).vector_entry_point is not None
    if mode is None:
        mode = "vector_entry_point" if native and copies >= NATIVE_FROM and not vector_kwargs else "sync"
    if mode == "async":
        vector_kwargs = {"context": "spawn", **vector_kwargs}
    if mode == "sync":
        vector_kwargs = {"copy": False, **vector_kwargs}  # whoever keeps an observation copies it
    try:
        if callable(env_name):
            return _from_function(env_name, copies, env_args, mode, vector_kwargs)
        return gymnasium.make_vec(env_name, copies, mode, vector_kwargs=vector_kwargs, **env_args)
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise _missing(env_name, error) from error
    except Exception as error:  # whatever a simulator raises when it starts
        raise EnvironmentFailed(_message(env_name, "does not start", error)) from error


def _spec(env_name: str) -> gymnasium.envs.registration.EnvSpec:
    try:
        if ":" in env_name:
            importlib.import_module(env_name.split(":")[0])
        return gymnasium.spec(env_name.rpartition(":")[2])
    except (gymnasium.error.NamespaceNotFound, ModuleNotFoundError) as error:
        raise _missing(env_name, error) from error
    except gymnasium.error.Error as error:
        raise UnsupportedEnvironment(f"env_name {env_name!r}: {str(error).splitlines()[0]}") from error


def _missing(env_name: str | Make, error: Exception) -> UnsupportedEnvironment:
    line = str(error).splitlines()[0]
    package = getattr(error, "name", None) or PACKAGES.get(str(env_name).partition("/")[0])
    if package and "pip install" not in line:
        line += f"; pip install {package}"
    return UnsupportedEnvironment(f"the environment {env_name!r} needs a package: {line}")


def _message(env_name: str | Make, what: str, error: Exception) -> str:
    name = inspect.getsourcefile(env_name) if callable(env_name) else env_name
    return f"the environment {name!r} {what}: {type(error).__name__}: {error}"


def _from_function(make: Make, copies: int, env_args: dict, mode: str, vector_kwargs: dict) -> VectorEnv:
    limit = env_args.pop("max_episode_steps", None)

    def make_one() -> gymnasium.Env:
        env = make(**env_args)
        return gymnasium.wrappers.TimeLimit(env, limit) if limit else env

    if mode == "async":
        return AsyncVectorEnv([make_one] * copies, **vector_kwargs)
    return SyncVectorEnv([make_one] * copies, **vector_kwargs)


def _obs_specs(space: spaces.Space) -> dict[str, ObsSpec]:
    named = space.spaces if isinstance(space, spaces.Dict) else {OBS: space}
    specs = {}
    for name, part in named.items():
        if not isinstance(part, spaces.Box):
            raise UnsupportedEnvironment(
                f"observation {name!r} is {type(part).__name__}; served are Box and Dict of Box"
            )
        specs[name] = ObsSpec(part.shape, "uint8" if part.dtype == np.uint8 else "float32")
    return specs


def _action_spec(space: spaces.Space) -> ActionSpec:
    if not isinstance(space, spaces.Discrete):
        raise UnsupportedEnvironment(f"the action space is {type(space).__name__}; served so far is Discrete")
    return ActionSpec(branches=(int(space.n),), start=(int(space.start),))


def _stack(observations: list) -> Any:
    if isinstance(observations[0], dict):
        return {name: np.stack([obs[name] for obs in observations]) for name in observations[0]}
    return np.stack(observations)
