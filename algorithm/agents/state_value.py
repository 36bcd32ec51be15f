"""The basis of agents that learn state values from their own rollouts, without a replay: network and targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.actor_critic import make_parameter_group, make_policy_family, make_std_head
from algorithm.agents.agent import Agent, DataSchedule, MergeMoments
from algorithm.agents.reward_transform import RewardTransform
from algorithm.agents.settings import StateValueSettings
from algorithm.distributions import ClosedFormDistribution, DistributionFamily
from algorithm.networks import ActorCritic, Blueprint
from algorithm.returns import RewardStream, StreamEstimate, estimate_on_policy, n_step_return
from algorithm.rollout import Array, Rollout
from algorithm.specs import Role


class StateValueAgent(Agent):
    """An agent with a policy and a critic of state values on a common torso, which learns from its own rollouts.

    A subclass defines the loss.

    Args:
        settings: The settings.
        blueprint: The network.
        role: The observations and actions.
        rng: The generator of sampled actions.
        epochs: Passes over each prepared rollout; None: one update with the rollout as it is.
        minibatches: Parts of a prepared rollout.
        streams: Rewards with a value output each, in addition to those of the environment, by name.
    """

    settings: StateValueSettings
    policy: ActorCritic
    family: DistributionFamily[ClosedFormDistribution]

    def __init__(
        self,
        settings: StateValueSettings,
        blueprint: Blueprint,
        role: Role,
        rng: np.random.Generator,
        *,
        epochs: int | None = None,
        minibatches: int = 1,
        streams: Mapping[str, RewardStream] = {},
    ):
        self.settings, self.rng = settings, rng
        self.streams = dict(sorted(streams.items()))
        self.gamma, self.gae_lambda = settings.gamma, settings.gae_lambda
        self.family = make_policy_family(settings, role.action_spec)
        std_head = make_std_head(settings, role.action_spec)
        n_values = 1 + len(streams)
        self.policy = ActorCritic(blueprint, role.obs_specs, self.family.statistics_size, n_values, std_head)
        self.groups = {
            "actor_critic": make_parameter_group(settings, self.policy, settings.learning_rate, settings.max_grad_norm)
        }
        self.schedule = DataSchedule(
            rollout_length=settings.rollout_length,
            uses_replay=settings.uses_replay,
            epochs=epochs,
            minibatches=minibatches,
        )
        self.reward_transform = RewardTransform.from_settings(settings)
        self.merges_moments = settings.normalize_advantages

    @classmethod
    def supports_streams(cls, settings: Any) -> bool:
        return True

    def split_outputs(self, outputs: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the parts of the network's outputs, without gradient.

        Returns:
            The statistics [..., S], the values [...], and the values of each stream [...] by its name.
        """
        statistics, values = outputs.detach().split([self.family.statistics_size, 1 + len(self.streams)], -1)
        v, *stream_values = values.unbind(-1)
        return statistics, v, dict(zip(self.streams, stream_values, strict=True))

    def estimate_values(self, rollout: Rollout, v: Tensor) -> Tensor:
        """Return the value targets [T, B], V_t + GAE(lambda) (Schulman et al. 2016, Eq. 16); lambda 1: n-step returns.

        Args:
            rollout: A rollout with T rows and the observation after them.
            v: V(x_t) [T+1, B].
        """
        return n_step_return(rollout.reward, self.gamma * rollout.alive, rollout.valid, v, self.gae_lambda)

    def estimate_streams(self, rollout: Rollout, values: Mapping[str, Tensor]) -> dict[str, StreamEstimate]:
        """Return the estimates of each stream by its name, with the lambda of `estimate_values`.

        Args:
            rollout: As of `estimate_values`.
            values: V(x_t) [T+1, B] of each stream by its name.
        """
        return {
            name: estimate_on_policy(
                stream, rollout.bonuses[name], rollout.first, rollout.alive, values[name], self.gae_lambda
            )
            for name, stream in self.streams.items()
        }


def normalize_advantages(advantage: Tensor, valid: Array, merge_moments: MergeMoments | None = None) -> Tensor:
    """Return advantages [T, B] with mean 0 and standard deviation 1 over valid rows, if there are at least two.

    Args:
        advantage: The advantages [T, B].
        valid: The valid rows [T, B] bool.
        merge_moments: Merges the moments with those of the batches of other learners; None for a single learner.
    """
    selected = advantage[valid]
    count = len(selected)
    std, mean = torch.std_mean(selected) if count > 1 else (advantage.new_zeros(()), selected.sum())
    if merge_moments:
        count, *merged = merge_moments(count, mean.item(), std.item())
        mean, std = advantage.new_tensor(merged)
    return (advantage - mean) / (std + 1e-8) if count > 1 else advantage
