"""Actor-critic with experience replay (Wang et al. 2017, arXiv 1611.01224), for actions of every kind.

Gradients with respect to the policy's statistics are written in closed form and sent through the network once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.acer.critics import (
    ActionValueCritic,
    Critic,
    CriticOutput,
    StateValueCritic,
    StochasticDuelingCritic,
)
from algorithm.agents.agent import (
    Agent,
    DataSchedule,
    LossReport,
    ParameterGroup,
    RewardTransform,
    mean_weights,
    td_error_stats,
    weighted_means,
)
from algorithm.annotations import CONTINUOUS, OnlyIf, Spellings, Unless
from algorithm.distributions import (
    CategoricalFamily,
    ClippedGaussianFamily,
    ClosedFormDistribution,
    DistributionFamily,
    FixedStdGaussian,
    Gaussian,
    TanhGaussianFamily,
    make_family,
)
from algorithm.losses import squared_error, surrogate_loss, truncated_importance, trust_region_multiplier
from algorithm.networks import ActorCritic, Blueprint, StdHead, TargetNetwork
from algorithm.returns.estimators import ESTIMATORS, STATE_VALUE_ESTIMATORS, EstimatorInputs, TraceClipping
from algorithm.rollout import Decision, Rollout, Step
from algorithm.specs import ActionSpec, Role


@dataclass(frozen=True)
class AcerSettings:
    """The settings of `acer_config`; defaults, units and meaning stand in default_config.yaml."""

    learning_rate: float
    learning_rate_schedule: Literal["constant", "linear"]
    optimizer: Literal["adam", "rmsprop"]
    optimizer_beta1: Annotated[float, OnlyIf(optimizer="adam")]
    optimizer_decay: float
    optimizer_epsilon: float
    epsilon_inside: Annotated[bool, OnlyIf(optimizer="rmsprop")]
    max_grad_norm: float
    value_coef: float  # of the critic's error (Eq. 6) against the policy's
    entropy_coef: float  # beta, outside the projection
    gamma: float
    reward_scale: float
    reward_clip: float | None
    reward_normalization: Literal["return_std"] | None
    average_policy_decay: float  # alpha, of the average policy network
    estimator: Literal["retrace", "vtrace", "n_step", "tree_backup", "q_lambda"]
    critic: Annotated[Literal["action_value", "state_value"], Spellings(q="action_value", v="state_value")]
    trace_clip: Annotated[float, OnlyIf(estimator=("retrace", "vtrace"))]  # of rho in the trace (Eq. 5); c-bar
    rho_clip: Annotated[float, OnlyIf(estimator="vtrace")]  # rho-bar
    importance_clip: float  # c, of rho in the policy gradient (Eq. 8-9)
    trace_lambda: float  # lambda, of the trace
    sdn_samples: Annotated[int, OnlyIf(critic="action_value")]  # n, of a stochastic dueling critic (Eq. 13)
    std: Annotated[Literal["fixed", "learned", "state_dependent"], CONTINUOUS]
    std_init: Annotated[float, CONTINUOUS]
    std_min: Annotated[float, CONTINUOUS, Unless(std="fixed")]
    tanh_squash: Annotated[bool, CONTINUOUS]
    trust_region: Literal["off", "efficient"]
    trust_region_space: Annotated[Literal["logits", "probs"], Unless(trust_region="off")]  # phi (Eq. 11)
    trust_region_delta: Annotated[float, Unless(trust_region="off")]  # delta (Eq. 11)
    rollout_length: int  # k, rows of a collected rollout per lane
    sequence_length: Annotated[int, Unless(replay_ratio=0)]  # rows of a replayed window
    batch_size: Annotated[int, Unless(replay_ratio=0)]  # windows of a replayed batch
    replay_ratio: float  # mean number of replayed batches for each rollout
    learning_starts: Annotated[int, Unless(replay_ratio=0)]  # rows stored before the first replayed batch
    burn_in_step: Annotated[int, Unless(replay_ratio=0)]  # rows before a window that only update a memory (R2D2)
    on_policy_updates: bool  # also learn from each collected rollout, as Algorithm 1 does

    def __post_init__(self):
        if self.critic == "state_value" and self.estimator not in STATE_VALUE_ESTIMATORS:
            raise ValueError(
                f"estimator {self.estimator} is of action values: "
                f"with critic state_value there is {', '.join(STATE_VALUE_ESTIMATORS)}"
            )
        if self.estimator == "vtrace" and self.rho_clip < self.trace_clip:
            raise ValueError(f"rho_clip {self.rho_clip} must not be below trace_clip {self.trace_clip}")
        if self.std != "fixed" and self.std_init <= self.std_min:
            raise ValueError(f"std_init {self.std_init} must be above std_min {self.std_min}, unless std is fixed")
        if not self.on_policy_updates and not self.replay_ratio:
            raise ValueError("replay_ratio 0 with on_policy_updates false leaves nothing to learn from")


class Acer(Agent):
    """ACER: an off-policy estimator, truncated importance sampling with bias correction, the efficient trust region.

    One discrete branch has a value of each action; any other kind of action has a stochastic dueling critic.
    Raises ValueError for settings that do not suit the kind of action.
    """

    Settings = AcerSettings

    def __init__(self, settings: AcerSettings, blueprint: Blueprint, role: Role, rng: np.random.Generator):
        spec = role.action_spec
        _check_settings(settings, spec)
        self.settings = settings
        self.rng = rng
        self.family = _make_family(settings, spec)
        self.critic = _make_critic(settings, spec, self.family)
        self.estimate_targets = self.estimate_actor_targets = ESTIMATORS[settings.estimator]
        if settings.estimator == "retrace" and isinstance(self.critic, StochasticDuelingCritic):
            self.estimate_actor_targets = ESTIMATORS["q_lambda"]  # Q^opc (Eq. 16 and 21)
        self.trace_clipping = TraceClipping(settings.trace_clip, settings.rho_clip, settings.trace_lambda)
        self.policy = self._make_network(blueprint, role)
        torso = self.policy.torso
        self.state_size, self.stored_state_size = torso.state_size, torso.stored_state_size
        if settings.burn_in_step and not self.stored_state_size:
            raise ValueError(f"burn_in_step is {settings.burn_in_step}, but the network has no memory behind its body")
        self.average_policy = TargetNetwork(self.policy, self._make_network(blueprint, role))
        self.groups = {
            "acer": ParameterGroup(
                self.policy,
                settings.learning_rate,
                settings.learning_rate_schedule,
                settings.optimizer,
                settings.optimizer_decay,
                settings.optimizer_epsilon,
                settings.epsilon_inside,
                settings.max_grad_norm,
                settings.optimizer_beta1,
            )
        }
        self.target_networks = {"average": self.average_policy}
        self.schedule = DataSchedule(
            settings.rollout_length,
            settings.sequence_length,
            settings.batch_size,
            settings.replay_ratio,
            "poisson",
            settings.learning_starts,
            settings.on_policy_updates,
            torso.warmup_rows + settings.burn_in_step,
            torso.warmup_rows,
        )
        self.reward_transform = RewardTransform(
            settings.reward_scale, settings.reward_clip, settings.reward_normalization, settings.gamma
        )

    def _make_network(self, blueprint: Blueprint, role: Role) -> ActorCritic:
        settings, n_means, std_head = self.settings, role.action_spec.continuous, None
        if n_means:
            std_head = StdHead(n_means, settings.std, settings.std_init, settings.std_min)
        statistics_size = self.family.statistics_size
        return ActorCritic(
            blueprint, role.obs_specs, statistics_size, self.critic.n_values, std_head, self.critic.encoded_size
        )

    def act(self, step: Step, memory: np.ndarray) -> Decision:
        return self._decide(step, memory, lambda statistics: self.family.sample(statistics, self.rng))

    def greedy(self, step: Step, memory: np.ndarray) -> Decision:
        return self._decide(step, memory, self.family.mode)

    def _decide(self, step: Step, memory: np.ndarray, select_action: Callable[[np.ndarray], np.ndarray]) -> Decision:
        statistics, memory = self.policy.act(step.obs, memory)
        raw_action = select_action(statistics)
        return Decision(raw_action, self.family.to_action(raw_action), statistics, memory)

    def loss(self, rollout: Rollout) -> tuple[dict[str, Tensor], LossReport]:
        features = self._unroll(self.policy, rollout)
        outputs = self.policy.compute_outputs(features)
        with_burn_in, rollout = rollout, rollout.drop_burn_in()
        statistics, values = outputs.detach().split([self.family.statistics_size, self.critic.n_values], -1)
        policy = self.family(self.policy.mask_logits(statistics, rollout.obs))
        action_advantages = self.critic.evaluate_actions(self.policy, features, policy, rollout.raw_action)
        with torch.inference_mode():
            output = self.critic.evaluate(values, policy, rollout.raw_action, action_advantages)
            ascent_direction, advantage_direction, report = self._compute_ascent_direction(
                rollout, self._average_distribution(with_burn_in), output
            )
        report.features = features
        loss = surrogate_loss(ascent_direction.clone(), outputs[:-1])
        if action_advantages is not None:
            loss = loss + surrogate_loss(advantage_direction.clone(), action_advantages.advantages)
        return {"acer": loss}, report

    def _compute_ascent_direction(
        self, rollout: Rollout, average: ClosedFormDistribution, output: CriticOutput
    ) -> tuple[Tensor, Tensor | None, LossReport]:
        """What statistics and values [T, B, ...], and advantages, climb in closed form: means over valid rows."""
        settings, valid, raw_action = self.settings, rollout.valid, output.raw_action
        policy, behavior = output.policy, self.family(rollout.behavior)
        log_rho, dimensions = policy.log_ratio(behavior, raw_action), self.family.dimensions
        rho = log_rho.clamp(-20, 20).exp()
        rho_per_dimension = rho if dimensions == 1 else (log_rho / dimensions).clamp(-20, 20).exp()

        # Eq. 5, or another estimator in its place.
        discount, prob_taken = settings.gamma * rollout.alive, lambda: policy.log_prob(raw_action).exp()
        inputs = EstimatorInputs(
            rollout.reward, discount, valid, output.v, output.q_taken, rho, rho_per_dimension, prob_taken
        )
        targets, v = self.estimate_targets(inputs, self.trace_clipping), output.v[:-1]
        actor_targets = (
            targets
            if self.estimate_actor_targets is self.estimate_targets
            else self.estimate_actor_targets(inputs, self.trace_clipping)
        )

        # Eq. 8-9; Eq. 15-16 of a critic that samples.
        weight = truncated_importance(rho, actor_targets.q_target - v, settings.importance_clip)
        policy_direction, kl_multiplier = self._compute_policy_direction(output, weight, behavior, average)

        # Eq. 6: the critic descends 1/2 (target - value)^2; both such errors of a critic that samples.
        target = output.select_target(targets)
        error = target - output.q_taken
        value_gradient, advantage_direction = output.value_gradient(error, targets)

        weights = mean_weights(valid, rollout.weight)
        ascent_direction = weights.unsqueeze(-1) * torch.cat(
            (policy_direction, settings.value_coef * value_gradient), -1
        )
        if advantage_direction is not None:
            advantage_direction = settings.value_coef * weights * advantage_direction

        def compute_metrics() -> dict[str, Tensor]:
            metric_values = {
                "train/critic_loss": squared_error(target, output.q_taken),
                "train/entropy": policy.entropy,
                "train/kl_to_average": policy.kl(average),
                "train/importance_ratio": rho,
                # Not where pi is the average, as with a single allowed action: no step can leave it.
                "train/trust_region_fraction": (kl_multiplier * policy.kl_gradient(average)).ne(0).any(-1).float(),
                "train/value": v,
            }
            return weighted_means(mean_weights(valid, torch.ones_like(rollout.weight)), metric_values)

        return ascent_direction, advantage_direction, LossReport(compute_metrics, lambda: td_error_stats(valid, error))

    def _compute_policy_direction(
        self, output: CriticOutput, weight: Tensor, behavior: ClosedFormDistribution, average: ClosedFormDistribution
    ) -> tuple[Tensor, Tensor]:
        """What statistics climb: the gradient within the trust region (Eq. 10-12), the entropy bonus outside it.

        Also how much of the KL gradient [T, B, 1] was taken away from each row. The step that reaches the logits is
        their gradient minus a multiple of pi - average, whichever coordinates Eq. 11 is stated in; these decide the
        multiple.
        """
        settings, policy = self.settings, output.policy
        gradient = output.policy_gradient(weight, behavior, settings.importance_clip)
        direction = torch.add(gradient, policy.entropy_gradient(), alpha=settings.entropy_coef)
        if settings.trust_region == "off":
            return direction, torch.zeros_like(gradient[..., :1])
        constrained = gradient, kl_gradient = gradient, policy.kl_gradient(average)
        if settings.trust_region_space == "probs":
            gradient_wrt_probs = output.policy_gradient_wrt_probs(weight, behavior, settings.importance_clip)
            constrained = gradient_wrt_probs, policy.kl_gradient_wrt_probs(average)
        kl_multiplier = trust_region_multiplier(*constrained, settings.trust_region_delta)
        return torch.addcmul(direction, kl_multiplier, kl_gradient, value=-1), kl_multiplier

    def _average_distribution(self, rollout: Rollout) -> ClosedFormDistribution:
        """The average policy at the T rows that are learned from."""
        network = self.average_policy.network
        statistics = network.compute_outputs(self._unroll(network, rollout)[:-1])[..., : self.family.statistics_size]
        return self.family(network.mask_logits(statistics, rollout.drop_burn_in().obs))

    @staticmethod
    def _unroll(network: ActorCritic, rollout: Rollout) -> Tensor:
        return network.torso.unroll(rollout.obs, rollout.first, rollout.memory, rollout.burn_in)

    @torch.no_grad()
    def features(self, rollout: Rollout) -> Tensor:
        return self._unroll(self.policy, rollout)

    @torch.no_grad()
    def target_features(self, rollout: Rollout) -> Tensor:
        return self._unroll(self.average_policy.network, rollout)

    def encode(self, obs: Mapping[str, Tensor]) -> Tensor:
        return self.policy.torso.encode(obs)

    def q(self, features: Tensor, raw_action: Tensor) -> Tensor:
        statistics, values = self.policy.compute_outputs(features).split(
            [self.family.statistics_size, self.critic.n_values], -1
        )
        return self.critic.q(self.policy, features, values, self.family(statistics.detach()), raw_action)

    def update_targets(self, update: int) -> None:
        """theta_a <- alpha theta_a + (1 - alpha) theta, after every step (Wang et al. 2017, Algorithm 2)."""
        self.average_policy.polyak_update(1 - self.settings.average_policy_decay)


def _make_family(settings: AcerSettings, spec: ActionSpec) -> DistributionFamily:
    gaussian_family = TanhGaussianFamily if settings.tanh_squash else ClippedGaussianFamily
    return make_family(
        spec.continuous, spec.branches, gaussian_family, FixedStdGaussian if settings.std == "fixed" else Gaussian
    )


def _make_critic(settings: AcerSettings, spec: ActionSpec, family: DistributionFamily) -> Critic:
    if settings.critic == "state_value":
        return StateValueCritic()
    if isinstance(family, CategoricalFamily):
        return ActionValueCritic(family.statistics_size)
    return StochasticDuelingCritic(family, settings.sdn_samples)


def _check_settings(settings: AcerSettings, spec: ActionSpec) -> None:
    if settings.estimator == "tree_backup" and spec.continuous:
        raise ValueError("estimator tree_backup needs probabilities of actions; continuous ones have densities")
    uses_probs = settings.trust_region == "efficient" and settings.trust_region_space == "probs"
    if uses_probs and (spec.continuous or len(spec.branches) > 1):
        raise ValueError(f"trust_region_space probs is of a single discrete branch, not of {spec}; take logits")
