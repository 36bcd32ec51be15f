"""Transformation of raw rewards to the rewards of losses."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.agents.agent import RewardTransform
from algorithm.rollout import Array, Rollout


class RewardNormalizer:
    """A transformation of rewards: clip, multiply by `scale`, divide by the running standard deviation of returns.

    The last step, if `reward_normalization` is set, takes the standard deviation of the discounted returns that follow
    each row, up to the end of its episode. (The discounted sum of the rewards before a row is often used instead. In an
    episode with a single reward, at its end, that sum is 0 in all rows but one, while the return is not: rewards would
    be scaled up with the length of episodes.)
    """

    def __init__(self, transform: RewardTransform, lanes: int):
        self.transform = transform
        self.moments = ReturnMoments()
        self.running_sums = np.zeros((3, lanes))  # u, w and s of each lane's running episode: see `_add_rewards`

    def grow(self, lanes: int) -> None:
        """Add lanes without a running episode, so that there are `lanes` lanes."""
        self.running_sums = np.pad(self.running_sums, ((0, 0), (0, lanes - self.running_sums.shape[1])))

    def observe(self, rollout: Rollout) -> None:
        """Update the moments with a collected rollout (numpy)."""
        if not self.transform.reward_normalization:
            return
        reward, valid = self._clip(rollout.reward).astype(np.float64), rollout.valid
        for columns in rollout.iterate_lane_batches():
            lane = rollout.lane[columns]
            sums = np.where(rollout.continues_previous[columns], self.running_sums[:, lane], 0)
            for t, first in enumerate(rollout.first[:-1, columns]):
                sums = self._add_rewards(np.where(first, 0, sums), reward[t, columns], valid[t, columns])
            self.running_sums[:, lane] = sums

    def scale(self, reward: Tensor) -> Tensor:
        """Return the transformed rewards [T, B] of raw rewards [T, B]."""
        reward = self._clip(reward) * self.transform.scale
        if self.transform.reward_normalization:
            reward = reward / self.moments.std.float()
        return reward

    def _add_rewards(self, sums: Array, reward: Array, valid: Array) -> Array:
        """Add the reward [B] of row j to the returns of all rows i <= j of its episode.

        A reward r_j adds gamma^(j-i) r_j to G_i, the return of row i, so that

            sum_i G_i    grows by  r_j u_j,                  u_j = sum_i gamma^(j-i) = 1 + gamma u_(j-1)
            sum_i G_i^2  grows by  r_j (r_j w_j + 2 s_j),    w_j = sum_i gamma^2(j-i) = 1 + gamma^2 w_(j-1),
                                           s_j = sum_i gamma^(j-i) G_i = gamma (s_(j-1) + r_(j-1) w_(j-1))

        with G_i before r_j is added. So the returns of all rows are counted exactly, although no row is stored until
        its episode ends. A row that is not valid changes nothing.

        Returns:
            The running sums u, w, s [3, B] after the reward.
        """
        gamma = self.transform.gamma
        u, w, s = sums[0] * gamma + 1, sums[1] * gamma**2 + 1, sums[2]
        reward = np.where(valid, reward, 0)
        self.moments.add(valid.sum(), (reward * u).sum(), (reward * (reward * w + 2 * s)).sum())
        return np.where(valid, (u, w, gamma * (s + reward * w)), sums)

    def _clip(self, reward: Array) -> Array:
        clip = self.transform.clip
        return reward if clip is None else reward.clip(-clip, clip)


class ReturnMoments(nn.Module):
    """The number, sum and sum of squares of returns, in buffers."""

    MIN_VARIANCE_SHARE = 1e-12  # of the mean square: a smaller variance is rounding

    count: Tensor
    total: Tensor
    squares: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("count", "total", "squares"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    def add(self, count: int, total: float, squares: float) -> None:
        """Add to the number, the sum and the sum of squares."""
        self.count += int(count)
        self.total += float(total)
        self.squares += float(squares)

    @property
    def std(self) -> Tensor:
        """Return the standard deviation; 1 if all returns are equal, so that it can be a divisor."""
        count = self.count.clamp(min=1)
        square = self.squares / count
        variance = square - (self.total / count).square()
        return torch.where(variance > self.MIN_VARIANCE_SHARE * square, variance.clamp(min=0).sqrt(), 1.0)
