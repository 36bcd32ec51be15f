"""An environment for every kind of action whose best answer is known; settings name it by its id."""

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


def numbers(space: spaces.Space, action: Any) -> Iterator[tuple[float, int | None]]:
    """Each number of an action: where it is between -1 and 1, or which of how many."""
    if isinstance(space, spaces.Dict):
        for name, leaf in space.items():
            yield from numbers(leaf, action[name])
    elif isinstance(space, spaces.Tuple):
        for leaf, part in zip(space.spaces, action, strict=True):
            yield from numbers(leaf, part)
    elif isinstance(space, spaces.Box):
        yield from ((float(value), None) for value in 2 * (action - space.low) / (space.high - space.low) - 1)
    elif isinstance(space, spaces.Discrete):
        yield int(action - space.start), int(space.n)
    else:
        counts = space.nvec if isinstance(space, spaces.MultiDiscrete) else [2] * len(action)
        yield from zip(map(int, action), map(int, counts), strict=True)


class Guessing(gymnasium.Env):
    """Shows one of three situations after the other, and rewards how well each number of an action answers them.

    The best return is 1. A continuous number loses its distance from the answer; a discrete one is right or wrong.
    With `masks` (info or obs) of each branch one wrong answer is forbidden, and raises. With `late` each situation is
    to be answered in the step after the one in which it is shown, while the next is; the first answer is of no account.
    """

    def __init__(self, kind: str, masks: str | None = None, late: bool = False, render_mode: str | None = None):
        self.action_space, self.masks, self.late, self.render_mode = SPACES[kind], masks, late, render_mode
        self.counts = [count for _, count in numbers(self.action_space, self.action_space.sample())]
        self.observation_space = spaces.Discrete(SITUATIONS)
        if masks == "obs":
            allowed = spaces.MultiBinary(sum(self.counts))
            self.observation_space = spaces.Dict({"situation": self.observation_space, "action_mask": allowed})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        """Another situation."""
        super().reset(seed=seed)
        self.left, self.asked = STEPS + self.late, None
        return self._next()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Answer."""
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        values = [value for value, _ in numbers(self.action_space, action)]
        if self.masks and any(np.equal(values, self._answers(1))):
            raise ValueError(f"{values} is forbidden in situation {self.asked}")
        lost = [
            abs(value - answer) if count is None else value != answer
            for value, answer, count in zip(values, self._answers(), self.counts, strict=True)
        ]
        reward = 0.0 if self.asked is None else (1 - float(np.mean(lost))) / STEPS
        self.left -= 1
        return (*self._next()[:1], reward, not self.left, False, self._info())

    def _answers(self, away: int = 0) -> list[float]:
        """What each number should be, or what is so many places behind that."""
        situation = self.asked or 0
        return [
            0.6 * (-1) ** (situation + place) if count is None else (situation + place + away) % count
            for place, count in enumerate(self.counts)
        ]

    def _next(self) -> tuple[Any, dict]:
        before = getattr(self, "situation", None) if self.left <= STEPS else None
        self.situation = int(self.np_random.integers(SITUATIONS))
        self.asked = before if self.late else self.situation
        obs = {"situation": self.situation, "action_mask": self._mask()} if self.masks == "obs" else self.situation
        return obs, self._info()

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self._mask()} if self.masks == "info" else {}

    def _mask(self) -> np.ndarray:
        pairs = zip(self._answers(1), self.counts, strict=True)
        return np.concatenate([np.arange(count) != forbidden for forbidden, count in pairs]).astype(np.int8)


class Standing(gymnasium.Env):
    """One state without an end; every step is worth 1, whatever is done."""

    observation_space, action_space = spaces.Box(0, 1, (1,)), WHEEL

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """The state."""
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """The state."""
        return np.ones(1, np.float32), 1.0, False, False, {}


gymnasium.register("Guessing-v0", Guessing)
gymnasium.register("Standing-v0", Standing)
