"""Tiny environments whose values are known: what they teach an agent can be checked to the last digit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from algorithm.adapters.adapter import Adapter, EnvConfig, UnsupportedEnvironment
from algorithm.adapters.wrappers.env_wrappers import reject_wrappers
from algorithm.rollout import Step
from algorithm.specs import DEFAULT_ROLE, ActionSpec, ObsSpec, Role

OBS = "obs"


@dataclass(frozen=True)
class Probe:
    """A Markov decision process with few states, observed one-hot, cut after `limit` steps.

    `start(rng, n)` draws first states [n]; `move(state, action)` gives next states, rewards and who is alive.
    """

    states: int
    actions: int
    limit: int
    start: Callable[[np.random.Generator, int], np.ndarray]
    move: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


def _draw_zeros(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.zeros(n, np.int64)


PROBES = {
    # One state, reward 1: its value is 1 / (1 - gamma), though every episode is cut after 10 steps.
    "truncation": Probe(1, 2, 10, _draw_zeros, lambda s, a: (s, np.ones(len(s)), s == s)),
    # A start worth -50, then reward 1 for ever: with gamma .9 values -41 and 10, unless another episode leaks in.
    "leak": Probe(2, 2, 10, _draw_zeros, lambda s, a: (np.ones_like(s), np.where(s == 0, -50.0, 1.0), s == s)),
    # One decision: reward 1 for the action that has the number of the state, and the end.
    "choice": Probe(2, 2, 10, lambda rng, n: rng.integers(2, size=n), lambda s, a: (s, (s == a).astype(float), s != s)),
    # Three steps to the right end and are worth 1; the first step to the left ends with nothing.
    "chain": Probe(3, 2, 10, _draw_zeros, lambda s, a: (np.minimum(s + a, 2), a * (s == 2) * 1.0, (a == 1) & (s < 2))),
}


class ProbeAdapter(Adapter):
    """Copies of one of `PROBES`, one lane each; a final row follows every episode, as in Gymnasium's NEXT_STEP mode.

    Raises UnsupportedEnvironment for another name, and for what a probe does not have: arguments, something to
    render, processes to wait for, single environments to wrap, observations to ignore. There is nothing for
    `unbounded_action_limit` to bound.
    """

    def __init__(self, config: EnvConfig):
        name, n_envs = config.name, config.n_envs
        if name not in PROBES:
            raise UnsupportedEnvironment(f"env_name {name!r}: the probes are {', '.join(PROBES)}")
        if config.args:
            raise UnsupportedEnvironment(f"env_args {dict(config.args)}: probes take none")
        if config.render:
            raise UnsupportedEnvironment("there is nothing to see of a probe")
        if config.timeout:
            raise UnsupportedEnvironment(f"env_timeout is {config.timeout:g}: probes run in this process")
        if config.ignore_observations:
            raise UnsupportedEnvironment(f"ignore_observations: a probe has nothing but {OBS}")
        reject_wrappers(config, "a probe")
        self.probe = PROBES[name]
        self.limit = min(self.probe.limit, config.max_episode_steps or self.probe.limit)
        obs_specs = {OBS: ObsSpec((self.probe.states,), "uint8")}
        self.roles = {DEFAULT_ROLE: Role(n_envs, obs_specs, ActionSpec(branches=(self.probe.actions,)))}
        self._lanes = np.arange(n_envs)
        self._state = self._age = np.zeros(n_envs, np.int64)
        self._ended = np.zeros(n_envs, bool)

    def reset(self, seed: int) -> dict[str, Step]:
        self._rng = np.random.default_rng(seed)
        self._state = self.probe.start(self._rng, len(self._lanes))
        self._age = np.zeros_like(self._lanes)
        self._ended = np.zeros(len(self._lanes), bool)
        return self._make_steps(~self._ended, np.zeros(len(self._lanes)), ~self._ended)

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, Step]:
        first = self._ended
        action = self.roles[DEFAULT_ROLE].action_spec.to_env_units(actions[DEFAULT_ROLE])
        state, reward, alive = self.probe.move(self._state, action)
        self._state = np.where(first, self.probe.start(self._rng, len(first)), state)
        self._age = np.where(first, 0, self._age + 1)
        alive = alive | first
        self._ended = ~first & (~alive | (self._age >= self.limit))
        return self._make_steps(first, np.where(first, 0.0, reward), alive)

    def state(self) -> dict[str, Any]:
        episodes = {"state": self._state.tolist(), "age": self._age.tolist(), "ended": self._ended.tolist()}
        return {"generator": self._rng.bit_generator.state, **episodes}

    def restore(self, state: Mapping[str, Any]) -> None:
        if len(state["state"]) != len(self._lanes):
            raise ValueError(f"{len(state['state'])} copies were saved; there are {len(self._lanes)}")
        self._rng = np.random.default_rng()
        self._rng.bit_generator.state = state["generator"]
        self._state, self._age = np.array(state["state"]), np.array(state["age"])
        self._ended = np.array(state["ended"])

    def close(self) -> None:
        pass

    def _make_steps(self, first: np.ndarray, reward: np.ndarray, alive: np.ndarray) -> dict[str, Step]:
        obs = {OBS: np.eye(self.probe.states, dtype=np.uint8)[self._state]}
        return {DEFAULT_ROLE: Step(self._lanes, obs, first, self._ended, reward.astype(np.float32), alive)}
