"""Transformation of raw rewards to the rewards of losses."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.agents.agent import RewardTransform
from algorithm.rollout import Array, Rollout


class RewardNormalizer:
    """A transformation of rewards: clip, multiply by `scale`, divide by a running statistic of discounted returns.

    The last step, if `reward_normalization` is set, divides by the standard deviation of the returns that follow each
    row, up to the end of its episode (`return_std`), or by a larger number that bounds returns (`return_max`: see
    `ReturnMaximum`). (The standard deviation of the discounted sum of the rewards before a row is often used instead.
    In an episode with a single reward, at its end, that sum is 0 in all rows but one, while the return is not: rewards
    would be scaled up with the length of episodes.)
    """

    def __init__(self, transform: RewardTransform, lanes: int):
        self.transform = transform
        if transform.reward_normalization == "return_max":
            self.moments: ReturnMoments = ReturnMaximum(transform.gamma, transform.return_bound)
        else:
            self.moments = ReturnMoments(transform.gamma)
        self.running_sums = np.zeros((self.moments.N_SUMS, lanes))  # of each lane's running episode

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
                sums = self.moments.add_rewards(np.where(first, 0, sums), reward[t, columns], valid[t, columns])
            self.running_sums[:, lane] = sums

    def scale(self, reward: Tensor) -> Tensor:
        """Return the transformed rewards [T, B] of raw rewards [T, B]."""
        reward = self._clip(reward) * self.transform.scale
        if self.transform.reward_normalization:
            reward = reward / self.moments.divisor.float()
        return reward

    def _clip(self, reward: Array) -> Array:
        clip = self.transform.clip
        return reward if clip is None else reward.clip(-clip, clip)


class ReturnMoments(nn.Module):
    """The number, sum and sum of squares of the returns of all rows, in buffers.

    Args:
        gamma: the discount of returns.
    """

    N_SUMS = 3  # running sums of a lane: u, w and s of `add_rewards`
    MIN_VARIANCE_SHARE = 1e-12  # of the mean square: a smaller variance is rounding

    count: Tensor
    total: Tensor
    squares: Tensor

    def __init__(self, gamma: float):
        super().__init__()
        self.gamma = gamma
        for name in ("count", "total", "squares"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    def add_rewards(self, sums: Array, reward: Array, valid: Array) -> Array:
        """Add the reward of row j to the returns of all rows i <= j of its episode.

        A reward r_j adds gamma^(j-i) r_j to G_i, the return of row i, so that

            sum_i G_i    grows by  r_j u_j,                  u_j = sum_i gamma^(j-i) = 1 + gamma u_(j-1)
            sum_i G_i^2  grows by  r_j (r_j w_j + 2 s_j),    w_j = sum_i gamma^2(j-i) = 1 + gamma^2 w_(j-1),
                                           s_j = sum_i gamma^(j-i) G_i = gamma (s_(j-1) + r_(j-1) w_(j-1))

        with G_i before r_j is added. So the returns of all rows are counted exactly, although no row is stored until
        its episode ends. A row that is not valid changes nothing.

        Args:
            sums: The running sums [N_SUMS, B] of B lanes before the reward; 0 at the start of an episode.
            reward: [B].
            valid: [B] bool.

        Returns:
            The running sums [N_SUMS, B] after the reward.
        """
        gamma = self.gamma
        u, w, s = sums[0] * gamma + 1, sums[1] * gamma**2 + 1, sums[2]
        reward = np.where(valid, reward, 0)
        self.count += int(valid.sum())
        self.total += float((reward * u).sum())
        self.squares += float((reward * (reward * w + 2 * s)).sum())
        return np.where(valid, (u, w, gamma * (s + reward * w)), sums)

    @property
    def std(self) -> Tensor:
        """Return the standard deviation; 1 if all returns are equal, so that it can be a divisor."""
        count = self.count.clamp(min=1)
        square = self.squares / count
        variance = square - (self.total / count).square()
        return torch.where(variance > self.MIN_VARIANCE_SHARE * square, variance.clamp(min=0).sqrt(), 1.0)

    @property
    def divisor(self) -> Tensor:
        """Return the divisor of rewards."""
        return self.std


class ReturnMaximum(ReturnMoments):
    """The moments of returns, and the largest magnitude of the discounted sum of the rewards up to a row.

    This sum is F_t = r_t + gamma F_(t-1), over the rows of one episode. The divisor max(std, largest |F| / bound) keeps
    F of all rows so far within [-bound, bound], after the division (FlashSAC, github.com/holiday-robot/FlashSAC, commit
    f2da589b). So returns are about within the range of the atoms of a categorical critic.

    F is measured instead of the return G_t = r_t + gamma G_(t+1), which is unknown until the episode ends. In a
    stationary task, rewards before and after a row are alike, so that |F| and |G| have the same bound. Their largest
    values are equal if all rewards are equal, or if each episode has a single one. In other tasks they
    differ: since r_t = F_t - gamma F_(t-1), |G| is at most (1 + 2 gamma) times the largest |F|, and at most
    (1 + gamma) times if no reward is negative.

    Args:
        gamma: the discount of returns.
        bound: the largest magnitude of F after the division.

    Raises:
        ValueError: there is no bound above 0.
    """

    N_SUMS = 4  # u, w, s and F

    largest: Tensor

    def __init__(self, gamma: float, bound: float | None):
        if bound is None or bound <= 0:
            raise ValueError(f"return_bound is {bound}; return_max needs a number above 0")
        super().__init__(gamma)
        self.bound = bound
        self.register_buffer("largest", torch.zeros((), dtype=torch.float64))

    def add_rewards(self, sums: Array, reward: Array, valid: Array) -> Array:
        discounted = np.where(valid, reward + self.gamma * sums[3], sums[3])
        self.largest.clamp_(min=float(np.abs(discounted).max()))
        return np.vstack((super().add_rewards(sums[:3], reward, valid), discounted))

    @property
    def divisor(self) -> Tensor:
        """Return the divisor of rewards; 1 if all rewards were 0."""
        return torch.maximum(self.std, self.largest / self.bound)
