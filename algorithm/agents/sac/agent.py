"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905), for actions of every kind.

What is discrete is summed over exactly (Christodoulou 2019, arXiv 1910.07207); numbers are drawn, with gradient, for
each combination of branches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.agent import (
    Agent,
    DataSchedule,
    LossReport,
    RewardTransform,
    mean_weights,
    td_error_stats,
    weighted_means,
)
from algorithm.agents.sac.actors import EpsilonGreedy, PolicyOutput, SacActor, SoftPolicy, make_adam_group
from algorithm.annotations import CONTINUOUS, DISCRETE, OnlyIf, Unless
from algorithm.distributions import HybridFamily
from algorithm.losses import clipped_error, soft_state_value, squared_error, surrogate_loss
from algorithm.networks import Blueprint, CriticEnsemble, TargetNetwork, Torso
from algorithm.returns import rescale, unscale
from algorithm.returns.estimators import ESTIMATORS, STATE_VALUE_ESTIMATORS, EstimatorInputs, TraceClipping
from algorithm.rollout import Decision, Rollout, Step
from algorithm.specs import Role


@dataclass(frozen=True)
class SacSettings:
    """The settings of `sac_config`; defaults, units and meaning stand in default_config.yaml."""

    learning_rate_critic: float
    learning_rate_policy: Annotated[float, Unless(discrete_dqn_like=True)]
    learning_rate_alpha: Annotated[float, OnlyIf(use_auto_alpha=True, discrete_dqn_like=False)]
    learning_rate_schedule: Literal["constant", "linear"]
    optimizer_beta1: float
    optimizer_decay: float
    optimizer_epsilon: float
    max_grad_norm_critic: float
    max_grad_norm_policy: Annotated[float, Unless(discrete_dqn_like=True)]
    max_grad_norm_alpha: Annotated[float, OnlyIf(use_auto_alpha=True, discrete_dqn_like=False)]
    gamma: float
    reward_scale: float
    reward_clip: float | None
    reward_normalization: Literal["return_std"] | None
    tau: float  # share of the target critics that is replaced by the critics
    update_target_per_step: int  # updates between these replacements
    ensemble_q_num: int  # N critics
    ensemble_q_sample: int  # M of them, drawn for each update, that targets and policy read
    ensemble_q_reduce: Annotated[Literal["auto", "min", "mean"], Unless(ensemble_q_sample=1)]
    use_auto_alpha: Annotated[bool, Unless(discrete_dqn_like=True)]
    init_log_alpha: Annotated[float, Unless(discrete_dqn_like=True)]
    target_c_alpha: Annotated[float, CONTINUOUS, OnlyIf(use_auto_alpha=True, discrete_dqn_like=False)]  # times -1 nat
    target_d_alpha: Annotated[float, DISCRETE, OnlyIf(use_auto_alpha=True, discrete_dqn_like=False)]  # of the largest
    alpha_critic_scale: Annotated[float, Unless(discrete_dqn_like=True)]  # of alpha in the critics' targets
    discrete_dqn_like: bool
    discrete_dqn_epsilon: Annotated[float, OnlyIf(discrete_dqn_like=True)]
    clip_epsilon: float | None  # of Q around the target critic's
    rescale_values: bool  # h (Pohlen et al. 2018)
    n_step: int  # rewards of a target
    use_n_step_is: Annotated[bool, Unless(n_step=1)]  # correct the rewards after the first for the policy
    estimator: Annotated[Literal["vtrace", "retrace"], Unless(n_step=1, use_n_step_is=False)]
    v_lambda: Annotated[float, Unless(n_step=1)]  # lambda
    v_rho: Annotated[float, OnlyIf(use_n_step_is=True, estimator="vtrace"), Unless(n_step=1)]  # rho-bar of V-trace
    v_c: Annotated[float, Unless(n_step=1, use_n_step_is=False)]  # c-bar
    std_init: Annotated[float, CONTINUOUS, Unless(discrete_dqn_like=True)]
    std_min: Annotated[float, CONTINUOUS, Unless(discrete_dqn_like=True)]
    rollout_length: int
    sequence_length: int  # rows of a replayed window that are learned from
    burn_in_step: int
    batch_size: int
    replay_ratio: float
    learning_starts: int

    def __post_init__(self):
        if self.n_step > self.sequence_length:
            raise ValueError(f"n_step {self.n_step} must not be above sequence_length {self.sequence_length}")
        if self.ensemble_q_sample > self.ensemble_q_num:
            raise ValueError(
                f"ensemble_q_sample {self.ensemble_q_sample} is above ensemble_q_num {self.ensemble_q_num}"
            )
        if self.estimator == "vtrace" and self.v_rho < self.v_c:
            raise ValueError(f"v_rho {self.v_rho} must not be below v_c {self.v_c}")
        if not self.replay_ratio:
            raise ValueError("replay_ratio 0 leaves nothing to learn from")
        if self.std_init <= self.std_min:
            raise ValueError(f"std_init {self.std_init} must be above std_min {self.std_min}")


