"""Environments of many spaces, with action masks, with pictures, and with values that are NaN.

Worker processes import this module, so it imports little.
"""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.adapters.counted import CountedEpisodes, Ticks

BRANCHES = (3, 2)


class Sampling(gymnasium.Env):
    """An environment that observes samples of any space and rejects actions outside its action space."""

    def __init__(self, observation_space, action_space, length=3, render_mode=None):
        self.observation_space, self.action_space = observation_space, action_space
        self.length, self.render_mode = length, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.t += 1
        return self.observation_space.sample(), 0.0, False, self.t == self.length, {}


def allowed(number) -> np.ndarray:
    """Return the mask [5] of an observed number."""
    bits = int(number)
    return np.array([1, bits & 1, bits >> 1 & 1, 1, bits >> 2 & 1], np.int8)


class Masked(CountedEpisodes):
    """CountedEpisodes in which every observation has the mask `allowed`; `how` is its place and form.

    With `starts`, only resets return a mask; with `steps`, only steps.
    """

    action_space = spaces.MultiDiscrete(BRANCHES)

    def __init__(self, ends=(), how="flat", breaks_at=None, render_mode=None):
        super().__init__(ends, render_mode)
        self.how, self.breaks_at = how, breaks_at
        if how in ("binary", "box"):
            binary = spaces.MultiBinary(5) if how == "binary" else spaces.Box(0, 1, (5,), np.int8)
            self.observation_space = spaces.Dict({"number": CountedEpisodes.observation_space, "action_mask": binary})

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed, options=options)
        return self._observe(obs), {} if self.how == "steps" else self._info(obs)

    def step(self, action):
        if self.executed == self.breaks_at:
            raise ArithmeticError("the ground gave way")
        obs, reward, terminated, truncated, _ = super().step(int(action[0]))
        info = {} if self.how == "starts" else self._info(obs)
        return self._observe(obs), reward, terminated, truncated, info

    def _observe(self, obs):
        return {"number": obs, "action_mask": allowed(obs[0])} if self.how in ("binary", "box") else obs

    def _info(self, obs):
        mask = allowed(obs[0])
        forms = {"bool": mask.astype(bool), "split": (mask[:3], mask[3:]), "short": mask[1:]}
        forms |= dict.fromkeys(("flat", "starts", "steps"), mask)
        return {"action_mask": forms[self.how]} if self.how in forms else {}


class FragileVector(Ticks):
    """A vector environment that raises an error at its third step."""

    def step(self, actions):
        if self.count[0] == 2:
            raise RuntimeError("a motor\nis broken")
        return super().step(actions)


class Invalid(Sampling):
    """An environment whose first observations are valid, and all others NaN."""

    def __init__(self, reward: float = 1.0):
        super().__init__(**PLAIN)
        self.reward = reward

    def step(self, action):
        return np.full(2, np.nan, np.float32), self.reward, False, False, {}


class Pictured(gymnasium.Env):
    """An environment with pictures, whose brightness is the number of the step.

    Its episodes have 3 to 12 steps, drawn at reset; the reward is 1, or random if `noise` is true.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = spaces.Box(0, 20, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None, noise=False):
        self.render_mode, self.noise = render_mode, noise

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.step_number = int(self.np_random.integers(3, 13)), 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.step_number += 1
        reward = np.random.default_rng().random() if self.noise else 1.0
        return np.full(1, self.step_number, np.float32), reward, self.step_number == self.length, False, {}

    def render(self):
        return np.full((32, 48, 3), 20 * self.step_number, np.uint8)


PLAIN = {"observation_space": spaces.Box(-1, 1, (2,)), "action_space": spaces.Discrete(2)}
MISSION = spaces.Dict({"mission": spaces.Text(9), "image": spaces.Box(0, 255, (7, 7, 3), np.uint8)})
CAMERA = spaces.Box(0, 255, (90, 96, 3), np.uint8)
BUTTON = spaces.Discrete(2)
gymnasium.register("Mission-v0", Sampling, kwargs={"observation_space": MISSION, "action_space": BUTTON})
gymnasium.register(
    "Camera-v0", Sampling, max_episode_steps=50, kwargs={"observation_space": CAMERA, "action_space": BUTTON}
)
gymnasium.register("Words-v0", Sampling, kwargs={"observation_space": spaces.Text(5), "action_space": BUTTON})
gymnasium.register("Invalid-v0", Invalid, max_episode_steps=3)
gymnasium.register("Fragile-v0", lambda: Sampling(**PLAIN), vector_entry_point=FragileVector, max_episode_steps=50)
