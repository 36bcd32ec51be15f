"""A new algorithm: A2C (Mnih et al. 2016, the synchronous variant of A3C), as a subclass of Agent.

An agent defines its networks and parameter groups in the constructor, and a loss. Acting, replay, optimizers,
checkpoints, evaluation and export are the same for all agents. Settings name it as `module:Class`:

    python main.py gym/cartpole --set base_config.algorithm=examples.a2c:A2C a2c_config.gamma=0.98
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from algorithm import RunResult, train
from algorithm.agents.agent import (
    Agent,
    DataSchedule,
    LossReport,
    ParameterGroup,
    RewardTransform,
    mean_weights,
    td_error_stats,
    unroll,
    weighted_means,
)
from algorithm.distributions import ClippedGaussianFamily, Gaussian, make_family
from algorithm.networks import ActorCritic, Blueprint, StdHead
from algorithm.returns import n_step_return
from algorithm.rollout import Rollout
from algorithm.specs import Role


@dataclass(frozen=True, kw_only=True)
class A2CSettings:
    """The section `a2c_config`. Fields of an agent from outside of this project have their defaults here."""

    learning_rate: float = 1e-3
    max_grad_norm: float = 0.5
    gamma: float = 0.99
    trace_lambda: float = 0.95
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    rollout_length: int = 16  # rows per lane and update


class A2C(Agent):
    """An on-policy actor-critic with state values."""

    Settings = A2CSettings

    def __init__(self, settings: A2CSettings, blueprint: Blueprint, role: Role, rng: np.random.Generator):
        self.settings, self.rng = settings, rng
        spec = role.action_spec
        # Clipped Gaussians for continuous dimensions, a softmax for each discrete branch.
        self.family = make_family(spec.continuous, spec.branches, ClippedGaussianFamily, Gaussian)
        std_head = StdHead(spec.continuous, "learned", 0.5, 0.1) if spec.continuous else None
        self.policy = ActorCritic(blueprint, role.obs_specs, self.family.statistics_size, 1, std_head)
        self.groups = {
            "a2c": ParameterGroup(
                module=self.policy,
                learning_rate=settings.learning_rate,
                max_grad_norm=settings.max_grad_norm,
            )
        }
        self.schedule = DataSchedule(
            rollout_length=settings.rollout_length,
            sequence_length=settings.rollout_length,
            batch_size=1,
            replay_ratio=0,  # no replay: each rollout is learned from once
            learning_starts=0,
        )
        self.reward_transform = RewardTransform(
            scale=1.0, clip=None, reward_normalization="return_std", gamma=settings.gamma
        )

    def loss(self, rollout: Rollout) -> tuple[dict[str, Tensor], LossReport]:
        settings = self.settings
        features = unroll(self.policy.torso, rollout)  # [T+1, B, F]
        outputs = self.policy.compute_outputs(features)
        statistics, v = outputs[..., :-1], outputs[..., -1]
        policy = self.family(self.policy.mask_logits(statistics, rollout.obs)[:-1])
        # `valid` is False for rows whose successor is unknown; `alive` is False after a termination.
        target = n_step_return(
            rollout.reward, settings.gamma * rollout.alive, rollout.valid, v.detach(), settings.trace_lambda
        )
        error = target - v[:-1]
        advantage = error.detach()
        policy_loss = -advantage * policy.log_prob(rollout.raw_action) - settings.entropy_coef * policy.entropy
        weights = mean_weights(rollout.valid, rollout.weight)  # [T, B], a sum with them is the mean over valid rows
        loss = (weights * (policy_loss + settings.value_coef * error.square())).sum()
        report = LossReport(
            lambda: weighted_means(weights, {"train/critic_loss": error.square(), "train/entropy": policy.entropy}),
            lambda: td_error_stats(rollout.valid, advantage),
            features,
        )
        return {"a2c": loss}, report


def run(max_step: int = 100_000) -> RunResult:
    """Train A2C in CartPole and return the result."""
    settings = {
        "base_config": {"algorithm": "examples.a2c:A2C", "n_envs": 8, "max_step": max_step},
        "a2c_config.gamma": 0.98,
    }
    return train("CartPole-v1", settings=settings, log=print)


if __name__ == "__main__":
    run()
