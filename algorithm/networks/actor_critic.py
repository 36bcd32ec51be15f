"""The network of an actor-critic agent: a torso, and a policy and a critic on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithm.distributions import FORBIDDEN
from algorithm.networks.blueprint import Blueprint
from algorithm.networks.heads import ActionHead, Head, SeparateHeads, SharedHeads
from algorithm.networks.policy import Act, Policy
from algorithm.networks.precision import in_precision
from algorithm.networks.std_head import Deviation
from algorithm.networks.torso import Torso
from algorithm.specs import MASK, ObsSpec


class ActorCritic(Policy):
    """Statistics of the policy and `values` of the critic; without these it is a policy alone.

    `deviation` makes statistics of the policy's columns where there are continuous actions. `encoded` is how many
    numbers of an action the critic reads beside the features (0: none). A `torso` that is given is another's, too. As a
    module it is the policy alone, one step at a time: (obs, memory) -> (statistics, memory).
    """

    def __init__(
        self,
        blueprint: Blueprint,
        obs_specs: Mapping[str, ObsSpec],
        statistics: int,
        values: int,
        deviation: Deviation | None = None,
        encoded: int = 0,
        torso: Torso | None = None,
    ):
        super().__init__()
        self.masked = obs_specs[MASK].shape[0] if MASK in obs_specs else 0  # logits that may be forbidden
        self.torso = torso or Torso(blueprint, obs_specs)
        self.statistics = statistics
        self.deviation: Any = deviation
        size = self.torso.size
        columns = statistics - 2 * deviation.means + deviation.columns if deviation else statistics
        # The first policy is close to uniform, whatever the features.
        branches = [(blueprint.policy, Head(columns, gain=0.01))]
        if values:
            branches.append((blueprint.critic, Head(values, gain=1.0)))
        self.heads: SharedHeads | SeparateHeads
        if any(layers for layers, _ in branches):
            self.heads = SeparateHeads(size, *branches)
        else:
            self.heads = SharedHeads(size, *(head for _, head in branches))
        self.advantage: Any = ActionHead(size, encoded, blueprint.critic) if encoded else None
        self.precision = torch.float32

    def outputs(self, features: Tensor) -> Tensor:
        """Statistics and values side by side: [..., F] -> [..., S + values]. Nothing is masked yet."""
        return self._outputs(self._hidden(features))

    @in_precision
    def _hidden(self, features: Tensor) -> list[Tensor]:
        return self.heads.hidden(features)

    def _outputs(self, hidden: list[Tensor]) -> Tensor:
        outputs = self.heads.behind(hidden)
        return self.deviation(outputs) if self.deviation else outputs

    def mask(self, statistics: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """Statistics [n, ..., S] of the first n rows of `obs`, the logits of forbidden actions at `FORBIDDEN`."""
        if not self.masked:
            return statistics
        others, logits = statistics.split([self.statistics - self.masked, self.masked], -1)
        return torch.cat((others, logits.masked_fill(obs[MASK][: len(logits)] == 0, FORBIDDEN)), -1)

    def forward(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        """{name: [B, ...]}, memory [B, state] -> statistics [B, S], memory [B, state]."""
        features, memory = self.torso.step(obs, memory)
        return self.mask(self._outputs(self.heads.hidden(features))[..., : self.statistics], obs), memory

    def numpy(self) -> Act | None:
        torso, head = self.torso.numpy(), self.heads.numpy()
        if torso is None or head is None:
            return None
        policy = [torso, head, *([self.deviation.numpy()] if self.deviation else [])]

        def act(obs: Mapping[str, np.ndarray], memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            statistics: Any = obs
            for part in policy:
                statistics = part(statistics)
            if self.masked:
                statistics[:, -self.masked :][obs[MASK] == 0] = FORBIDDEN
            return statistics, memory

        return act
