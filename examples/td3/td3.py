"""TD3: twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv 1802.09477); continuous actions.

python main.py examples/td3
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.actor_critic import make_parameter_group
from algorithm.agents.agent import Agent, DataSchedule, LossResult, RewardTransform, unroll
from algorithm.agents.metrics import mean_weights, td_error_stats, weighted_means
from algorithm.agents.settings import OptimizerSettings
from algorithm.annotations import Range
from algorithm.distributions import ClippedGaussianFamily, FixedStdGaussian, make_family
from algorithm.losses import squared_error, surrogate_loss
from algorithm.networks import ActorCritic, Blueprint, BoundedMeans, CriticEnsemble, TargetNetwork, Torso
from algorithm.rollout import Decision, Rollout, Step
from algorithm.specs import Role


@dataclass(frozen=True, kw_only=True)
class TD3Settings(OptimizerSettings):
    """The section `td3_config`, which inherits the settings of the optimizer and their defaults.

    The standard deviations and the clipping range are in units of half the range of an action.
    """

    optimizer_decay: float = 0.999
    learning_rate_critic: Annotated[float, Range(above=0)] = 1e-3
    learning_rate_policy: Annotated[float, Range(above=0)] = 1e-3
    max_grad_norm: Annotated[float, Range(above=0)] = 1e3
    gamma: Annotated[float, Range(at_least=0, at_most=1)] = 0.99
    reward_scale: Annotated[float, Range(above=0)] = 1.0
    exploration_std: Annotated[float, Range(above=0)] = 0.1  # sigma
    smoothing_std: Annotated[float, Range(at_least=0)] = 0.2  # sigma tilde
    smoothing_clip: Annotated[float, Range(at_least=0)] = 0.5  # c
    policy_update_every: Annotated[int, Range(at_least=1)] = 2  # d, in updates of the critics
    tau: Annotated[float, Range(at_least=0, at_most=1)] = 0.005
    rollout_length: Annotated[int, Range(at_least=1)] = 1
    batch_size: Annotated[int, Range(at_least=1)] = 256
    replay_ratio: Annotated[float, Range(above=0)] = 1.0
    learning_starts: Annotated[int, Range(at_least=0)] = 1000
    random_steps: Annotated[int, Range(at_least=0)] = 1000

    uses_replay = True


class TD3(Agent):
    """A deterministic policy and two critics, each with its own layers and a target network."""

    Settings = TD3Settings

    def __init__(self, settings: TD3Settings, blueprint: Blueprint, role: Role, rng: np.random.Generator):
        spec = role.action_spec
        if spec.branches or not spec.continuous:
            raise ValueError(f"TD3 is for continuous actions only; the actions are {spec}")
        self.settings, self.rng, self.random_steps = settings, rng, settings.random_steps
        self.family = make_family(spec.continuous, (), ClippedGaussianFamily, FixedStdGaussian)

        def make_policy() -> ActorCritic:  # phi
            head = BoundedMeans(spec.continuous, settings.exploration_std)
            return ActorCritic(blueprint, role.obs_specs, self.family.statistics_size, 0, head)

        def make_critics() -> CriticEnsemble:  # theta_1 and theta_2
            return CriticEnsemble(blueprint, Torso(blueprint, role.obs_specs), spec.continuous, 1, 2)

        self.network = self.policy = make_policy()
        self.critics = make_critics()
        self.target_policy = TargetNetwork(self.policy, make_policy())
        self.target_critics = TargetNetwork(self.critics, make_critics())
        self.target_networks = {"policy": self.target_policy, "critics": self.target_critics}
        rates, norm = (settings.learning_rate_critic, settings.learning_rate_policy), settings.max_grad_norm
        self.groups = {
            "critics": make_parameter_group(settings, self.critics, rates[0], norm),
            "policy": make_parameter_group(settings, self.policy, rates[1], norm),
        }
        self.schedule = DataSchedule(
            rollout_length=settings.rollout_length,
            batch_size=settings.batch_size,
            replay_ratio=settings.replay_ratio,
            learning_starts=settings.learning_starts,
            on_policy_updates=False,
        )
        self.reward_transform = RewardTransform(
            scale=settings.reward_scale, clip=None, reward_normalization=None, gamma=settings.gamma
        )
        self.needs_behavior = False

    def act_uniformly(self, step: Step, memory: np.ndarray) -> Decision:
        decision = self.greedy(step, memory)
        action = self.rng.uniform(-1, 1, decision.raw_action.shape).astype(np.float32)
        return Decision(raw_action=action, action=action, behavior=decision.behavior, memory=decision.memory)

    def loss(self, rollout: Rollout) -> tuple[dict[str, Tensor], LossResult]:
        """Return the losses of Algorithm 1."""
        settings = self.settings
        features = unroll(self.critics.torso, rollout)
        with torch.no_grad():
            # a~ = pi'(s') + epsilon, epsilon ~ clip(N(0, sigma~), -c, c); y = r + gamma min_i Q'_i(s', a~)
            next_action = self._select(self.target_policy.network, rollout)[1:]
            noise = torch.randn_like(next_action) * settings.smoothing_std
            next_action += noise.clamp(-settings.smoothing_clip, settings.smoothing_clip)
            target_features = unroll(self.target_critics.network.torso, rollout)[1:]
            next_q = self._evaluate(self.target_critics.network, target_features, next_action.clamp(-1, 1)).amin(0)
            target = rollout.reward + settings.gamma * rollout.alive * next_q
        q = self._evaluate(self.critics, features[:-1], rollout.raw_action.clamp(-1, 1))
        weights = mean_weights(rollout.valid, rollout.weight)  # [T, B], a sum with them is the mean over valid rows
        losses = {"critics": (weights * squared_error(target.expand_as(q), q)).sum()}
        if self.update % settings.policy_update_every == 0:
            # grad_phi J = mean of grad_a Q_1(s, a) at a = pi(s), times grad_phi pi(s)
            action = self._select(self.network, rollout)[:-1]
            at = action.detach().requires_grad_()
            (direction,) = torch.autograd.grad(self._evaluate(self.critics, features[:-1].detach(), at)[0].sum(), at)
            losses["policy"] = surrogate_loss(weights.unsqueeze(-1) * direction, action)
        error = (target - q[0]).detach()
        result = LossResult(
            lambda: weighted_means(weights, {"train/critic_loss": squared_error(target, q[0]), "train/value": q[0]}),
            lambda: td_error_stats(rollout.valid, error),
            features,
        )
        return losses, result

    def update_targets(self, update: int) -> None:
        if update % self.settings.policy_update_every == 0:
            for target in self.target_networks.values():
                target.polyak_update(self.settings.tau)

    def _select(self, policy: ActorCritic, rollout: Rollout) -> Tensor:
        """Return the actions pi(s) [T+1, B, d]."""
        return policy.compute_outputs(unroll(policy.torso, rollout))[..., : self.family.size]

    def _evaluate(self, critics: CriticEnsemble, features: Tensor, action: Tensor) -> Tensor:
        """Return the values of both critics [2, T, B]."""
        return critics(features, action.unsqueeze(-2)).squeeze(-1)
