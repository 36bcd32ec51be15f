"""A new algorithm: advantage-weighted regression (Peng et al. 2019, arXiv 1910.00177), as a subclass of Agent.

An agent defines its networks and parameter groups in the constructor, and a loss. Acting, replay, optimizers,
checkpoints, evaluation and export are the same for all agents. Settings name it as `module:Class`:

    python main.py gym/cartpole --set base_config.algorithm=examples.awr:AWR awr_config.gamma=0.98
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from algorithm import RunResult, train
from algorithm.agents.agent import Agent, DataSchedule, LossResult, ParameterGroup, RewardTransform, unroll
from algorithm.agents.metrics import mean_weights, td_error_stats, weighted_means
from algorithm.agents.settings import AgentSettings
from algorithm.distributions import ClippedGaussianFamily, Gaussian, make_family
from algorithm.networks import ActorCritic, Blueprint, StdHead
from algorithm.returns import n_step_return
from algorithm.rollout import Rollout
from algorithm.specs import Role


@dataclass(frozen=True, kw_only=True)
class AWRSettings(AgentSettings):
    """The section `awr_config`. Fields of an agent from outside of this project have their defaults here."""

    uses_replay = True

    learning_rate: float = 1e-3
    max_grad_norm: float = 0.5
    gamma: float = 0.99
    trace_lambda: float = 0.95
    temperature: float = 0.2  # beta of the weights, in units of the scaled rewards
    max_weight: float = 20.0
    value_coef: float = 1.0
    rollout_length: int = 16  # steps per agent before each update
    batch_size: int = 16  # replayed sequences of a batch
    replay_ratio: float = 4.0  # replayed batches for each rollout
    learning_starts: int = 500  # stored steps before the first replayed batch


class AWR(Agent):
    """An agent that imitates stored actions, with weights that grow exponentially with their advantages."""

    Settings = AWRSettings

    def __init__(self, settings: AWRSettings, blueprint: Blueprint, role: Role, rng: np.random.Generator):
        self.settings, self.rng = settings, rng
        spec = role.action_spec
        # Clipped Gaussians for continuous dimensions, a softmax for each discrete branch.
        self.family = make_family(spec.continuous, spec.branches, ClippedGaussianFamily, Gaussian)
        std_head = StdHead(spec.continuous, "learned", 0.5, 0.1) if spec.continuous else None
        self.policy = ActorCritic(blueprint, role.obs_specs, self.family.statistics_size, 1, std_head)
        self.groups = {
            "awr": ParameterGroup(
                module=self.policy,
                learning_rate=settings.learning_rate,
                max_grad_norm=settings.max_grad_norm,
            )
        }
        self.schedule = DataSchedule(
            rollout_length=settings.rollout_length,
            sequence_length=settings.rollout_length,
            batch_size=settings.batch_size,
            replay_ratio=settings.replay_ratio,
            learning_starts=settings.learning_starts,
        )
        self.reward_transform = RewardTransform(
            scale=1.0, clip=None, reward_normalization="return_std", gamma=settings.gamma
        )

    def loss(self, rollout: Rollout) -> tuple[dict[str, Tensor], LossResult]:
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
        imitation = (advantage / settings.temperature).exp().clamp(max=settings.max_weight)
        policy_loss = -imitation * policy.log_prob(rollout.raw_action)
        weights = mean_weights(rollout.valid, rollout.weight)  # [T, B], a sum with them is the mean over valid rows
        loss = (weights * (policy_loss + settings.value_coef * error.square())).sum()
        result = LossResult(
            lambda: weighted_means(weights, {"train/critic_loss": error.square(), "train/entropy": policy.entropy}),
            lambda: td_error_stats(rollout.valid, advantage),
            features,
        )
        return {"awr": loss}, result


def run(max_step: int = 100_000) -> RunResult:
    """Train AWR in CartPole and return the result."""
    settings = {
        "base_config": {"algorithm": "examples.awr:AWR", "n_envs": 8, "max_step": max_step},
        "replay_config.capacity": 10_000,
        "awr_config.gamma": 0.98,
    }
    return train("CartPole-v1", settings=settings, log=print)


if __name__ == "__main__":
    run()
