"""A policy that is nothing but its critics: the best action, and now and then any."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from algorithm.distributions import MASKED_LOGIT, HybridFamily
from algorithm.networks.critic_ensemble import CriticEnsemble
from algorithm.networks.policy import Policy
from algorithm.specs import ACTION_MASK, ObsSpec


class GreedyQPolicy(Policy):
    """Of each branch the best action, and with probability `epsilon` any that is allowed.

    Best is the combination of branches that the critics value most, on average.
    """

    def __init__(self, critics: CriticEnsemble, family: HybridFamily, obs_specs: Mapping[str, ObsSpec], epsilon: float):
        super().__init__()
        self.critics, self.torso, self.family = critics, critics.torso, family
        self.has_mask = ACTION_MASK in obs_specs
        self.epsilon = epsilon
        self.combination_codes = family.one_hot_combinations()

    def select_best(self, features: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """The best of the combinations that are allowed, as one-hot indices of each branch, at the first rows of `obs`.

        Features [n, ..., F] -> [n, ..., sum of branches].
        """
        values = self.critics(features).mean(0)
        self.combination_codes = self.combination_codes.to(values.device)
        if self.has_mask:
            n_forbidden = (1 - self._allowed_actions(obs[ACTION_MASK][: len(values)])) @ self.combination_codes.T
            values = values.masked_fill(n_forbidden > 0, MASKED_LOGIT)
        return self.combination_codes[values.argmax(-1)]

    def _allowed_actions(self, mask: Tensor) -> Tensor:
        """1 for what may be done, or else 0; a branch of which all is forbidden is as if nothing were."""
        is_allowed = (mask > 0).float().split(self.family.branches, -1)
        return torch.cat([part + (1 - part.sum(-1, keepdim=True).clamp(max=1)) for part in is_allowed], -1)

    def forward(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        features, memory = self.torso.step(obs, memory)
        codes = self.select_best(features, obs)
        allowed = self._allowed_actions(obs[ACTION_MASK]) if self.has_mask else torch.ones_like(codes)
        probs = [
            (1 - self.epsilon) * code + self.epsilon * is_allowed / is_allowed.sum(-1, keepdim=True)
            for code, is_allowed in zip(
                *(part.split(self.family.branches, -1) for part in (codes, allowed)), strict=True
            )
        ]
        return torch.cat(probs, -1).log().clamp(min=MASKED_LOGIT), memory
