"""A new adapter, for a simulator in numpy: a corridor that is simulated for all environments at once.

Most environments need no adapter: a Gymnasium environment is an env.py with a function `make`, or a function that is
passed to `algorithm.train`. An adapter is for a simulator with another interface. Settings name it as `module:Class`;
examples/grid/config.yaml does:

    python main.py examples/grid
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from algorithm import RunResult, train
from algorithm.adapters.adapter import Adapter, EnvConfig
from algorithm.program import DEFAULT_ROLE
from algorithm.rollout import Step
from algorithm.specs import ActionSpec, ObsSpec, Role

SIZE = 8  # cells of the corridor; the last one is the goal
LIMIT = 40  # steps after which an episode is truncated


class GridAdapter(Adapter):
    """A corridor whose agents start in the first cell, walk left or right, and are rewarded at the end."""

    def __init__(self, config: EnvConfig):
        self.n_envs, self.limit = config.n_envs, config.max_episode_steps or LIMIT
        # One role: n lanes (one agent in each environment), what it observes, and an action with two values.
        role = Role(config.n_envs, {"position": ObsSpec((1,))}, ActionSpec(branches=(2,)))
        self.roles = {DEFAULT_ROLE: role}

    def reset(self, seed: int) -> dict[str, Step]:
        self.cell, self.age = np.zeros(self.n_envs, int), np.zeros(self.n_envs, int)
        self.ended = np.zeros(self.n_envs, bool)  # the last row of an episode has been returned
        return self._make_steps(first=~self.ended, reached=self.ended)

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, Step]:
        # The row after the last one of an episode is the first of the next, and its action is not executed.
        first = self.ended
        move = np.where(self.roles[DEFAULT_ROLE].action_spec.to_env_units(actions[DEFAULT_ROLE]) == 1, 1, -1)
        self.cell = np.where(first, 0, np.clip(self.cell + move, 0, SIZE - 1))
        self.age = np.where(first, 0, self.age + 1)
        reached = ~first & (self.cell == SIZE - 1)
        self.ended = reached | (self.age >= self.limit)
        return self._make_steps(first, reached)

    def _make_steps(self, first: np.ndarray, reached: np.ndarray) -> dict[str, Step]:
        step = Step(
            lane=np.arange(self.n_envs),
            obs={"position": (self.cell[:, None] / SIZE).astype(np.float32)},
            first=first,
            is_bootstrap_row=self.ended,  # the last observation of an episode: no action follows it
            reward=reached.astype(np.float32),
            alive=~reached,  # False after a termination, True after a truncation
        )
        return {DEFAULT_ROLE: step}

    # With `state` and `restore` a resumed run continues the same episodes; without them it starts new ones.
    def state(self) -> dict[str, Any]:
        return {"cell": self.cell.tolist(), "age": self.age.tolist(), "ended": self.ended.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.cell, self.age = np.array(state["cell"]), np.array(state["age"])
        self.ended = np.array(state["ended"])

    def close(self) -> None:
        pass


def run(max_step: int = 20_000) -> RunResult:
    """Train ACER in the corridor and return the result."""
    folder = Path(__file__).with_name("grid")
    return train(folder, settings={"base_config.max_step": max_step}, log=print)


if __name__ == "__main__":
    run()
