"""The networks of an actor-critic agent: a policy and a critic on a common torso, or a separate critic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.distributions import MASKED_LOGIT
from algorithm.networks.heads import AdvantageHead, HeadSpec, SeparateHeads, SharedHeads, StdHead
from algorithm.networks.modules import make_numpy_chain
from algorithm.networks.passes import AutogradPass, ManualPass, ManualStack, Pass, make_manual_stacks
from algorithm.networks.policy import ActFunction, Policy
from algorithm.networks.torso import Blueprint, Torso
from algorithm.specs import ACTION_MASK, ObsSpec


class ActorCritic(Policy):
    """A network that computes the statistics of the policy and the values of a critic.

    As a policy, `forward` computes the statistics only, one step at a time.

    Args:
        blueprint: The layers; the outputs follow them.
        obs_specs: Observations by name; an action mask among them applies to the last statistics, the logits.
        statistics_size: Number S of statistics that determine the policy's distribution.
        n_values: Number of values of the critic; 0: a policy without critic.
        std_head: The standard deviations of continuous actions; None without continuous actions.
        encoded_size: Size of an encoded action that an additional advantage head reads; 0: no advantage head.
        torso: A torso shared with another network; None: a new one.
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
        self.n_masked_logits = obs_specs[ACTION_MASK].shape[0] if ACTION_MASK in obs_specs else 0
        self.torso = torso or Torso(blueprint, obs_specs)
        self.statistics_size = statistics_size
        self.std_head = std_head
        size = self.torso.size
        n_columns = statistics_size - 2 * std_head.n_means + std_head.n_columns if std_head else statistics_size
        # With a small gain the initial policy is close to uniform for all features.
        branches = [(blueprint.policy, HeadSpec(n_columns, gain=0.01))]
        if n_values:
            branches.append((blueprint.critic, HeadSpec(n_values, gain=1.0)))
        self.heads: SharedHeads | SeparateHeads
        if any(layers for layers, _ in branches):
            self.heads = SeparateHeads(size, *branches)
        else:
            self.heads = SharedHeads(size, *(head for _, head in branches))
        self.advantage_head: Any = AdvantageHead(size, encoded_size, blueprint.critic) if encoded_size else None
        self.manual_stacks: Sequence[ManualStack] = ()  # the heads, if gradients are computed by hand

    def use_manual_passes(self) -> None:
        """Compute gradients by hand in passes of the policy, if its layers support it and there is no critic."""
        heads, layers = self.heads, [nn.Identity()]
        if isinstance(heads, SeparateHeads):
            layers, (heads, *_) = heads.layers, heads.heads
        if len(layers) == len(heads.sizes) == 1 and self.heads.precision is torch.float32:
            self.manual_stacks = make_manual_stacks([(layers[0], heads.linear)], by_output=True)

    def run(self, features: Tensor) -> Pass:
        """Return the pass of a policy without critic for features [T, B, F] without gradient -> [T, B, S]."""
        if self.manual_stacks:
            return ManualPass(self.manual_stacks, features, (*features.shape[:-1], -1), self.std_head)
        return AutogradPass(self.compute_outputs(features))

    def compute_outputs(self, features: Tensor) -> Tensor:
        """Return statistics and values concatenated: [..., F] -> [..., S + n_values]. No logit is masked yet."""
        return self._insert_std(self.heads.unroll(features))

    def _insert_std(self, outputs: Tensor) -> Tensor:
        return self.std_head(outputs) if self.std_head else outputs

    def mask_logits(self, statistics: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """Set the logits of forbidden actions to MASKED_LOGIT.

        Args:
            statistics: Statistics [n, ..., S].
            obs: Observations {name: [m, ...]} with m >= n; the mask of the first n rows is used.

        Returns:
            The statistics [n, ..., S], unchanged without an action mask.
        """
        if not self.n_masked_logits:
            return statistics
        others, logits = statistics.split([self.statistics_size - self.n_masked_logits, self.n_masked_logits], -1)
        return torch.cat((others, logits.masked_fill(obs[ACTION_MASK][: len(logits)] == 0, MASKED_LOGIT)), -1)

    def forward(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        features, memory = self.torso.step(obs, memory)
        statistics = self._insert_std(self.heads(features))[..., : self.statistics_size]
        return self.mask_logits(statistics, obs), memory

    def numpy(self) -> ActFunction | None:
        policy = make_numpy_chain(self.torso, self.heads, self.std_head)
        if policy is None:
            return None

        def act(obs: Mapping[str, np.ndarray], memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            statistics = policy(obs)
            if self.n_masked_logits:
                statistics[:, -self.n_masked_logits :][obs[ACTION_MASK] == 0] = MASKED_LOGIT
            return statistics, memory

        return act


class SeparateCritic(nn.Module):
    """A critic that shares no parameters with the policy: it reads features that its gradient does not change.

    Before its outputs are the `critic` layers of the blueprint; without them, layers made by the factory of `body`.

    Args:
        blueprint: The layers.
        inputs: Size F of the features.
        n_values: Number of values.
        encoded_size: Size of an encoded action that an additional advantage head reads; 0: no advantage head.
    """

    def __init__(self, blueprint: Blueprint, inputs: int, n_values: int, encoded_size: int = 0):
        super().__init__()
        layers = blueprint.critic or blueprint.body
        self.heads = SeparateHeads(inputs, (layers, HeadSpec(n_values, gain=1.0)))
        self.advantage_head: Any = AdvantageHead(inputs, encoded_size, layers) if encoded_size else None

    def forward(self, features: Tensor) -> Tensor:
        """Return the values [..., n_values] at features [..., F] without gradient."""
        return self.heads.unroll(features)
