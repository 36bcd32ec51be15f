"""Gymnasium: native vector environments, SyncVectorEnv and AsyncVectorEnv, in every autoreset mode."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from algorithm.adapters.adapter import (
    Adapter,
    EnvConfig,
    EnvironmentCrashed,
    EnvironmentStartError,
    UnsupportedEnvironment,
)
from algorithm.adapters.missing_extras import convert_start_errors, describe_error, get_env_name
from algorithm.adapters.spaces import InfoMasks, Obs, ObservationConverter, make_action_spec, stack_observations
from algorithm.adapters.vector import make_vector
from algorithm.adapters.wrappers.fault_tolerant import RESET_ERROR, STEP_ERROR
from algorithm.rollout import Array, Step
from algorithm.specs import ACTION_MASK, DEFAULT_ROLE, Role

MakeVector = Callable[[EnvConfig], VectorEnv]

LOG = logging.getLogger(__name__)


class GymAdapter(Adapter):
    """Copies of one Gymnasium environment, one lane each.

    Its name is an id (`Name-v0`, `namespace/Name-v0`, `module:Name-v0`) or a function that makes an environment, or
    a vector environment if it has a parameter `num_envs`. Its `args` go to the environment, but for
    `vectorization_mode` (sync, async, vector_entry_point; chosen by speed where absent) and `vector_kwargs`, which
    have the meaning they have in `gymnasium.make_vec`; envpool is one more way. Another family of environments gives
    `make`, which takes what `make_vector` takes. Masks of discrete actions come as an observation `action_mask`, or
    in the infos of every reset and step.

    A copy that raises in sync or async is rebuilt: its episode is cut and its final observation not known.
    Raises UnsupportedEnvironment for an unknown id or a space that cannot be served, EnvironmentStartError where the
    environment does not start, EnvironmentCrashed where all of it broke.
    """

    def __init__(self, config: EnvConfig, make: MakeVector = make_vector):
        self._name, n_envs = config.name, config.n_envs
        self.env = make(config)
        try:
            self.roles = {DEFAULT_ROLE: self._make_role(config)}
        except (EnvironmentStartError, UnsupportedEnvironment):
            self.env.close()
            raise
        self._lanes = np.arange(n_envs)
        self._all_false = np.zeros(n_envs, bool)
        self._all_true = np.ones(n_envs, bool)
        mode = self.env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._read_step = {
            AutoresetMode.NEXT_STEP: self._read_next_step,
            AutoresetMode.SAME_STEP: self._read_same_step,
            AutoresetMode.DISABLED: self._read_disabled,
        }[AutoresetMode(mode)]
        self._ended = self._all_false  # lanes whose episode ended at the last tick
        self._pending_step: Step | None = None  # what follows a Step of final rows alone
        self._active_lanes = self._lanes  # those of the last Step

    def reset(self, seed: int) -> dict[str, Step]:
        obs, info = self._reset_env(seed)
        self._record_errors(info)
        self._ended, self._pending_step, self._active_lanes = self._all_false, None, self._lanes
        reward = np.zeros(len(self._lanes), np.float32)
        return {
            DEFAULT_ROLE: Step(
                self._lanes, self._read_obs(obs, info), self._all_true, self._all_false, reward, self._all_true
            )
        }

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, Step]:
        if self._pending_step is not None:
            step, self._pending_step = self._pending_step, None
            return {DEFAULT_ROLE: step}
        action = actions[DEFAULT_ROLE]
        if len(action) < len(self._lanes):  # a lane without an action awaits its reset
            action = np.zeros((len(self._lanes), action.shape[1]), np.float32)
            action[self._active_lanes] = actions[DEFAULT_ROLE]
        obs, reward, terminated, truncated, info = self._call_env(
            self.env.step, self.roles[DEFAULT_ROLE].action_spec.to_env_units(action)
        )
        step = self._read_step(obs, reward.astype(np.float32), terminated, truncated, info)
        self._active_lanes = step.lane
        if not len(step.lane):
            return self.step({DEFAULT_ROLE: action[:0]})
        return {DEFAULT_ROLE: step}

    def close(self) -> None:
        self.env.close()

    def _read_next_step(
        self, obs: Any, reward: Array, terminated: Array, truncated: Array, info: dict[str, Any]
    ) -> Step:
        """The final observation comes by itself; the step after it ignores the action and starts the episode."""
        first, self._ended = self._ended, terminated | truncated
        step = Step(self._lanes, self._read_obs(obs, info), first, self._ended, reward, ~terminated)
        lost = self._record_errors(info)
        return step if lost is self._all_false else step.take(~lost)

    def _read_same_step(
        self, obs: Any, reward: Array, terminated: Array, truncated: Array, info: dict[str, Any]
    ) -> Step:
        """The next episode's observation is already here, the final one stands in `info`."""
        lost = self._record_errors(info.get("final_info", {}))
        self._record_errors(info)
        has_final, final = truncated & ~terminated & ~lost, {}
        if has_final.any():
            final_obs = stack_observations([info["final_obs"][lane] for lane in np.flatnonzero(has_final)])
            final = self._read_obs(final_obs, info.get("final_info", {}), has_final)
        return self._split_final(self._read_obs(obs, info), final, has_final, reward, terminated, truncated)

    def _read_disabled(
        self, obs: Any, reward: Array, terminated: Array, truncated: Array, info: dict[str, Any]
    ) -> Step:
        """Every observation is the episode's own; lanes that ended are reset here."""
        current_obs = self._read_obs(obs, info)
        ended = terminated | truncated
        if not ended.any():
            return Step(self._lanes, current_obs, self._all_false, self._all_false, reward, self._all_true)
        has_final = truncated & ~terminated & ~self._record_errors(info)
        final = {name: value[has_final].copy() for name, value in current_obs.items()}
        obs, info = self._call_env(self.env.reset, options={"reset_mask": ended})
        self._record_errors(info)
        next_obs = self._read_obs(obs, info)
        if self._masks:  # the infos of a reset tell nothing of the lanes that go on
            next_obs[ACTION_MASK] = np.where(ended[:, None], next_obs[ACTION_MASK], current_obs[ACTION_MASK])
        return self._split_final(next_obs, final, has_final, reward, terminated, truncated)

    def _split_final(
        self, obs: Obs, final: Obs, has_final: Array, reward: Array, terminated: Array, truncated: Array
    ) -> Step:
        """New starts where episodes ended; the final rows of `has_final` ones come before them, as a Step of their own."""
        next_step = Step(self._lanes, obs, terminated | truncated, self._all_false, reward, ~terminated)
        if not has_final.any():
            return next_step
        self._pending_step = next_step
        next_step.reward = np.where(has_final, np.float32(0), reward)
        lanes = np.flatnonzero(has_final)
        all_false, all_true = self._all_false[lanes], self._all_true[lanes]
        return Step(lanes, final, all_false, all_true, reward[lanes], all_true)

    def _call_env(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except (Exception, SystemExit) as error:  # a simulator may raise anything
            raise EnvironmentCrashed(describe_error(self._name, "broke", error)) from error

    def _record_errors(self, info: Mapping[str, Any]) -> Array:
        """Lanes whose episode is lost because a step raised. They, and those whose reset raised, are told."""
        if STEP_ERROR not in info and RESET_ERROR not in info:
            return self._all_false
        lost = self._all_false
        for key, when in (
            (STEP_ERROR, "in a step; its episode is cut and it is rebuilt"),
            (RESET_ERROR, "in a reset; rebuilt"),
        ):
            if key not in info:
                continue
            raised = np.array([text is not None for text in info[key]])
            for lane in np.flatnonzero(raised):
                error_text = info[key][lane].strip()
                LOG.warning(f"the environment of lane {lane} raised {error_text.splitlines()[-1]} {when}")
                LOG.info(error_text)
            self.restarts += int(raised.sum())
            lost = raised if key == STEP_ERROR else lost
        return lost

    def _read_obs(self, obs: Any, info: Mapping[str, Any], rows: Array = slice(None)) -> Obs:
        """What these `rows` of all lanes are shown, with their masks out of the infos of all lanes."""
        try:
            named_obs = self._observations(obs)
            if self._masks:
                named_obs[ACTION_MASK] = self._masks(info)[rows]
        except ValueError as error:
            raise EnvironmentCrashed(describe_error(self._name, "broke", error)) from error
        if ACTION_MASK in info and ACTION_MASK not in named_obs and self.roles[DEFAULT_ROLE].action_spec.branches:
            raise UnsupportedEnvironment(
                f"the environment {get_env_name(self._name)!r} gives info[{ACTION_MASK!r}] with steps but gave none with "
                "its first reset; give it with every reset and every step"
            )
        return named_obs

    def _make_role(self, config: EnvConfig) -> Role:
        action = make_action_spec(self.env.single_action_space, config.unbounded_action_limit)
        space = self.env.single_observation_space
        self._observations = ObservationConverter(space, action.branches, config.ignore_observations)
        self._masks: InfoMasks | None = None
        specs = dict(self._observations.specs)
        if action.branches and ACTION_MASK not in specs:
            _, info = self._reset_env(seed=0)  # nothing but the first infos tells whether there are masks
            if ACTION_MASK in info:
                self._masks = InfoMasks(action, config.n_envs)
                specs[ACTION_MASK] = self._masks.obs_spec
                try:
                    self._masks(info)
                except ValueError as error:
                    raise UnsupportedEnvironment(f"the environment {get_env_name(self._name)!r}: {error}") from error
        return Role(config.n_envs, specs, action)

    def _reset_env(self, seed: int) -> tuple[Any, dict[str, Any]]:
        with convert_start_errors(self._name):
            return self.env.reset(seed=seed)
