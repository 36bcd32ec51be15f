"""The adapter of Gymnasium: native vector environments, SyncVectorEnv and AsyncVectorEnv, in every autoreset mode."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from algorithm.adapters.adapter import Adapter, EnvConfig, SimulatorError, UnsupportedEnvironment
from algorithm.adapters.env_errors import convert_crashes, convert_start_errors
from algorithm.adapters.spaces import AgentSpaces, Masks, Obs
from algorithm.adapters.vector import ERROR_CONSEQUENCES, STEP_ERROR, make_vector
from algorithm.program import DEFAULT_ROLE
from algorithm.rollout import Step
from algorithm.specs import ACTION_MASK

Array = np.ndarray
Info = Mapping[str, Any]

LOG = logging.getLogger(__name__)
LOSS = "life_lost"  # in infos: whether a step is to be learned from as a termination, though the episode continues


class GymAdapter(Adapter):
    """An adapter of `n_envs` environments of Gymnasium, one lane each.

    The name in `config` is an id (`Name-v0`, `namespace/Name-v0`, `module:Name-v0`) or a function that makes an
    environment, or a vector environment if it has a parameter `num_envs`. The `args` are passed to the environment,
    except `vectorization_mode` and `vector_kwargs`, which have the meaning that they have in `gymnasium.make_vec`. The
    modes are sync, async, vector_entry_point (by default the fastest of sync and vector_entry_point) and envpool.

    Masks of discrete actions are read from an observation `action_mask`, or from the infos of every reset and step.

    The environments step between `send` and `receive` if they are in processes or threads of their own (async, envpool,
    ALE's native mode); otherwise they step in `receive`.

    An environment that raises in sync or async is rebuilt. Its episode is truncated, without a final observation.

    Args:
        config: The configuration of the adapter.

    Raises:
        UnsupportedEnvironment: The id is unknown, or a space is not supported.
        EnvironmentStartError: The environment does not start.
        EnvironmentCrashed: The vector environment raised after the start.
    """

    supports_recording = True
    make = staticmethod(make_vector)  # makes the vector environment; a subclass is for another family of environments

    def __init__(self, config: EnvConfig):
        self._name, self._lanes = config.name, np.arange(config.n_envs)
        self.env = self.make(config)
        try:
            self._spaces = AgentSpaces(
                self.env.single_observation_space,
                self.env.single_action_space,
                config,
                lambda: self._list_masks(self._reset_env(seed=0)[1]),  # only a reset shows whether infos have masks
            )
        except (SimulatorError, UnsupportedEnvironment):
            self.env.close()
            raise
        self.roles = {DEFAULT_ROLE: self._spaces.role}
        # A vector environment that steps in the background has the two halves of `step`, `send` and `recv`.
        self._background: Any = self.env if getattr(self.env, "steps_in_background", False) else None
        self.supports_groups = self._background is not None
        self._first_env = config.first_env
        self._all_false = np.zeros(config.n_envs, bool)
        self._idle_step = Step(
            lane=self._lanes,
            obs={},
            first=self._all_false,
            is_bootstrap_row=self._all_false,
            reward=np.zeros(config.n_envs, np.float32),
            alive=~self._all_false,
        )
        mode = self.env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._read_step = {
            AutoresetMode.NEXT_STEP: self._read_next_step,
            AutoresetMode.SAME_STEP: self._read_same_step,
            AutoresetMode.DISABLED: self._read_disabled,
        }[AutoresetMode(mode)]
        self._ended = self._all_false  # [lanes], lanes whose episode ended at the last tick
        self._pending_step: Step | None = None  # the Step that follows a Step with bootstrap rows only
        self._active_lanes = self._lanes  # [n], lanes of the last Step
        self._sent_actions: Any = None  # the actions, in the environment's units, of a step that has not been received

    @classmethod
    def count_evaluation_envs(cls, config: EnvConfig, episodes: int) -> int:
        return config.n_envs if config.args.get("vectorization_mode") == "async" else episodes

    def reset(self, seed: int) -> dict[str, Step]:
        if self._background and self._sent_actions is not None:
            self._finish_step()
        self._sent_actions = None
        obs, info = self._reset_env(seed)
        self._record_errors(info)
        self._ended, self._pending_step, self._active_lanes = self._all_false, None, self._lanes
        return {DEFAULT_ROLE: self._make_step(obs, info, first=np.ones(len(self._lanes), bool))}

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        if self._pending_step is None:
            self._start_step(actions[DEFAULT_ROLE])

    def receive(self) -> dict[str, Step]:
        step, self._pending_step = self._pending_step, None
        if step is not None:
            return {DEFAULT_ROLE: step}
        while True:
            obs, reward, *rest = self._finish_step()
            step = self._read_step(obs, reward.astype(np.float32), *rest)
            self._active_lanes = step.lane
            if len(step.lane):
                return {DEFAULT_ROLE: step}
            self._start_step(np.zeros((0, self.roles[DEFAULT_ROLE].action_spec.size), np.float32))

    def find_goal_rewards(self) -> Callable[[Array, Array], tuple[Array, Array]] | None:
        envs: Any = getattr(self.env, "envs", ())
        env = envs[0].unwrapped if envs else None
        return partial(compute_goal_rewards, env) if hasattr(env, "compute_reward") else None

    def close(self) -> None:
        self.env.close()

    def _start_step(self, action: np.ndarray) -> None:
        """Send actions [n, size] for the lanes of the last Step to the environments, if they step in the background."""
        if len(action) < len(self._lanes):  # lanes without an action are about to be reset
            active_action = action
            action = np.zeros((len(self._lanes), action.shape[1]), np.float32)
            action[self._active_lanes] = active_action
        self._sent_actions = self.roles[DEFAULT_ROLE].action_spec.to_env_units(action)
        if self._background:
            with convert_crashes(self._name):
                self._background.send(self._sent_actions)

    def _finish_step(self) -> Any:
        """Return the result of the step of the environments whose actions have been sent."""
        actions, self._sent_actions = self._sent_actions, None
        with convert_crashes(self._name):
            return self._background.recv() if self._background else self.env.step(actions)

    def _read_next_step(self, obs: Any, reward: Array, terminated: Array, truncated: Array, info: Info) -> Step:
        """Return the Step in mode NEXT_STEP, where the step after an episode's end ignores the action and resets."""
        first, self._ended = self._ended, terminated | truncated
        step = self._make_step(
            obs,
            info,
            reward=reward,
            first=first,
            is_bootstrap_row=self._ended,
            alive=self._find_alive(terminated, info),
        )
        lost = self._record_errors(info)
        return step.take(~lost) if lost.any() else step

    def _read_same_step(self, obs: Any, reward: Array, terminated: Array, truncated: Array, info: Info) -> Step:
        """Return the Step in mode SAME_STEP, where `obs` is the next episode's and `info` has the final observation."""
        final_info: Info = info.get("final_info", {})
        has_final, final = truncated & ~terminated & ~self._record_errors(final_info), {}
        self._record_errors(info)
        if has_final.any():
            lanes, masks = np.flatnonzero(has_final).tolist(), self._list_masks(final_info)
            final = self._spaces([info["final_obs"][lane] for lane in lanes], [masks[lane] for lane in lanes])
        alive = self._find_alive(terminated, info)
        step = self._make_step(obs, info, reward=reward, first=terminated | truncated, alive=alive)
        return self._put_final_first(final, has_final, step)

    def _read_disabled(self, obs: Any, reward: Array, terminated: Array, truncated: Array, info: Info) -> Step:
        """Return the Step in mode DISABLED, where this method resets the lanes whose episode ended."""
        alive, ended = self._find_alive(terminated, info), terminated | truncated
        step = self._make_step(obs, info, reward=reward, alive=alive)
        if not ended.any():
            return step
        has_final = truncated & ~terminated & ~self._record_errors(info)
        final = {name: value[has_final].copy() for name, value in step.obs.items()}
        with convert_crashes(self._name):
            obs, info = self.env.reset(options={"reset_mask": ended})
        self._record_errors(info)
        next_obs = self._spaces(obs, self._list_masks(info))
        if ACTION_MASK in next_obs:  # the infos of a reset contain no masks of the lanes that were not reset
            next_obs[ACTION_MASK] = np.where(ended[:, None], next_obs[ACTION_MASK], step.obs[ACTION_MASK])
        return self._put_final_first(final, has_final, replace(step, obs=next_obs, first=ended))

    def _put_final_first(self, final: Obs, has_final: Array, step: Step) -> Step:
        """Return the bootstrap rows of a tick if there are any, and `step`, which starts the next episodes, otherwise.

        The rows are those of lanes with a final observation in `final` (`has_final` [lanes] bool: their episode was
        truncated and it is known). `step` is then pending.
        """
        if not has_final.any():
            return step
        self._pending_step = replace(step, reward=np.where(has_final, np.float32(0), step.reward))
        rows = replace(self._idle_step, reward=step.reward, is_bootstrap_row=has_final).take(has_final)
        return replace(rows, obs=final)

    def _find_alive(self, terminated: Array, info: Info) -> Array:
        """Return the lanes [lanes] bool whose further rewards count."""
        return ~(terminated | info.get(LOSS, self._all_false))

    def _make_step(self, obs: Any, info: Info, **fields: Array) -> Step:
        """Return a Step of all lanes, in which no episode starts or ends unless `fields` differ."""
        return replace(self._idle_step, obs=self._spaces(obs, self._list_masks(info)), **fields)

    def _record_errors(self, info: Info) -> Array:
        """Log and count the environments that raised; return the lanes [lanes] bool whose step raised.

        The episodes of these lanes are truncated, and their last row is unknown.
        """
        lost = self._all_false
        for key, consequence in ERROR_CONSEQUENCES.items():
            if key not in info:
                continue
            raised = np.array([text is not None for text in info[key]])
            for env in np.flatnonzero(raised):
                error_text = info[key][env].strip()
                self.restarts, self.last_error = self.restarts + 1, error_text.splitlines()[-1]
                LOG.warning(f"environment {self._first_env + env} raised {self.last_error} {consequence}")
                LOG.info(error_text)
            if key == STEP_ERROR:
                lost = raised
        return lost

    def _list_masks(self, info: Info) -> Masks:
        """Return the mask of each environment; None for an environment without one."""
        masks, has_mask = info.get(ACTION_MASK), info.get(f"_{ACTION_MASK}")
        if masks is None:
            return [None] * len(self._lanes)
        if not isinstance(masks, np.ndarray) or len(masks) != len(self._lanes):
            raise UnsupportedEnvironment(
                f"info[{ACTION_MASK!r}] is {type(masks).__name__}; it must be an array, or a tuple of one array for "
                "each branch"
            )
        if has_mask is None or has_mask.all():
            return masks
        return [mask if has else None for mask, has in zip(masks, has_mask, strict=True)]

    def _reset_env(self, seed: int) -> tuple[Any, dict[str, Any]]:
        with convert_start_errors(self._name):
            return self.env.reset(seed=seed)


def compute_goal_rewards(env: Any, achieved: Array, desired: Array) -> tuple[Array, Array]:
    """Return rewards [n] and terminations [n] by the methods compute_reward and compute_terminated of an environment.

    The convention is that of Gymnasium-Robotics, whose methods support batches only in part; without the second one
    nothing terminates.
    """

    def compute(name: str) -> Array:
        method = getattr(env, name)
        values = np.asarray(method(achieved, desired, {}))
        if values.shape == (len(achieved),):
            return values
        return np.array([method(one, other, {}) for one, other in zip(achieved, desired, strict=True)])

    ended = compute("compute_terminated") if hasattr(env, "compute_terminated") else np.zeros(len(achieved))
    return compute("compute_reward").astype(np.float32), ended.astype(bool)
