"""Actor-critic with experience replay (Wang et al. 2017, arXiv 1611.01224), one discrete branch.

Gradients with respect to the policy's statistics are written in closed form and sent through the network once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.agent import Agent, Group, Report, RewardScaling, Schedule, column_mean, metrics, row_weights
from algorithm.agents.critics import ActionValues, StateValue
from algorithm.agents.estimators import ESTIMATORS, OF_STATES, Rows, Truncation
from algorithm.distributions import Branch, Categorical
from algorithm.losses import multiplier, squared_error, surrogate, truncated_importance
from algorithm.networks import ActorCritic, Blueprint, LaggingCopy
from algorithm.rollout import Decision, Rollout, Step
from algorithm.specs import Role


@dataclass(frozen=True)
class AcerSettings:
    """The settings of `acer_config`; defaults, units and meaning stand in default_config.yaml."""

    learning_rate: float
    learning_rate_schedule: Literal["constant", "linear"]
    optimizer: Literal["adam", "rmsprop"]
    optimizer_decay: float
    optimizer_epsilon: float
    epsilon_inside: bool
    max_grad_norm: float
    critic_weight: float  # of the critic's error (Eq. 6) against the policy's
    entropy: float  # beta, outside the projection
    gamma: float
    reward_scale: float
    reward_clip: float | None
    normalize_returns: bool
    average_decay: float  # alpha, of the average policy network
    estimator: Literal["retrace", "vtrace", "n_step", "tree_backup", "q_lambda"]
    critic: Literal["q", "v"]
    retrace_clip: float  # of rho in the trace (Eq. 5; 1 in Algorithm 2), c-bar of V-trace
    vtrace_clip: float  # rho-bar
    importance_clip: float  # c, of rho in the policy gradient (Eq. 8-9)
    decay: float  # lambda, of the trace
    trust_region: Literal["off", "efficient"]
    trust_region_space: Literal["logits", "probs"]  # phi, the statistics that are projected (Eq. 11)
    trust_region_delta: float  # delta (Eq. 11)
    collect_steps: int  # k, rows of a collected rollout per lane
    trace_length: int  # rows of a replayed window
    batch_size: int  # windows of a replayed batch
    replay_ratio: float  # mean number of replayed batches for each rollout
    replay_start: int  # rows stored before the first replayed batch

    def __post_init__(self):
        if self.critic == "v" and self.estimator not in OF_STATES:
            raise ValueError(
                f"estimator {self.estimator} is of action values: with critic v there is {', '.join(OF_STATES)}"
            )
        if self.estimator == "vtrace" and self.vtrace_clip < self.retrace_clip:
            raise ValueError(f"vtrace_clip {self.vtrace_clip} must not be below retrace_clip {self.retrace_clip}")


class Acer(Agent):
    """ACER: an off-policy estimator, truncated importance sampling with bias correction, the efficient trust region.

    Raises ValueError for an action space other than one discrete branch.
    """

    Settings = AcerSettings

    def __init__(self, settings: AcerSettings, blueprint: Blueprint, role: Role, rng: np.random.Generator):
        spec = role.action_spec
        if spec.continuous or len(spec.branches) != 1:
            raise ValueError(f"ACER serves a single discrete branch so far, not {spec}")
        self.settings = settings
        self.rng = rng
        self.actions = spec.branches[0]
        self.family = Branch(self.actions)
        self.critic = ActionValues(self.actions) if settings.critic == "q" else StateValue()
        self.estimate = ESTIMATORS[settings.estimator]
        self.truncation = Truncation(settings.retrace_clip, settings.vtrace_clip, settings.decay)
        self.policy = ActorCritic(blueprint, role.obs_specs, self.actions, self.critic.size)
        self.state = self.policy.state
        self.average = LaggingCopy(self.policy, ActorCritic(blueprint, role.obs_specs, self.actions, self.critic.size))
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
            )
        }
        self.lagging = {"average": self.average}
        self.schedule = Schedule(
            settings.collect_steps,
            settings.trace_length,
            settings.batch_size,
            settings.replay_ratio,
            "poisson",
            settings.replay_start,
        )
        self.rewards = RewardScaling(
            settings.reward_scale, settings.reward_clip, settings.normalize_returns, settings.gamma
        )

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
        outputs = self.policy.heads.joint(features)
        with torch.inference_mode():
            direction, report = self._climb(rollout, *outputs.split([self.actions, self.critic.size], -1))
        report.features = features
        return {"acer": surrogate(direction.clone(), outputs[:-1]).sum()}, report

    def _climb(self, rollout: Rollout, logits: Tensor, values: Tensor) -> tuple[Tensor, Report]:
        """What logits and values [T, B, ...] climb, as means over valid rows, in closed form; and how it went."""
        settings, critic = self.settings, self.critic
        average = Categorical(self.average.copy.heads(self._unroll(self.average.copy, rollout)[:-1])[0])
        rollout = rollout.after_burn_in()
        action, valid = rollout.sample.long(), rollout.valid
        policy, behavior = Categorical(logits), Categorical(rollout.behavior)
        v = critic.v(values, policy)
        policy, values = policy.rows(slice(-1)), values[:-1]
        q_taken = critic.taken(values, action)
        log_rho = (policy.log_probs - behavior.log_probs).gather(-1, action).squeeze(-1)
        rho = log_rho.clamp(-20, 20).exp()

        # Eq. 5, or another estimator in its place.
        discount = settings.gamma * rollout.alive
        rows = Rows(rollout.reward, discount, valid, v, q_taken, rho, lambda: policy.log_prob(action).exp())
        targets, v = self.estimate(rows, self.truncation), v[:-1]

        # Eq. 9: the weight of every action's score; the taken action's has the truncated importance on top.
        weight = critic.correction(values, v, policy, behavior, settings.importance_clip)
        taken = truncated_importance(rho, targets.q - v, settings.importance_clip).unsqueeze(-1)
        direction, removed = self._direction(policy, average, weight.scatter_add(-1, action, taken))

        # Eq. 6: the critic descends 1/2 (target - value)^2.
        target = critic.target(targets)
        error = target - q_taken
        pull = critic.pull(values, action, settings.critic_weight * error)

        weights = row_weights(valid, rollout.weight)

        def told() -> dict[str, Tensor]:
            told_of = {
                "loss/critic": squared_error(target, q_taken),
                "policy/entropy": policy.entropy,
                "policy/kl_to_average": policy.kl(average),
                "policy/importance": rho,
                "policy/trust_region_active": (removed > 0).squeeze(-1).float(),
                "policy/value": v,
            }
            return metrics(weights, told_of)

        report = Report(told, lambda: column_mean(valid, error.abs()))
        return weights.unsqueeze(-1) * torch.cat((direction, pull), -1), report

    def _direction(self, policy: Categorical, average: Categorical, weight: Tensor) -> tuple[Tensor, Tensor]:
        """What the logits climb: the gradient within the trust region (Eq. 10-12), the entropy bonus outside it.

        Also how much of the KL gradient [T, B, 1] was taken away from each row. The step that reaches the logits is
        their gradient minus a multiple of pi - average, whichever coordinates Eq. 11 is stated in; these decide the
        multiple.
        """
        settings = self.settings
        gradient, kl_gradient = policy.score_of_all(weight), policy.kl_gradient(average)
        removed = torch.zeros_like(gradient[..., :1])
        if settings.trust_region == "efficient":
            constrained = gradient, kl_gradient
            if settings.trust_region_space == "probs":
                constrained = policy.score_in_probs(weight), policy.kl_gradient_in_probs(average)
            removed = multiplier(*constrained, settings.trust_region_delta)
            gradient = torch.addcmul(gradient, removed, kl_gradient, value=-1)
        return gradient.add(policy.entropy_gradient(), alpha=settings.entropy), removed

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
        if self.settings.critic == "v":
            raise ValueError("a critic of states (critic: v) knows no action's value")
        return self.critic.taken(self.policy.heads(features)[1], sample.long())

    def sync(self) -> None:
        """theta_a <- alpha theta_a + (1 - alpha) theta, after every step (Wang et al. 2017, Algorithm 2)."""
        self.average.move(1 - self.settings.average_decay)
