"""An environment with pictures: their brightness is the number of the step."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Pictured(gymnasium.Env):
    """Episodes of 3 to 12 steps, drawn at reset; the reward is 1, or random if `noise` is true."""

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
