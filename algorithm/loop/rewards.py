"""What is learned from instead of raw rewards."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.agent import RewardScaling
from algorithm.networks import RunningMoments
from algorithm.rollout import Array, Rollout


class ReturnScale:
    """Raw rewards to the rewards that are learned from.

    Clipped, times `scale`, and, where returns are normalised, over the running standard deviation of the discounted
    return of each lane, which starts anew at `first` and behind a break.
    """

    def __init__(self, scaling: RewardScaling, lanes: int):
        self.scaling = scaling
        self.moments = RunningMoments()
        self.running = np.zeros(lanes)  # discounted return of each lane so far

    def grow(self, lanes: int) -> None:
        """Add lanes with a return of 0, up to `lanes` lanes."""
        self.running = np.pad(self.running, (0, lanes - len(self.running)))

    def observe(self, rollout: Rollout) -> None:
        """Take in the rewards of a collected rollout."""
        if not self.scaling.normalize_returns:
            return
        reward = self._clip(rollout.reward)
        seen = np.zeros(reward.shape)
        for columns in rollout.rounds():
            lane = rollout.lane[columns]
            running = np.where(rollout.joined[columns], self.running[lane], 0)
            for t, first in enumerate(rollout.first[:-1, columns]):
                running = np.where(first, 0, running) * self.scaling.gamma + reward[t, columns]
                seen[t, columns] = running
            self.running[lane] = running
        self.moments.merge(torch.from_numpy(seen[rollout.valid]))

    def scale(self, reward: Tensor) -> Tensor:
        """[T, B] raw -> [T, B] scaled."""
        reward = self._clip(reward) * self.scaling.scale
        if self.scaling.normalize_returns:
            reward = reward / self.moments.std.float()
        return reward

    def _clip(self, reward: Array) -> Array:
        clip = self.scaling.clip
        return reward if clip is None else reward.clip(-clip, clip)
