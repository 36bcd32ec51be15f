"""Gymnasium: native vector environments, SyncVectorEnv and AsyncVectorEnv, in every autoreset mode."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from algorithm.adapters.adapter import Adapter, EnvConfig, EnvironmentBroke, EnvironmentFailed, UnsupportedEnvironment
from algorithm.adapters.missing_extras import describe, name_of, starting
from algorithm.adapters.spaces import Masks, Obs, Observations, action_spec, stack
from algorithm.adapters.vector import make_vector
from algorithm.adapters.wrappers.fault_tolerant import LOST, REBUILT
from algorithm.rollout import Array, Step
from algorithm.specs import AGENT, MASK, Role

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
    Raises UnsupportedEnvironment for an unknown id or a space that cannot be served, EnvironmentFailed where the
    environment does not start, EnvironmentBroke where all of it broke.
    """

    def __init__(self, config: EnvConfig, make: MakeVector = make_vector):
        self._name, copies = config.name, config.n_envs
        self.env = make(config)
        try:
            self.roles = {AGENT: self._role(config)}
        except (EnvironmentFailed, UnsupportedEnvironment):
            self.env.close()
            raise
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
        self._asked = self._lanes  # those of the last Step

    def reset(self, seed: int) -> dict[str, Step]:
        obs, info = self._start(seed)
        self._raised(info)
        self._ended, self._after_final, self._asked = self._none, None, self._lanes
        reward = np.zeros(len(self._lanes), np.float32)
        return {AGENT: Step(self._lanes, self._obs(obs, info), self._all, self._none, reward, self._all)}

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, Step]:
        if self._after_final is not None:
            step, self._after_final = self._after_final, None
            return {AGENT: step}
        action = actions[AGENT]
        if len(action) < len(self._lanes):  # a lane without an action awaits its reset
            action = np.zeros((len(self._lanes), action.shape[1]), np.float32)
            action[self._asked] = actions[AGENT]
        obs, reward, terminated, truncated, info = self._ask(
            self.env.step, self.roles[AGENT].action_spec.native(action)
        )
        step = self._advance(obs, reward.astype(np.float32), terminated, truncated, info)
        self._asked = step.lane
        if not len(step.lane):
            return self.step({AGENT: action[:0]})
        return {AGENT: step}

    def close(self) -> None:
        self.env.close()

    def _next_step(self, obs: Any, reward: Array, terminated: Array, truncated: Array, info: dict[str, Any]) -> Step:
        """The final observation comes by itself; the step after it ignores the action and starts the episode."""
        first, self._ended = self._ended, terminated | truncated
        step = Step(self._lanes, self._obs(obs, info), first, self._ended, reward, ~terminated)
        lost = self._raised(info)
        return step if lost is self._none else step.take(~lost)

    def _same_step(self, obs: Any, reward: Array, terminated: Array, truncated: Array, info: dict[str, Any]) -> Step:
        """The next episode's observation is already here, the final one stands in `info`."""
        lost = self._raised(info.get("final_info", {}))
        self._raised(info)
        cut, final = truncated & ~terminated & ~lost, {}
        if cut.any():
            shown = stack([info["final_obs"][lane] for lane in np.flatnonzero(cut)])
            final = self._obs(shown, info.get("final_info", {}), cut)
        return self._restarted(self._obs(obs, info), final, cut, reward, terminated, truncated)

    def _disabled(self, obs: Any, reward: Array, terminated: Array, truncated: Array, info: dict[str, Any]) -> Step:
        """Every observation is the episode's own; lanes that ended are reset here."""
        shown = self._obs(obs, info)
        ended = terminated | truncated
        if not ended.any():
            return Step(self._lanes, shown, self._none, self._none, reward, self._all)
        cut = truncated & ~terminated & ~self._raised(info)
        final = {name: value[cut].copy() for name, value in shown.items()}
        obs, info = self._ask(self.env.reset, options={"reset_mask": ended})
        self._raised(info)
        following = self._obs(obs, info)
        if self._masks:  # the infos of a reset tell nothing of the lanes that go on
            following[MASK] = np.where(ended[:, None], following[MASK], shown[MASK])
        return self._restarted(following, final, cut, reward, terminated, truncated)

    def _restarted(self, obs: Obs, final: Obs, cut: Array, reward: Array, terminated: Array, truncated: Array) -> Step:
        """New starts where episodes ended; the final rows of `cut` ones come before them, as a Step of their own."""
        following = Step(self._lanes, obs, terminated | truncated, self._none, reward, ~terminated)
        if not cut.any():
            return following
        self._after_final = following
        following.reward = np.where(cut, np.float32(0), reward)
        shown = np.flatnonzero(cut)
        none, every = self._none[shown], self._all[shown]
        return Step(shown, final, none, every, reward[shown], every)

    def _ask(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except (Exception, SystemExit) as error:  # a simulator may raise anything
            raise EnvironmentBroke(describe(self._name, "broke", error)) from error

    def _raised(self, info: Mapping[str, Any]) -> Array:
        """Lanes whose episode is lost because a step raised. They, and those whose reset raised, are told."""
        if LOST not in info and REBUILT not in info:
            return self._none
        lost = self._none
        for key, when in ((LOST, "in a step; its episode is cut and it is rebuilt"), (REBUILT, "in a reset; rebuilt")):
            if key not in info:
                continue
            raised = np.array([text is not None for text in info[key]])
            for lane in np.flatnonzero(raised):
                trouble = info[key][lane].strip()
                LOG.warning(f"the environment of lane {lane} raised {trouble.splitlines()[-1]} {when}")
                LOG.info(trouble)
            self.restarts += int(raised.sum())
            lost = raised if key == LOST else lost
        return lost

    def _obs(self, obs: Any, info: Mapping[str, Any], rows: Array = slice(None)) -> Obs:
        """What these `rows` of all lanes are shown, with their masks out of the infos of all lanes."""
        try:
            named = self._observations(obs)
            if self._masks:
                named[MASK] = self._masks(info)[rows]
        except ValueError as error:
            raise EnvironmentBroke(describe(self._name, "broke", error)) from error
        if MASK in info and MASK not in named and self.roles[AGENT].action_spec.branches:
            raise UnsupportedEnvironment(
                f"the environment {name_of(self._name)!r} gives info[{MASK!r}] with steps but gave none with its first "
                "reset; give it with every reset and every step"
            )
        return named

    def _role(self, config: EnvConfig) -> Role:
        action = action_spec(self.env.single_action_space, config.unbounded_action_limit)
        space = self.env.single_observation_space
        self._observations = Observations(space, action.branches, config.ignore_observations)
        self._masks: Masks | None = None
        specs = dict(self._observations.specs)
        if action.branches and MASK not in specs:
            _, info = self._start(seed=0)  # nothing but the first infos tells whether there are masks
            if MASK in info:
                self._masks = Masks(action, config.n_envs)
                specs[MASK] = self._masks.obs_spec
                try:
                    self._masks(info)
                except ValueError as error:
                    raise UnsupportedEnvironment(f"the environment {name_of(self._name)!r}: {error}") from error
        return Role(config.n_envs, specs, action)

    def _start(self, seed: int) -> tuple[Any, dict[str, Any]]:
        with starting(self._name):
            return self.env.reset(seed=seed)