class Sac(Agent):
    """SAC with an ensemble of critics, targets of several steps, and a temperature for each kind of action.

    Raises ValueError for settings that do not suit the kind of action.
    """

    Settings = SacSettings

    def __init__(self, settings: SacSettings, blueprint: Blueprint, role: Role, rng: np.random.Generator):
        spec = role.action_spec
        self.settings, self.rng = settings, rng
        self.family = HybridFamily(spec.continuous, spec.branches)
        self.estimator = settings.estimator if settings.use_n_step_is else "n_step"
        self.trace_clipping = TraceClipping(settings.v_c, settings.v_rho, settings.v_lambda, settings.n_step)
        self.takes_minimum = settings.ensemble_q_reduce == "min" or (
            settings.ensemble_q_reduce == "auto" and bool(spec.continuous)
        )
        torso, target_torso = (Torso(blueprint, role.obs_specs) for _ in range(2))
        # Where nothing of it is learned, the target critics' features are the same.
        self.torso_is_trainable = any(True for _ in torso.parameters())
        self.critics = self._make_critics(blueprint, torso)
        self.target = TargetNetwork(self.critics, self._make_critics(blueprint, target_torso))
        self.actor: SacActor = (
            EpsilonGreedy(settings, self.family, self.critics, role)
            if settings.discrete_dqn_like
            else SoftPolicy(settings, self.family, blueprint, torso, role)
        )
        self.policy = self.actor.policy
        self.state_size, self.stored_state_size = torso.state_size, torso.stored_state_size
        if settings.burn_in_step and not self.stored_state_size:
            raise ValueError(f"burn_in_step is {settings.burn_in_step}, but the network has no memory behind its body")
        # The critics learn the torso; the policy reads its features, and stands behind it in the flat parameters.
        critic_group = make_adam_group(
            self.critics, settings, settings.learning_rate_critic, settings.max_grad_norm_critic
        )
        self.groups = {"critic": critic_group, **self.actor.groups}
        self.target_networks = {"target": self.target}
        self.schedule = DataSchedule(
            settings.rollout_length,
            settings.sequence_length,
            settings.batch_size,
            settings.replay_ratio,
            "fixed",
            settings.learning_starts,
            on_policy_updates=False,
            burn_in=torso.warmup_rows + settings.burn_in_step,
            warmup_rows=torso.warmup_rows,
        )
        self.reward_transform = RewardTransform(
            settings.reward_scale, settings.reward_clip, settings.reward_normalization, settings.gamma
        )

    def _make_critics(self, blueprint: Blueprint, torso: Torso) -> CriticEnsemble:
        encoded_size, n_values = (
            (self.family.encoded_size, 1) if self.family.n_continuous else (0, self.family.n_combinations)
        )
        return CriticEnsemble(blueprint, torso, encoded_size, n_values, self.settings.ensemble_q_num)

    def act(self, step: Step, memory: np.ndarray) -> Decision:
        statistics, memory = self.policy.act(step.obs, memory)
        return self._make_decision(self.family.sample(statistics, self.rng), statistics, memory)

    def greedy(self, step: Step, memory: np.ndarray) -> Decision:
        statistics, memory = self.policy.act(step.obs, memory)
        return self._make_decision(self.family.mode(statistics), statistics, memory)

    def _make_decision(self, raw_action: np.ndarray, statistics: np.ndarray, memory: np.ndarray) -> Decision:
        return Decision(raw_action, self.family.to_action(raw_action), statistics, memory)

    def loss(self, rollout: Rollout) -> tuple[dict[str, Tensor], LossReport]:
        features = self._unroll(self.critics, rollout)
        with torch.no_grad():
            target_features = self._unroll(self.target.network, rollout) if self.torso_is_trainable else features
        rollout = rollout.drop_burn_in()
        valid, critic_indices = rollout.valid, self._sample_critics()
        weights = mean_weights(valid, rollout.weight)

        # What the policy would do at every row: its draws behind a row make that row's target.
        detached_features = features.detach()
        all_steps, outputs = self.actor.evaluate(detached_features, rollout.obs)
        policy_output = all_steps.select_rows(slice(-1))
        with torch.no_grad():
            target = self._compute_target(
                rollout, target_features, policy_output, all_steps.select_rows(slice(1, None)), critic_indices
            )

        q_all, q = self._evaluate_taken(self.critics, features[:-1], rollout.raw_action)
        with torch.no_grad():
            error = self._compute_error(target, q, target_features, rollout)
        losses = {"critic": surrogate_loss(weights * error, q)}
        evaluate_actions = partial(self._evaluate_policy_actions, detached_features[:-1], q_all, critic_indices)
        losses |= self.actor.compute_losses(policy_output, outputs, weights, evaluate_actions)

        q_detached = q.detach()

        def compute_metrics() -> dict[str, Tensor]:
            metric_values = {
                "train/critic_loss": squared_error(target.expand_as(q_detached), q_detached).mean(0),
                "train/value": q_detached.mean(0),
                **self.actor.compute_metrics(policy_output),
            }
            return {
                **weighted_means(mean_weights(valid, torch.ones_like(rollout.weight)), metric_values),
                **self.actor.get_temperatures(),
            }

        return losses, LossReport(compute_metrics, lambda: td_error_stats(valid, target - q_detached.mean(0)), features)

    def _compute_target(
        self,
        rollout: Rollout,
        target_features: Tensor,
        policy_output: PolicyOutput,
        next_steps: PolicyOutput,
        critic_indices: list[int],
    ) -> Tensor:
        """[T, B] what Q(x_t, a_t) should be: one step (1812.05905, Eq. 5), or several with their corrections."""
        settings, reward, discount = self.settings, rollout.reward, self.settings.gamma * rollout.alive
        q = self._evaluate_all_actions(
            self.target.network, target_features[1:], next_steps.reparameterized.actions, critic_indices
        )
        alpha_scale = settings.alpha_critic_scale
        entropy_cost = next_steps.entropy_cost if alpha_scale == 1 else alpha_scale * next_steps.entropy_cost
        v = soft_state_value(next_steps.policy.probs, q, entropy_cost)
        if settings.n_step == 1:
            target = torch.addcmul(reward, discount, v)
        else:
            target = self._compute_multi_step_target(
                rollout, target_features, policy_output, discount, v, critic_indices
            )
        return rescale(target) if settings.rescale_values else target

    def _compute_multi_step_target(
        self,
        rollout: Rollout,
        target_features: Tensor,
        policy_output: PolicyOutput,
        discount: Tensor,
        v: Tensor,
        critic_indices: list[int],
    ) -> Tensor:
        """Return targets [T, B] of up to `n_step` rewards, given V [T, B] of the next states.

        V-trace and n-step returns compare a reward with V, which includes the entropy of the action of its own row, so
        that the reward is r - alpha log pi(a); without that term E[r + gamma V' - V] would be -alpha H. Q(x, a) does
        not include it, so that neither the first reward of a target nor any reward of Retrace has the term.
        """
        raw_action, reward = rollout.raw_action, rollout.reward
        rho = policy_output.policy.log_ratio(self.family(rollout.behavior), raw_action).clamp(-20, 20).exp()
        # Neither V nor Q of the first row enters the target of an action's value: they cancel.
        v = torch.cat((torch.zeros_like(v[:1]), v))
        entropy_cost, q_taken = torch.zeros_like(rho), v[:-1]
        if self.estimator in STATE_VALUE_ESTIMATORS:
            entropy_cost = self.settings.alpha_critic_scale * self.actor.compute_entropy_cost(
                policy_output.policy, raw_action
            )
        else:
            q_taken = self._reduce_ensemble(
                self._evaluate_taken(self.target.network, target_features[:-1], raw_action, critic_indices)[1]
            )
        inputs = EstimatorInputs(reward - entropy_cost, discount, rollout.valid, v, q_taken, rho, rho, lambda: rho)
        return ESTIMATORS[self.estimator](inputs, self.trace_clipping).q_target + entropy_cost

    def _compute_error(self, target: Tensor, q: Tensor, target_features: Tensor, rollout: Rollout) -> Tensor:
        """[N, T, B] what each critic climbs (Eq. 5), or nothing where it would leave the target critic's reach."""
        clip = self.settings.clip_epsilon
        if clip is None:
            return target - q
        target_q = self._evaluate_taken(self.target.network, target_features[:-1], rollout.raw_action)[1]
        return clipped_error(target.expand_as(q), q, target_q, clip)

    def _evaluate_taken(
        self, critics: CriticEnsemble, features: Tensor, raw_action: Tensor, critic_indices: list[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """[M, T, B, K] what critics say at rows [T, B], and [M, T, B] of it what they say of the samples taken."""
        if self.family.n_continuous:
            values = critics(features, self.family.encode(raw_action).unsqueeze(-2), critic_indices)
            return values, values.squeeze(-1)
        values = critics(features, None, critic_indices)
        combination = self.family.find_combination(raw_action).expand(*values.shape[:-1], 1)
        return values, values.gather(-1, combination).squeeze(-1)

    def _evaluate_all_actions(
        self, critics: CriticEnsemble, features: Tensor, continuous_actions: Tensor, critic_indices: list[int]
    ) -> Tensor:
        """[..., K] what some critics say of every choice, as one."""
        encoded_actions = self.family.encode_per_combination(continuous_actions) if self.family.n_continuous else None
        return self._reduce_ensemble(critics(features, encoded_actions, critic_indices))

    def _evaluate_policy_actions(
        self, features: Tensor, q_all: Tensor, critic_indices: list[int], continuous_actions: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """[T, B, K] what every choice is worth, and how that changes with its numbers [T, B, K, c]."""
        if not self.family.n_continuous:
            return self._reduce_ensemble(q_all.detach()[critic_indices]), None
        continuous_actions = continuous_actions.requires_grad_()
        q = self._evaluate_all_actions(self.critics, features, continuous_actions, critic_indices)
        (action_gradient,) = torch.autograd.grad(q, continuous_actions, torch.ones_like(q))
        return q.detach(), action_gradient

    def _sample_critics(self) -> list[int]:
        """Which critics this update reads: M of N (Chen et al. 2021, arXiv 2101.05982, Algorithm 1)."""
        n_critics, n_sampled = self.settings.ensemble_q_num, self.settings.ensemble_q_sample
        return list(range(n_critics)) if n_sampled == n_critics else torch.randperm(n_critics).tolist()[:n_sampled]

    def _reduce_ensemble(self, values: Tensor) -> Tensor:
        """[M, ...] -> [...]: the least (1812.05905, section 6), or the mean (Zhou et al. 2022, arXiv 2209.10081)."""
        values = self._to_values(values)
        return values.amin(0) if self.takes_minimum else values.mean(0)

    def _to_values(self, outputs: Tensor) -> Tensor:
        """What critics' outputs stand for."""
        return unscale(outputs) if self.settings.rescale_values else outputs

    @staticmethod
    def _unroll(critics: CriticEnsemble, rollout: Rollout) -> Tensor:
        return critics.torso.unroll(rollout.obs, rollout.first, rollout.memory, rollout.burn_in)

    @torch.no_grad()
    def features(self, rollout: Rollout) -> Tensor:
        return self._unroll(self.critics, rollout)

    @torch.no_grad()
    def target_features(self, rollout: Rollout) -> Tensor:
        return self._unroll(self.target.network, rollout)

    def encode(self, obs: Mapping[str, Tensor]) -> Tensor:
        return self.critics.torso.encode(obs)

    def q(self, features: Tensor, raw_action: Tensor) -> Tensor:
        return self._to_values(self._evaluate_taken(self.critics, features, raw_action)[1]).mean(0)

    def update_targets(self, update: int) -> None:
        """The target critics follow (1812.05905, Algorithm 1), every `update_target_per_step` updates."""
        if update % self.settings.update_target_per_step == 0:
            self.target.polyak_update(self.settings.tau)
