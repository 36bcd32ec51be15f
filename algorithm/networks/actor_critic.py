"""The network of an actor-critic agent: a torso, and a policy and a critic on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithm.distributions import MASKED_LOGIT
from algorithm.networks.blueprint import Blueprint
from algorithm.networks.heads import AdvantageHead, HeadSpec, SeparateHeads, SharedHeads
from algorithm.networks.policy import ActFunction, Policy
from algorithm.networks.precision import run_in_precision
from algorithm.networks.std_head import StdHead
from algorithm.networks.torso import Torso
from algorithm.specs import ACTION_MASK, ObsSpec


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
        statistics_size: int,
        n_values: int,
        std_head: StdHead | None = None,
        encoded_size: int = 0,
        torso: Torso | None = None,
    ):
        super().__init__()
        self.n_masked_logits = (
            obs_specs[ACTION_MASK].shape[0] if ACTION_MASK in obs_specs else 0
        )  # logits that may be forbidden
        self.torso = torso or Torso(blueprint, obs_specs)
        self.statistics_size = statistics_size
        self.std_head: Any = std_head
        size = self.torso.size
        n_columns = statistics_size - 2 * std_head.n_means + std_head.n_columns if std_head else statistics_size
        # The first policy is close to uniform, whatever the features.
        branches = [(blueprint.policy, HeadSpec(n_columns, gain=0.01))]
        if n_values:
            branches.append((blueprint.critic, HeadSpec(n_values, gain=1.0)))
        self.heads: SharedHeads | SeparateHeads
        if any(layers for layers, _ in branches):
            self.heads = SeparateHeads(size, *branches)
        else:
            self.heads = SharedHeads(size, *(head for _, head in branches))
        self.advantage_head: Any = AdvantageHead(size, encoded_size, blueprint.critic) if encoded_size else None
        self.precision = torch.float32

    def compute_outputs(self, features: Tensor) -> Tensor:
        """Statistics and values side by side: [..., F] -> [..., S + values]. Nothing is masked yet."""
        return self._compute_outputs(self._compute_hidden(features))

    @run_in_precision
    def _compute_hidden(self, features: Tensor) -> list[Tensor]:
        return self.heads.compute_hidden(features)

    def _compute_outputs(self, hidden: list[Tensor]) -> Tensor:
        outputs = self.heads.compute_outputs(hidden)
        return self.std_head(outputs) if self.std_head else outputs

    def mask_logits(self, statistics: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """Statistics [n, ..., S] of the first n rows of `obs`, the logits of forbidden actions at `MASKED_LOGIT`."""
        if not self.n_masked_logits:
            return statistics
        others, logits = statistics.split([self.statistics_size - self.n_masked_logits, self.n_masked_logits], -1)
        return torch.cat((others, logits.masked_fill(obs[ACTION_MASK][: len(logits)] == 0, MASKED_LOGIT)), -1)

    def forward(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        """{name: [B, ...]}, memory [B, state] -> statistics [B, S], memory [B, state]."""
        features, memory = self.torso.step(obs, memory)
        return self.mask_logits(
            self._compute_outputs(self.heads.compute_hidden(features))[..., : self.statistics_size], obs
        ), memory

    def numpy(self) -> ActFunction | None:
        torso, head = self.torso.numpy(), self.heads.numpy()
        if torso is None or head is None:
            return None
        policy = [torso, head, *([self.std_head.numpy()] if self.std_head else [])]

        def act(obs: Mapping[str, np.ndarray], memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            statistics: Any = obs
            for part in policy:
                statistics = part(statistics)
            if self.n_masked_logits:
                statistics[:, -self.n_masked_logits :][obs[ACTION_MASK] == 0] = MASKED_LOGIT
            return statistics, memory

        return act
