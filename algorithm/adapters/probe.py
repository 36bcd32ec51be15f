"""Tiny environments with known values, for exact tests of what an agent learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from algorithm.adapters.adapter import Adapter, EnvConfig, UnsupportedEnvironment
from algorithm.program import DEFAULT_ROLE
from algorithm.rollout import Step
from algorithm.specs import ActionSpec, ObsSpec, Role

OBS = "obs"


@dataclass(frozen=True)
class Probe:
    """A Markov decision process with few states, observed one-hot, whose episodes are truncated after `limit` steps.

    Attributes:
        next_state: [states, actions].
        reward: [states, actions].
        alive: [states, actions], 0 for terminations.
        n_starts: Number of states, of which one is drawn for the start of an episode.
        limit: Steps after which an episode is truncated.
    """

    next_state: list[list[int]]
    reward: list[list[float]]
    alive: list[list[int]]
    n_starts: int = 1
    limit: int = 10


PROBES = {
    # One state, reward 1: its value is 1 / (1 - gamma), although every episode is truncated after 10 steps.
    "truncation": Probe([[0, 0]], [[1, 1]], [[1, 1]]),
    # Reward -50 in the first state, then 1 forever: with gamma 0.9 the values are -41 and 10, unless the value of
    # another episode leaks in.
    "leak": Probe([[1, 1], [1, 1]], [[-50, -50], [1, 1]], [[1, 1], [1, 1]]),
    # One decision, then termination: reward 1 for the action that equals the state.
    "choice": Probe([[0, 0], [1, 1]], [[1, 0], [0, 1]], [[0, 0], [0, 0]], n_starts=2),
    # Three steps to the right terminate with reward 1; a step to the left terminates with reward 0.
    "chain": Probe([[0, 1], [1, 2], [2, 2]], [[0, 0], [0, 0], [0, 1]], [[0, 1], [0, 1], [0, 0]]),
}


class ProbeAdapter(Adapter):
    """An adapter of `n_envs` environments of one of `PROBES`, one lane each.

    A bootstrap row follows every episode, as in Gymnasium's mode NEXT_STEP. `unbounded_action_limit` has no effect.

    Raises:
        UnsupportedEnvironment: The name is not in `PROBES`, or the probe is to be rendered.
    """

    unsupported_settings: ClassVar[Mapping[str, str]] = {
        "env_args": "probes have no arguments",
        "env_timeout": "probes run in this process",
        "env_wrappers": "they wrap single environments, and a probe has none",
        "ignore_observations": f"a probe has only the observation {OBS}",
    }

    def __init__(self, config: EnvConfig):
        name, n_envs = config.name, config.n_envs
        if name not in PROBES:
            raise UnsupportedEnvironment(f"env_name {name!r}: the probes are {', '.join(PROBES)}")
        if config.render_mode:
            raise UnsupportedEnvironment("a probe cannot be rendered")
        probe = PROBES[name]
        self._next_state, self._reward, self._alive = map(np.array, (probe.next_state, probe.reward, probe.alive))
        self._n_starts, self._limit = probe.n_starts, min(probe.limit, config.max_episode_steps or probe.limit)
        self._n_states, n_actions = self._next_state.shape
        obs_specs = {OBS: ObsSpec((self._n_states,), "uint8")}
        self.roles = {DEFAULT_ROLE: Role(n_envs, obs_specs, ActionSpec(branches=(n_actions,)))}
        self._lanes = np.arange(n_envs)

    def reset(self, seed: int) -> dict[str, Step]:
        self._rng = np.random.default_rng(seed)
        self._state = self._draw_starts()
        self._age = np.zeros_like(self._lanes)
        self._ended = np.zeros(len(self._lanes), bool)
        return self._make_steps(~self._ended, np.zeros(len(self._lanes)), ~self._ended)

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, Step]:
        first = self._ended
        action = self.roles[DEFAULT_ROLE].action_spec.to_env_units(actions[DEFAULT_ROLE])
        reward, alive = self._reward[self._state, action], self._alive[self._state, action] > 0
        self._state = np.where(first, self._draw_starts(), self._next_state[self._state, action])
        self._age = np.where(first, 0, self._age + 1)
        alive = alive | first
        self._ended = ~first & (~alive | (self._age >= self._limit))
        return self._make_steps(first, np.where(first, 0.0, reward), alive)

    def state(self) -> dict[str, Any]:
        episodes = {"state": self._state.tolist(), "age": self._age.tolist(), "ended": self._ended.tolist()}
        return {"generator": self._rng.bit_generator.state, **episodes}

    def restore(self, state: Mapping[str, Any]) -> None:
        if len(state["state"]) != len(self._lanes):
            raise ValueError(f"the state has {len(state['state'])} environments, the adapter {len(self._lanes)}")
        self._rng = np.random.default_rng()
        self._rng.bit_generator.state = state["generator"]
        self._state, self._age = np.array(state["state"]), np.array(state["age"])
        self._ended = np.array(state["ended"])

    def close(self) -> None:
        pass

    def _draw_starts(self) -> np.ndarray:
        return self._rng.integers(self._n_starts, size=len(self._lanes))

    def _make_steps(self, first: np.ndarray, reward: np.ndarray, alive: np.ndarray) -> dict[str, Step]:
        step = Step(
            lane=self._lanes,
            obs={OBS: np.eye(self._n_states, dtype=np.uint8)[self._state]},
            first=first,
            is_bootstrap_row=self._ended,
            reward=reward.astype(np.float32),
            alive=alive,
        )
        return {DEFAULT_ROLE: step}
