"""Reactor (Gruslys et al. 2018, arXiv 1704.04651), for discrete actions.

The code follows the order of the paper: the policy gradient (section 3.1), the critic with distributional Retrace
(section 3.2, see `returns.distributional_retrace`), and the priorities (section 3.3, see `replay.lazy_prioritized`);
the network (section 4) is in `networks.actor_critic`. Gradients with respect to its outputs are closed forms.

The combinations of several discrete branches are the actions of one distribution. In shapes, a rollout has T rows and
B columns; networks are evaluated at T+1 rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.actor_critic import make_parameter_group, make_replay_schedule, make_support
from algorithm.agents.agent import Agent, LossResult, RewardTransform, select_statistics_rows
from algorithm.agents.metrics import mean_weights, summarize_update, td_error_stats
from algorithm.agents.settings import ReactorSettings
from algorithm.distributions import Categorical, CategoricalFamily, make_flattened_family
from algorithm.distributions.categorical import find_combination
from algorithm.losses import (
    bias_correction,
    cross_entropy,
    leave_one_out,
    squared_error,
    surrogate_loss,
    truncated_importance,
)
from algorithm.networks import Blueprint, BranchedActorCritic, TargetNetwork, batch_statistics
from algorithm.returns import DISTRIBUTIONAL_ESTIMATORS, RetraceInputs, Support, retrace
from algorithm.rollout import Rollout
from algorithm.specs import Role


class Reactor(Agent):
    """Reactor: beta leave-one-out policy gradients, and a categorical critic that learns from replayed sequences.

    Raises:
        ValueError: The settings do not suit the actions or the network.
    """

    Settings = ReactorSettings
    policy: BranchedActorCritic
    family: CategoricalFamily

    def __init__(self, settings: ReactorSettings, blueprint: Blueprint, role: Role, rng: np.random.Generator):
        self.settings, self.rng = settings, rng
        spec = role.action_spec
        if spec.continuous:
            raise ValueError(f"algorithm REACTOR is for discrete actions, not for {spec}; use ACER, SAC, A2C or PPO")
        self.family = make_flattened_family(spec.branches)
        n_actions = self.family.statistics_size
        self.critic: Critic = ScalarCritic(n_actions)
        if settings.critic == "categorical":
            self.critic = CategoricalCritic(n_actions, make_support(settings), settings.distributional)
        n_values, gain, fraction = self.critic.n_values, self.critic.gain, settings.policy_uniform_fraction
        self.policy, target = (
            BranchedActorCritic(blueprint, role.obs_specs, self.family, n_values, gain, fraction) for _ in range(2)
        )
        self.target = TargetNetwork(self.policy, target)
        self.target_networks = {"target": self.target}
        self.groups = {
            "reactor": make_parameter_group(settings, self.policy, settings.learning_rate, settings.max_grad_norm)
        }
        self.schedule = make_replay_schedule(settings, self.policy, on_policy_updates=False)
        self.reward_transform = RewardTransform.from_settings(settings)

    def loss(self, rollout: Rollout) -> tuple[dict[str, Tensor], LossResult]:
        settings, network = self.settings, self.policy
        rows = partial(select_statistics_rows, rollout)
        with batch_statistics(rows, commits=True):
            outputs = network.unroll(rollout)
        with torch.no_grad(), batch_statistics(rows):
            target_values = self.target.network.unroll_critic(rollout)
        rollout = rollout.drop_burn_in()
        with torch.inference_mode():
            valid = rollout.valid
            logits = network.mask_logits(outputs.logits.detach(), rollout.obs)
            all_policies = self.family(network.mix_with_uniform(logits))
            behavior, policy = self.family(rollout.behavior), all_policies.select_rows(slice(-1))
            rho = policy.log_ratio(behavior, rollout.raw_action).clamp(-20, 20).exp()
            inputs = RetraceInputs(
                reward=rollout.reward,
                discount=settings.gamma * rollout.alive,
                valid=valid,
                taken=policy.find_index(rollout.raw_action).squeeze(-1),
                trace=settings.trace_lambda * rho.clamp(max=1),
                probs=all_policies.probs,
            )
            critic = self.critic.evaluate(outputs.values.detach(), target_values, inputs)
            estimate = self._estimate_policy_gradient(critic, policy, behavior, inputs.taken, rho)
            # The gradient of J + entropy_coef * H with respect to the probabilities. That of the entropy has one more
            # term, a constant, which has no effect.
            gradient = estimate - settings.entropy_coef * policy.log_probs
            weights = mean_weights(valid, rollout.weight).unsqueeze(-1)
            # d pi(a) / d logits = (1 - e) p(a) ([a] - p), with p = softmax(logits).
            softmax = Categorical(logits[:-1])
            policy_direction = weights * (1 - settings.policy_uniform_fraction) * softmax.fisher_product(gradient)
            value_direction = weights * settings.value_coef * critic.ascent_direction

        def compute_metrics() -> dict[str, Tensor]:
            metric_values = {
                "train/critic_loss": critic.loss,
                "train/entropy": policy.entropy,
                "train/importance_ratio": rho,
                "train/value": policy.expectation(critic.q),
            }
            plain_weights = mean_weights(valid, torch.ones_like(rollout.weight))
            q_taken = critic.q.gather(-1, inputs.taken.unsqueeze(-1)).squeeze(-1)
            policy_values = {
                "train/clip_fraction": (rho > 1).float(),
                "train/policy_objective": policy.expectation(estimate),
            }
            return summarize_update(plain_weights, metric_values, critic.retrace_target, q_taken, policy_values)

        loss = surrogate_loss(policy_direction.clone(), outputs.logits[:-1]) + surrogate_loss(
            value_direction.clone(), outputs.values[:-1]
        )
        result = LossResult(
            compute_metrics,
            lambda: td_error_stats(valid, critic.error),
            outputs.features,
            compute_row_errors=lambda: critic.error,
        )
        return {"reactor": loss}, result

    def _estimate_policy_gradient(
        self, critic: CriticOutput, policy: Categorical, behavior: Categorical, taken: Tensor, rho: Tensor
    ) -> Tensor:
        """Return the estimate of the gradient of J with respect to the probabilities of the policy [T, B, K]."""
        settings, q, index = self.settings, critic.q, taken.unsqueeze(-1)
        if settings.policy_gradient == "leave_one_out":  # Eq. 8
            inverse = 1 / behavior.probs.gather(-1, index).squeeze(-1)
            beta = {
                "one": torch.ones_like(inverse),
                "inverse": inverse,
                "truncated": inverse.clamp(max=settings.importance_clip),
            }[settings.loo_beta]
            return leave_one_out(q, critic.retrace_target, index, beta)
        # Truncated importance sampling with bias correction (Wang et al. 2017, Eq. 8-9): weights of scores, which are
        # the gradients of log pi(a).
        v, clip = policy.expectation(q), settings.importance_clip
        weight = bias_correction(policy.probs, behavior.probs, q - v.unsqueeze(-1), clip)
        weight = weight.scatter_add(-1, index, truncated_importance(rho, critic.retrace_target - v, clip).unsqueeze(-1))
        return weight / policy.probs.clamp(min=torch.finfo(weight.dtype).tiny)

    @torch.no_grad()
    def features(self, rollout: Rollout) -> Tensor:
        return self.policy.unroll_torso(rollout)[0]

    def evaluate_actions(self, features: Tensor, raw_action: Tensor) -> Tensor:
        branch = self.policy.critic
        if branch.has_memory:
            raise ValueError("the critic has a memory, so that its values are no functions of the features of one row")
        q = self.critic.compute_q(branch.head(branch.layers(features)))
        return q.gather(-1, find_combination(raw_action, self.family.branches)).squeeze(-1).unsqueeze(0)

    def update_targets(self, update: int) -> None:
        """Copy the network to the target network every `update_target_per_step` optimizer steps."""
        if update % self.settings.update_target_per_step == 0:
            self.target.polyak_update(1.0)


@dataclass(frozen=True, kw_only=True)
class CriticOutput:
    """The values, targets and errors of a batch, without gradient."""

    q: Tensor  # Q(x_t, a) of every action [T, B, K], by the critic
    retrace_target: Tensor  # R_t, the Retrace target of Q(x_t, a_t) [T, B], by the target network
    ascent_direction: Tensor  # the negative gradient of the loss with respect to the critic's outputs [T, B, n_values]
    error: Tensor  # target - Q, or the total variation; its magnitude determines the priority of a sequence [T, B]
    loss: Tensor  # [T, B]


class Critic(ABC):
    """A critic that computes its target, error and gradient from the outputs of networks."""

    n_values: int  # number of outputs of the network
    gain: float  # of the initial weights of these outputs

    @abstractmethod
    def evaluate(self, values: Tensor, target_values: Tensor, inputs: RetraceInputs) -> CriticOutput:
        """Return the output of the critic.

        Args:
            values: The outputs of the network [T+1, B, n_values].
            target_values: The outputs of the target network [T+1, B, n_values].
            inputs: The rewards, actions, traces c = lambda min(1, rho) and policy of the batch.
        """

    @abstractmethod
    def compute_q(self, values: Tensor) -> Tensor:
        """Return Q(x, a) of every action [..., K], given the outputs of the network [..., n_values]."""


class ScalarCritic(Critic):
    """Q(x, a) of every action, whose target is the Retrace target (Munos et al. 2016)."""

    gain = 1.0

    def __init__(self, n_actions: int):
        self.n_values = n_actions

    def evaluate(self, values: Tensor, target_values: Tensor, inputs: RetraceInputs) -> CriticOutput:
        taken, q = inputs.taken.unsqueeze(-1), values[:-1]
        target = retrace(
            inputs.reward,
            inputs.discount,
            inputs.valid,
            target_values[:-1].gather(-1, taken).squeeze(-1),
            (inputs.probs * target_values).sum(-1),
            inputs.trace,
        )
        q_taken = q.gather(-1, taken).squeeze(-1)
        error = target - q_taken
        return CriticOutput(
            q=q,
            retrace_target=target,
            ascent_direction=torch.zeros_like(q).scatter_(-1, taken, error.unsqueeze(-1)),
            error=error,
            loss=squared_error(target, q_taken),
        )

    def compute_q(self, values: Tensor) -> Tensor:
        return values


class CategoricalCritic(Critic):
    """The distribution of the return of every action on the atoms z, whose target is that of distributional Retrace.

    With dueling logits (section 4): q_i(x, a) = softmax_i(V_i(x) + A_i(x, a)). The columns of the output are V, then A
    of each action.
    """

    gain = 0.01  # the initial distributions are close to uniform

    def __init__(self, n_actions: int, support: Support, estimator: str):
        self.n_actions, self.support, self.estimate = n_actions, support, DISTRIBUTIONAL_ESTIMATORS[estimator]
        self.n_values = support.n_atoms * (1 + n_actions)

    def evaluate(self, values: Tensor, target_values: Tensor, inputs: RetraceInputs) -> CriticOutput:
        log_q = self._compute_logits(values[:-1]).log_softmax(-1)
        target_q = self._compute_logits(target_values).softmax(-1)
        target = self.estimate(inputs, target_q, self.support)
        atoms, q = self.support.make_atoms(target), log_q.exp()
        index = inputs.taken[..., None, None].expand(*inputs.taken.shape, 1, self.support.n_atoms)
        # The gradient of -sum_i target_i log q_i(x_t, a_t) with respect to the logits is q - target, since the target's
        # entries sum to 1, also if some are negative.
        direction = target - q.gather(-2, index).squeeze(-2)
        of_actions = torch.zeros_like(q).scatter_(-2, index, direction.unsqueeze(-2))
        return CriticOutput(
            q=q @ atoms,
            retrace_target=target @ atoms,
            ascent_direction=torch.cat((direction, of_actions.flatten(-2)), -1),
            error=0.5 * direction.abs().sum(-1),  # the total variation (section 3.3)
            loss=cross_entropy(target, log_q.gather(-2, index).squeeze(-2)),
        )

    def compute_q(self, values: Tensor) -> Tensor:
        return self._compute_logits(values).softmax(-1) @ self.support.make_atoms(values)

    def _compute_logits(self, values: Tensor) -> Tensor:
        """Return the logits [..., K, N] of every action."""
        state, actions = values.split([self.support.n_atoms, self.n_values - self.support.n_atoms], -1)
        return state.unsqueeze(-2) + actions.unflatten(-1, (self.n_actions, self.support.n_atoms))
