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

from algorithm.agents.acer.critics import ActionValues, Critic, Judgement, StateValue, StochasticDueling
from algorithm.agents.agent import Agent, Group, Report, RewardScaling, Schedule, column_errors, metrics, row_weights
from algorithm.annotations import CONTINUOUS, Only, Spellings, Unless
from algorithm.distributions import (
    Branch,
    Clipped,
    ClosedForm,
    Family,
    FixedGaussian,
    Gaussian,
    Squashed,
    family_of,
)
from algorithm.losses import multiplier, squared_error, surrogate, truncated_importance
from algorithm.networks import ActorCritic, Blueprint, Deviation, LaggingCopy
from algorithm.returns.estimators import ESTIMATORS, OF_STATES, Rows, Truncation
from algorithm.rollout import Decision, Rollout, Step
from algorithm.specs import ActionSpec, Role


@dataclass(frozen=True)
class AcerSettings:
    """The settings of `acer_config`; defaults, units and meaning stand in default_config.yaml."""

    learning_rate: float
    learning_rate_schedule: Literal["constant", "linear"]
    optimizer: Literal["adam", "rmsprop"]
    optimizer_beta1: Annotated[float, Only(optimizer="adam")]
    optimizer_decay: float
    optimizer_epsilon: float
    epsilon_inside: Annotated[bool, Only(optimizer="rmsprop")]
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
    trace_clip: Annotated[float, Only(estimator=("retrace", "vtrace"))]  # of rho in the trace (Eq. 5); c-bar
    rho_clip: Annotated[float, Only(estimator="vtrace")]  # rho-bar
    importance_clip: float  # c, of rho in the policy gradient (Eq. 8-9)
    trace_lambda: float  # lambda, of the trace
    sdn_samples: Annotated[int, Only(critic="action_value")]  # n, of a stochastic dueling critic (Eq. 13)
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
        if self.critic == "state_value" and self.estimator not in OF_STATES:
            raise ValueError(
                f"estimator {self.estimator} is of action values: "
                f"with critic state_value there is {', '.join(OF_STATES)}"
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
        _check(settings, spec)
        self.settings = settings
        self.rng = rng
        self.family = _family(settings, spec)
        self.critic = _critic(settings, spec, self.family)
        self.estimate = self.estimate_actor = ESTIMATORS[settings.estimator]
        if settings.estimator == "retrace" and isinstance(self.critic, StochasticDueling):
            self.estimate_actor = ESTIMATORS["q_lambda"]  # Q^opc (Eq. 16 and 21)
        self.truncation = Truncation(settings.trace_clip, settings.rho_clip, settings.trace_lambda)
        self.policy = self._network(blueprint, role)
        torso = self.policy.torso
        self.state, self.kept = torso.state, torso.kept
        if settings.burn_in_step and not self.kept:
            raise ValueError(f"burn_in_step is {settings.burn_in_step}, but the network has no memory behind its body")
        self.average = LaggingCopy(self.policy, self._network(blueprint, role))
        self.groups = {
            "acer": Group(
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
        self.lagging = {"average": self.average}
        self.schedule = Schedule(
            settings.rollout_length,
            settings.sequence_length,
            settings.batch_size,
            settings.replay_ratio,
            "poisson",
            settings.learning_starts,
            settings.on_policy_updates,
            torso.lead + settings.burn_in_step,
            torso.lead,
        )
        self.rewards = RewardScaling(
            settings.reward_scale, settings.reward_clip, settings.reward_normalization, settings.gamma
        )

    def _network(self, blueprint: Blueprint, role: Role) -> ActorCritic:
        settings, means, deviation = self.settings, role.action_spec.continuous, None
        if means:
            deviation = Deviation(means, settings.std, settings.std_init, settings.std_min)
        columns = self.family.statistics
        return ActorCritic(blueprint, role.obs_specs, columns, self.critic.values, deviation, self.critic.encoded)

    def act(self, step: Step, memory: np.ndarray) -> Decision:
        return self._decide(step, memory, lambda statistics: self.family.sample(statistics, self.rng))

    def greedy(self, step: Step, memory: np.ndarray) -> Decision:
        return self._decide(step, memory, self.family.mode)

    def _decide(self, step: Step, memory: np.ndarray, choose: Callable[[np.ndarray], np.ndarray]) -> Decision:
        statistics, memory = self.policy.act(step.obs, memory)
        sample = choose(statistics)
        return Decision(sample, self.family.to_action(sample), statistics, memory)

    def loss(self, rollout: Rollout) -> tuple[dict[str, Tensor], Report]:
        features = self._unroll(self.policy, rollout)
        outputs = self.policy.outputs(features)
        whole, rollout = rollout, rollout.after_burn_in()
        statistics, values = outputs.detach().split([self.family.statistics, self.critic.values], -1)
        policy = self.family(self.policy.mask(statistics, rollout.obs))
        opinion = self.critic.ask(self.policy, features, policy, rollout.sample)
        with torch.inference_mode():
            judged = self.critic.judge(values, policy, rollout.sample, opinion)
            direction, pull, report = self._climb(rollout, self._average(whole), judged)
        report.features = features
        loss = surrogate(direction.clone(), outputs[:-1])
        if opinion is not None:
            loss = loss + surrogate(pull.clone(), opinion.advantages)
        return {"acer": loss}, report

    def _climb(self, rollout: Rollout, average: ClosedForm, judged: Judgement) -> tuple[Tensor, Tensor | None, Report]:
        """What statistics and values [T, B, ...], and advantages, climb in closed form: means over valid rows."""
        settings, valid, sample = self.settings, rollout.valid, judged.sample
        policy, behavior = judged.policy, self.family(rollout.behavior)
        log_rho, dimensions = policy.log_ratio(behavior, sample), self.family.dimensions
        rho = log_rho.clamp(-20, 20).exp()
        root = rho if dimensions == 1 else (log_rho / dimensions).clamp(-20, 20).exp()

        # Eq. 5, or another estimator in its place.
        discount, prob_taken = settings.gamma * rollout.alive, lambda: policy.log_prob(sample).exp()
        rows = Rows(rollout.reward, discount, valid, judged.v, judged.taken, rho, root, prob_taken)
        targets, v = self.estimate(rows, self.truncation), judged.v[:-1]
        returns = targets if self.estimate_actor is self.estimate else self.estimate_actor(rows, self.truncation)

        # Eq. 8-9; Eq. 15-16 of a critic that samples.
        weight = truncated_importance(rho, returns.q - v, settings.importance_clip)
        direction, removed = self._direction(judged, weight, behavior, average)

        # Eq. 6: the critic descends 1/2 (target - value)^2; both such errors of a critic that samples.
        target = judged.target(targets)
        error = target - judged.taken
        pull, of_advantages = judged.pull(error, targets)

        weights = row_weights(valid, rollout.weight)
        climbed = weights.unsqueeze(-1) * torch.cat((direction, settings.value_coef * pull), -1)
        if of_advantages is not None:
            of_advantages = settings.value_coef * weights * of_advantages

        def told() -> dict[str, Tensor]:
            told_of = {
                "train/critic_loss": squared_error(target, judged.taken),
                "train/entropy": policy.entropy,
                "train/kl_to_average": policy.kl(average),
                "train/importance_ratio": rho,
                # Not where pi is the average, as with a single allowed action: no step can leave it.
                "train/trust_region_fraction": (removed * policy.kl_gradient(average)).ne(0).any(-1).float(),
                "train/value": v,
            }
            return metrics(row_weights(valid, torch.ones_like(rollout.weight)), told_of)

        return climbed, of_advantages, Report(told, lambda: column_errors(valid, error))

    def _direction(
        self, judged: Judgement, weight: Tensor, behavior: ClosedForm, average: ClosedForm
    ) -> tuple[Tensor, Tensor]:
        """What statistics climb: the gradient within the trust region (Eq. 10-12), the entropy bonus outside it.

        Also how much of the KL gradient [T, B, 1] was taken away from each row. The step that reaches the logits is
        their gradient minus a multiple of pi - average, whichever coordinates Eq. 11 is stated in; these decide the
        multiple.
        """
        settings, policy = self.settings, judged.policy
        gradient = judged.gradient(weight, behavior, settings.importance_clip)
        upwards = torch.add(gradient, policy.entropy_gradient(), alpha=settings.entropy_coef)
        if settings.trust_region == "off":
            return upwards, torch.zeros_like(gradient[..., :1])
        constrained = gradient, kl_gradient = gradient, policy.kl_gradient(average)
        if settings.trust_region_space == "probs":
            in_probs = judged.gradient_in_probs(weight, behavior, settings.importance_clip)
            constrained = in_probs, policy.kl_gradient_in_probs(average)
        removed = multiplier(*constrained, settings.trust_region_delta)
        return torch.addcmul(upwards, removed, kl_gradient, value=-1), removed

    def _average(self, rollout: Rollout) -> ClosedForm:
        """The average policy at the T rows that are learned from."""
        network = self.average.copy
        statistics = network.outputs(self._unroll(network, rollout)[:-1])[..., : self.family.statistics]
        return self.family(network.mask(statistics, rollout.after_burn_in().obs))

    @staticmethod
    def _unroll(network: ActorCritic, rollout: Rollout) -> Tensor:
        return network.torso.unroll(rollout.obs, rollout.first, rollout.memory, rollout.burn_in)

    @torch.no_grad()
    def features(self, rollout: Rollout) -> Tensor:
        return self._unroll(self.policy, rollout)

    @torch.no_grad()
    def lagged_features(self, rollout: Rollout) -> Tensor:
        return self._unroll(self.average.copy, rollout)

    def encode(self, obs: Mapping[str, Tensor]) -> Tensor:
        return self.policy.torso.encode(obs)

    def q(self, features: Tensor, sample: Tensor) -> Tensor:
        statistics, values = self.policy.outputs(features).split([self.family.statistics, self.critic.values], -1)
        return self.critic.q(self.policy, features, values, self.family(statistics.detach()), sample)

    def sync(self, update: int) -> None:
        """theta_a <- alpha theta_a + (1 - alpha) theta, after every step (Wang et al. 2017, Algorithm 2)."""
        self.average.move(1 - self.settings.average_policy_decay)


def _family(settings: AcerSettings, spec: ActionSpec) -> Family:
    bounded = Squashed if settings.tanh_squash else Clipped
    return family_of(spec.continuous, spec.branches, bounded, FixedGaussian if settings.std == "fixed" else Gaussian)


def _critic(settings: AcerSettings, spec: ActionSpec, family: Family) -> Critic:
    if settings.critic == "state_value":
        return StateValue()
    if isinstance(family, Branch):
        return ActionValues(family.statistics)
    return StochasticDueling(family, settings.sdn_samples)


def _check(settings: AcerSettings, spec: ActionSpec) -> None:
    if settings.estimator == "tree_backup" and spec.continuous:
        raise ValueError("estimator tree_backup needs probabilities of actions; continuous ones have densities")
    in_probs = settings.trust_region == "efficient" and settings.trust_region_space == "probs"
    if in_probs and (spec.continuous or len(spec.branches) > 1):
        raise ValueError(f"trust_region_space probs is of a single discrete branch, not of {spec}; take logits")
