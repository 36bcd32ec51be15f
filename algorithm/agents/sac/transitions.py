"""Transitions of several steps: the first row of each replayed sequence, and the row after its rewards."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from algorithm.agents.agent import unroll
from algorithm.networks import Torso
from algorithm.returns.estimators import sum_rewards
from algorithm.rollout import Array, Rollout


@dataclass(frozen=True, kw_only=True)
class Transitions:
    """The first rows of B sequences of n rows, for targets r_0 + ... + gamma^n V(x_n).

    So networks evaluate only 2 of the n + 1 rows of each sequence, and a batch can have more sequences.

    Attributes:
        rollout: One row and the row after it; its reward is the discounted sum of the rewards.
        discount: The product of their discounts [1, B]; 0 after a termination.
        starts, ends: The rows from which a torso computes the features of either: the row, after those of its warm-up.
    """

    rollout: Rollout
    discount: Tensor
    starts: Rollout
    ends: Rollout

    def unroll(self, torso: Torso, target_torso: Torso | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return features [2, B, F] of critics, with gradient at the first row, of target critics, and of the policy.

        The features of target critics at the first row are those of the critics, since no target reads them.
        """
        features = unroll(torso, self.starts)
        with torch.no_grad():
            next_features = unroll(torso, self.ends)
            target_features = next_features if target_torso is None else unroll(target_torso, self.ends)
        known = features.detach()
        acting_features = torch.cat((known, next_features))
        return torch.cat((features, next_features)), torch.cat((known, target_features)), acting_features


def join_steps(rollout: Rollout, gamma: float) -> Transitions:
    """Return the transitions of the first rows, over all rewards of each sequence or until its episode ends."""
    rows, warmup = rollout.drop_burn_in(), rollout.burn_in
    sums = sum_rewards(rows.reward, gamma * rows.alive, rows.valid, len(rows))
    reward, discount, end = (each[:1] for each in sums)
    window = torch.arange(warmup + 1, device=end.device).unsqueeze(-1)
    after, columns = end + window, torch.arange(end.shape[1], device=end.device)

    def select(value: Array) -> tuple[Array, Array]:
        """Return the rows [warmup + 1, B, ...] that end with the first row, and with the row after the rewards."""
        return value[: warmup + 1], value[after, columns]

    obs, firsts = {name: select(value) for name, value in rollout.obs.items()}, select(rollout.first)
    starts, ends = (
        replace(rollout, obs={name: value[k] for name, value in obs.items()}, first=firsts[k]) for k in range(2)
    )
    invalid = ~rows.valid[:1]
    joined = replace(
        rows,
        obs={name: torch.cat((start[-1:], last[-1:])) for name, (start, last) in obs.items()},
        first=torch.cat((rows.first[:1], invalid)),
        raw_action=rows.raw_action[:1],
        reward=reward,
        alive=(discount > 0) | invalid,
        behavior=rows.behavior[:1],
        bonuses={},
        records={},
    )
    return Transitions(rollout=joined, discount=discount, starts=starts, ends=ends)
