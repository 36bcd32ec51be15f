"""A policy that is nothing but its critics: the best action, and now and then any."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from algorithm.distributions import FORBIDDEN, Conditioned
from algorithm.networks.critic_ensemble import Critics
from algorithm.networks.policy import Policy
from algorithm.specs import MASK, ObsSpec


class Greedy(Policy):
    """Of each branch the best action, and with probability `epsilon` any that is allowed.

    Best is the combination of branches that the critics value most, on average.
    """

    def __init__(self, critics: Critics, family: Conditioned, obs_specs: Mapping[str, ObsSpec], epsilon: float):
        super().__init__()
        self.critics, self.torso, self.family = critics, critics.torso, family
        self.masked = MASK in obs_specs
        self.epsilon = epsilon
        self.places = family.codes()

    def best(self, features: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """The best of the combinations that are allowed, as one-hot indices of each branch, at the first rows of `obs`.

        Features [n, ..., F] -> [n, ..., sum of branches].
        """
        values = self.critics(features).mean(0)
        self.places = self.places.to(values.device)
        if self.masked:
            forbidden = (1 - self._allowed(obs[MASK][: len(values)])) @ self.places.T
            values = values.masked_fill(forbidden > 0, FORBIDDEN)
        return self.places[values.argmax(-1)]

    def _allowed(self, mask: Tensor) -> Tensor:
        """1 for what may be done, or else 0; a branch of which all is forbidden is as if nothing were."""
        free = (mask > 0).float().split(self.family.branches, -1)
        return torch.cat([part + (1 - part.sum(-1, keepdim=True).clamp(max=1)) for part in free], -1)

    def forward(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        features, memory = self.torso.step(obs, memory)
        codes = self.best(features, obs)
        allowed = self._allowed(obs[MASK]) if self.masked else torch.ones_like(codes)
        mixed = [
            (1 - self.epsilon) * code + self.epsilon * free / free.sum(-1, keepdim=True)
            for code, free in zip(*(part.split(self.family.branches, -1) for part in (codes, allowed)), strict=True)
        ]
        return torch.cat(mixed, -1).log().clamp(min=FORBIDDEN), memory
