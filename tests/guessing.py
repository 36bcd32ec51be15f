"""An environment for every kind of action space with a known best action, registered with Gymnasium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SITUATIONS, STEPS = 3, 2
GEAR, WHEEL = spaces.Discrete(3, start=4), spaces.Box(-3, 5, (2,))
SPACES = {
    "discrete": GEAR,
    "box": WHEEL,
    "multi-discrete": spaces.MultiDiscrete([3, 2]),
    "multi-binary": spaces.MultiBinary(2),
    "dict": spaces.Dict({"gear": GEAR, "wheel": WHEEL}),
    "tuple": spaces.Tuple([spaces.Box(0, 1, (1,), np.float64), spaces.Discrete(2), spaces.MultiBinary(1)]),
}


def list_values(space: spaces.Space, action: Any) -> Iterator[tuple[float, int | None]]:
    """Yield each value of an action: (scaled to [-1, 1], None) if continuous, (index, number of values) if discrete."""
    if isinstance(space, spaces.Dict):
        for name, leaf in space.items():
            yield from list_values(leaf, action[name])
    elif isinstance(space, spaces.Tuple):
        for leaf, part in zip(space.spaces, action, strict=True):
            yield from list_values(leaf, part)
    elif isinstance(space, spaces.Box):
        yield from ((float(value), None) for value in 2 * (action - space.low) / (space.high - space.low) - 1)
    elif isinstance(space, spaces.Discrete):
        yield int(action - space.start), int(space.n)
    else:
        n_values = space.nvec if isinstance(space, spaces.MultiDiscrete) else [2] * len(action)
        yield from zip(map(int, action), map(int, n_values), strict=True)


class Guessing(gymnasium.Env):
    """An environment that shows a random situation in each step, and rewards actions close to the answer to it.

    The best return is 1. A continuous value loses its distance from the answer; a discrete value is right or wrong.

    Args:
        kind: The action space, a key of `SPACES`.
        masks: Whether one wrong answer of each branch is forbidden, with its mask in `info` or `obs`. A forbidden
            action raises.
        late: Whether each situation is answered one step after it is shown, while the next situation is shown; the
            first action is ignored.
        render_mode: Unused; Gymnasium requires it.
    """

    def __init__(self, kind: str, masks: str | None = None, late: bool = False, render_mode: str | None = None):
        self.action_space, self.masks, self.late, self.render_mode = SPACES[kind], masks, late, render_mode
        self.n_values = [n for _, n in list_values(self.action_space, self.action_space.sample())]
        self.observation_space = spaces.Discrete(SITUATIONS)
        if masks == "obs":
            allowed = spaces.MultiBinary(sum(self.n_values))
            self.observation_space = spaces.Dict({"situation": self.observation_space, "action_mask": allowed})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        """Start an episode with a random situation."""
        super().reset(seed=seed)
        self.steps_left, self.situation_to_answer = STEPS + self.late, None
        return self._next()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Reward the answer, and show the next situation."""
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        values = [value for value, _ in list_values(self.action_space, action)]
        if self.masks and any(np.equal(values, self._answers(1))):
            raise ValueError(f"{values} is forbidden in situation {self.situation_to_answer}")
        losses = [
            abs(value - answer) if n is None else value != answer
            for value, answer, n in zip(values, self._answers(), self.n_values, strict=True)
        ]
        reward = 0.0 if self.situation_to_answer is None else (1 - float(np.mean(losses))) / STEPS
        self.steps_left -= 1
        return (*self._next()[:1], reward, not self.steps_left, False, self._info())

    def _answers(self, offset: int = 0) -> list[float]:
        """Return the best value of each dimension; discrete ones are shifted by `offset`."""
        situation = self.situation_to_answer or 0
        return [
            0.6 * (-1) ** (situation + place) if n is None else (situation + place + offset) % n
            for place, n in enumerate(self.n_values)
        ]

    def _next(self) -> tuple[Any, dict]:
        before = getattr(self, "situation", None) if self.steps_left <= STEPS else None
        self.situation = int(self.np_random.integers(SITUATIONS))
        self.situation_to_answer = before if self.late else self.situation
        obs = {"situation": self.situation, "action_mask": self._mask()} if self.masks == "obs" else self.situation
        return obs, self._info()

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self._mask()} if self.masks == "info" else {}

    def _mask(self) -> np.ndarray:
        pairs = zip(self._answers(1), self.n_values, strict=True)
        return np.concatenate([np.arange(n) != forbidden for forbidden, n in pairs]).astype(np.int8)


class ConstantReward(gymnasium.Env):
    """An environment with one state, endless episodes and a reward of 1 in every step."""

    observation_space, action_space = spaces.Box(0, 1, (1,)), WHEEL

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Return the only observation."""
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Return the only observation, with a reward of 1."""
        return np.ones(1, np.float32), 1.0, False, False, {}


gymnasium.register("Guessing-v0", Guessing)
gymnasium.register("ConstantReward-v0", ConstantReward)
