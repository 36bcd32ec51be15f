"""A policy that is derived from critics: epsilon-greedy over the actions of highest value."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from algorithm.distributions import MASKED_LOGIT, HybridFamily
from algorithm.networks.critic_ensemble import CriticEnsemble
from algorithm.networks.policy import Policy
from algorithm.specs import ACTION_MASK, ObsSpec


class GreedyQPolicy(Policy):
    """An epsilon-greedy policy: the combination of discrete actions with the highest mean value over the critics.

    Each branch takes its part of the best combination with probability 1 - epsilon, otherwise an allowed action at
    random.

    Args:
        critics: Critics with a value of every combination.
        family: The distributions of the discrete branches.
        obs_specs: Observations by name; an action mask among them restricts the actions.
        epsilon: Probability of a random action, from 0 to 1.
    """

    def __init__(self, critics: CriticEnsemble, family: HybridFamily, obs_specs: Mapping[str, ObsSpec], epsilon: float):
        super().__init__()
        self.critics, self.torso, self.family = critics, critics.torso, family
        self.has_mask = ACTION_MASK in obs_specs
        self.epsilon = epsilon
        self.combination_codes = family.one_hot_combinations()

    def select_best(self, features: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """Return the best allowed combination as one-hot actions of all branches.

        Args:
            features: Features [n, ..., F].
            obs: Observations {name: [m, ...]} with m >= n; the mask of the first n rows is used.

        Returns:
            One-hot actions [n, ..., sum of branches].
        """
        values = self.critics(features).mean(0)
        self.combination_codes = self.combination_codes.to(values.device)
        if self.has_mask:
            n_forbidden = (1 - self._allowed_actions(obs[ACTION_MASK][: len(values)])) @ self.combination_codes.T
            values = values.masked_fill(n_forbidden > 0, MASKED_LOGIT)
        return self.combination_codes[values.argmax(-1)]

    def _allowed_actions(self, mask: Tensor) -> Tensor:
        """Return 1 for each allowed action, otherwise 0; a branch with all actions forbidden counts as unmasked."""
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
