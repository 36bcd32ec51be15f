"""What is learned from instead of raw rewards."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.agents.agent import RewardTransform
from algorithm.rollout import Array, Rollout


class RewardNormalizer:
    """Raw rewards to the rewards that are learned from.

    Clipped, times `scale`, and, where returns are normalised, over the running standard deviation of the discounted
    returns that follow the rows, each up to the end of its episode.

    The sum of the rewards up to a row would be wrong here: in an episode with one reward, at its end, that reward is in
    the return of every row, but in the sum of rewards so far of the last row alone, so that rewards would be scaled up
    with the length of episodes.
    """

    def __init__(self, scaling: RewardTransform, lanes: int):
        self.scaling = scaling
        self.moments = ReturnMoments()
        self.running_sums = np.zeros((3, lanes))  # of each lane's episode so far: see `_count`

    def grow(self, lanes: int) -> None:
        """Add lanes with a return of 0, up to `lanes` lanes."""
        self.running_sums = np.pad(self.running_sums, ((0, 0), (0, lanes - self.running_sums.shape[1])))

    def observe(self, rollout: Rollout) -> None:
        """Add the rewards of a collected rollout to the moments."""
        if not self.scaling.reward_normalization:
            return
        reward, valid = self._clip(rollout.reward).astype(np.float64), rollout.valid
        for columns in rollout.iterate_lane_batches():
            lane = rollout.lane[columns]
            sums = np.where(rollout.continues_previous[columns], self.running_sums[:, lane], 0)
            for t, first in enumerate(rollout.first[:-1, columns]):
                sums = self._add_rewards(np.where(first, 0, sums), reward[t, columns], valid[t, columns])
            self.running_sums[:, lane] = sums

    def scale(self, reward: Tensor) -> Tensor:
        """[T, B] raw -> [T, B] scaled."""
        reward = self._clip(reward) * self.scaling.scale
        if self.scaling.reward_normalization:
            reward = reward / self.moments.std.float()
        return reward

    def _add_rewards(self, sums: Array, reward: Array, valid: Array) -> Array:
        """Add one reward [B] to the returns of all rows i <= j of its episode; `running_sums` [3, B] after it.

        A reward r_j adds gamma^(j-i) r_j to G_i, the return of row i, so that

            sum_i G_i    grows by  r_j u_j,                  u_j = sum_i gamma^(j-i) = 1 + gamma u_(j-1)
            sum_i G_i^2  grows by  r_j (r_j w_j + 2 s_j),    w_j = sum_i gamma^2(j-i) = 1 + gamma^2 w_(j-1),
                                           s_j = sum_i gamma^(j-i) G_i = gamma (s_(j-1) + r_(j-1) w_(j-1))

        with G_i as it was before r_j: all rows are counted exactly, and none has to be kept until its episode ends.
        A row that is not valid changes nothing.
        """
        gamma = self.scaling.gamma
        u, w, s = sums[0] * gamma + 1, sums[1] * gamma**2 + 1, sums[2]
        reward = np.where(valid, reward, 0)
        self.moments.add(valid.sum(), (reward * u).sum(), (reward * (reward * w + 2 * s)).sum())
        return np.where(valid, (u, w, gamma * (s + reward * w)), sums)

    def _clip(self, reward: Array) -> Array:
        clip = self.scaling.clip
        return reward if clip is None else reward.clip(-clip, clip)


class ReturnMoments(nn.Module):
    """Count, sum and sum of squares of returns, which grow with every reward."""

    MIN_VARIANCE_SHARE = 1e-12  # share of the mean square that a variance must exceed: less is rounding

    count: Tensor
    total: Tensor
    squares: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("count", "total", "squares"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    def add(self, count: int, total: float, squares: float) -> None:
        """Add to each of the three."""
        self.count += int(count)
        self.total += float(total)
        self.squares += float(squares)

    @property
    def std(self) -> Tensor:
        """Return the standard deviation; 1 while all returns are the same, so that it can be a divisor."""
        count = self.count.clamp(min=1)
        square = self.squares / count
        variance = square - (self.total / count).square()
        return torch.where(variance > self.MIN_VARIANCE_SHARE * square, variance.clamp(min=0).sqrt(), 1.0)
