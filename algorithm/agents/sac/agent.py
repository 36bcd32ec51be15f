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

from algorithm.agents.agent import Agent, Report, RewardScaling, Schedule, column_errors, metrics, row_weights
from algorithm.agents.sac.actors import Choices, Chooser, EpsilonGreedy, Soft, adam
from algorithm.annotations import CONTINUOUS, DISCRETE, Only, Unless
from algorithm.distributions import Conditioned
from algorithm.losses import clipped_error, soft_value, squared_error, surrogate
from algorithm.networks import Blueprint, Critics, LaggingCopy, Torso
from algorithm.returns import rescale, unscale
from algorithm.returns.estimators import ESTIMATORS, OF_STATES, Rows, Truncation
from algorithm.rollout import Decision, Rollout, Step
from algorithm.specs import Role


@dataclass(frozen=True)
class SacSettings:
    """The settings of `sac_config`; defaults, units and meaning stand in default_config.yaml."""

    learning_rate_critic: float
    learning_rate_policy: Annotated[float, Unless(discrete_dqn_like=True)]
    learning_rate_alpha: Annotated[float, Only(use_auto_alpha=True, discrete_dqn_like=False)]
    learning_rate_schedule: Literal["constant", "linear"]
    optimizer_beta1: float
    optimizer_decay: float
    optimizer_epsilon: float
    max_grad_norm_critic: float
    max_grad_norm_policy: Annotated[float, Unless(discrete_dqn_like=True)]
    max_grad_norm_alpha: Annotated[float, Only(use_auto_alpha=True, discrete_dqn_like=False)]
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
    target_c_alpha: Annotated[float, CONTINUOUS, Only(use_auto_alpha=True, discrete_dqn_like=False)]  # times -1 nat
    target_d_alpha: Annotated[float, DISCRETE, Only(use_auto_alpha=True, discrete_dqn_like=False)]  # of the largest
    alpha_critic_scale: Annotated[float, Unless(discrete_dqn_like=True)]  # of alpha in the critics' targets
    discrete_dqn_like: bool
    discrete_dqn_epsilon: Annotated[float, Only(discrete_dqn_like=True)]
    clip_epsilon: float | None  # of Q around the target critic's
    rescale_values: bool  # h (Pohlen et al. 2018)
    n_step: int  # rewards of a target
    use_n_step_is: Annotated[bool, Unless(n_step=1)]  # correct the rewards after the first for the policy
    estimator: Annotated[Literal["vtrace", "retrace"], Unless(n_step=1, use_n_step_is=False)]
    v_lambda: Annotated[float, Unless(n_step=1)]  # lambda
    v_rho: Annotated[float, Only(use_n_step_is=True, estimator="vtrace"), Unless(n_step=1)]  # rho-bar of V-trace
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
        self.family = Conditioned(spec.continuous, spec.branches)
        self.estimator = settings.estimator if settings.use_n_step_is else "n_step"
        self.truncation = Truncation(settings.v_c, settings.v_rho, settings.v_lambda, settings.n_step)
        self.smallest = settings.ensemble_q_reduce == "min" or (
            settings.ensemble_q_reduce == "auto" and bool(spec.continuous)
        )
        torso, target_torso = (Torso(blueprint, role.obs_specs) for _ in range(2))
        # Where nothing of it is learned, the target critics' features are the same.
        self.learns_features = any(True for _ in torso.parameters())
        self.critics = self._critics(blueprint, torso)
        self.target = LaggingCopy(self.critics, self._critics(blueprint, target_torso))
        self.chooser: Chooser = (
            EpsilonGreedy(settings, self.family, self.critics, role)
            if settings.discrete_dqn_like
            else Soft(settings, self.family, blueprint, torso, role)
        )
        self.policy = self.chooser.policy
        self.state, self.kept = torso.state, torso.kept
        if settings.burn_in_step and not self.kept:
            raise ValueError(f"burn_in_step is {settings.burn_in_step}, but the network has no memory behind its body")
        # The critics learn the torso; the policy reads its features, and stands behind it in the flat parameters.
        of_critics = adam(self.critics, settings, settings.learning_rate_critic, settings.max_grad_norm_critic)
        self.groups = {"critic": of_critics, **self.chooser.groups}
        self.lagging = {"target": self.target}
        self.schedule = Schedule(
            settings.rollout_length,
            settings.sequence_length,
            settings.batch_size,
            settings.replay_ratio,
            "fixed",
            settings.learning_starts,
            on_policy_updates=False,
            burn_in=torso.lead + settings.burn_in_step,
            lead=torso.lead,
        )
        self.rewards = RewardScaling(
            settings.reward_scale, settings.reward_clip, settings.reward_normalization, settings.gamma
        )

    def _critics(self, blueprint: Blueprint, torso: Torso) -> Critics:
        encoded, values = (self.family.encoded, 1) if self.family.numbers else (0, self.family.combinations)
        return Critics(blueprint, torso, encoded, values, self.settings.ensemble_q_num)

    def act(self, step: Step, memory: np.ndarray) -> Decision:
        statistics, memory = self.policy.act(step.obs, memory)
        return self._decision(self.family.sample(statistics, self.rng), statistics, memory)

    def greedy(self, step: Step, memory: np.ndarray) -> Decision:
        statistics, memory = self.policy.act(step.obs, memory)
        return self._decision(self.family.mode(statistics), statistics, memory)

    def _decision(self, sample: np.ndarray, statistics: np.ndarray, memory: np.ndarray) -> Decision:
        return Decision(sample, self.family.to_action(sample), statistics, memory)

    def loss(self, rollout: Rollout) -> tuple[dict[str, Tensor], Report]:
        features = self._unroll(self.critics, rollout)
        with torch.no_grad():
            lagging = self._unroll(self.target.copy, rollout) if self.learns_features else features
        rollout = rollout.after_burn_in()
        valid, members = rollout.valid, self._members()
        weights = row_weights(valid, rollout.weight)

        # What the policy would do at every row: its draws behind a row make that row's target.
        seen = features.detach()
        every, outputs = self.chooser.choices(seen, rollout.obs)
        choices = every.rows(slice(-1))
        with torch.no_grad():
            target = self._target(rollout, lagging, choices, every.rows(slice(1, None)), members)

        q_all, q = self._taken(self.critics, features[:-1], rollout.sample)
        with torch.no_grad():
            error = self._error(target, q, lagging, rollout)
        losses = {"critic": surrogate(weights * error, q)}
        judge = partial(self._judge, seen[:-1], q_all, members)
        losses |= self.chooser.losses(choices, outputs, weights, judge)

        said = q.detach()

        def told() -> dict[str, Tensor]:
            told_of = {
                "train/critic_loss": squared_error(target.expand_as(said), said).mean(0),
                "train/value": said.mean(0),
                **self.chooser.told(choices),
            }
            return {
                **metrics(row_weights(valid, torch.ones_like(rollout.weight)), told_of),
                **self.chooser.temperatures(),
            }

        return losses, Report(told, lambda: column_errors(valid, target - said.mean(0)), features)

    def _target(
        self, rollout: Rollout, lagging: Tensor, choices: Choices, following: Choices, members: list[int]
    ) -> Tensor:
        """[T, B] what Q(x_t, a_t) should be: one step (1812.05905, Eq. 5), or several with their corrections."""
        settings, reward, discount = self.settings, rollout.reward, self.settings.gamma * rollout.alive
        q = self._of_choices(self.target.copy, lagging[1:], following.proposal.numbers, members)
        scale = settings.alpha_critic_scale
        cost = following.cost if scale == 1 else scale * following.cost
        v = soft_value(following.policy.probs, q, cost)
        if settings.n_step == 1:
            target = torch.addcmul(reward, discount, v)
        else:
            target = self._multi_step_target(rollout, lagging, choices, discount, v, members)
        return rescale(target) if settings.rescale_values else target

    def _multi_step_target(
        self, rollout: Rollout, lagging: Tensor, choices: Choices, discount: Tensor, v: Tensor, members: list[int]
    ) -> Tensor:
        """Return targets [T, B] of up to `n_step` rewards, given V [T, B] of the next states.

        V-trace and n-step returns compare a reward with V, which includes the entropy of the action of its own row, so
        that the reward is r - alpha log pi(a); without that term E[r + gamma V' - V] would be -alpha H. Q(x, a) does
        not include it, so that neither the first reward of a target nor any reward of Retrace has the term.
        """
        sample, reward = rollout.sample, rollout.reward
        rho = choices.policy.log_ratio(self.family(rollout.behavior), sample).clamp(-20, 20).exp()
        # Neither V nor Q of the first row enters the target of an action's value: they cancel.
        v = torch.cat((torch.zeros_like(v[:1]), v))
        cost, taken = torch.zeros_like(rho), v[:-1]
        if self.estimator in OF_STATES:
            cost = self.settings.alpha_critic_scale * self.chooser.sample_cost(choices.policy, sample)
        else:
            taken = self._reduce(self._taken(self.target.copy, lagging[:-1], sample, members)[1])
        rows = Rows(reward - cost, discount, rollout.valid, v, taken, rho, rho, rho)
        return ESTIMATORS[self.estimator](rows, self.truncation).q + cost

    def _error(self, target: Tensor, q: Tensor, lagging: Tensor, rollout: Rollout) -> Tensor:
        """[N, T, B] what each critic climbs (Eq. 5), or nothing where it would leave the target critic's reach."""
        clip = self.settings.clip_epsilon
        if clip is None:
            return target - q
        near = self._taken(self.target.copy, lagging[:-1], rollout.sample)[1]
        return clipped_error(target.expand_as(q), q, near, clip)

    def _taken(
        self, critics: Critics, features: Tensor, sample: Tensor, members: list[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """[M, T, B, K] what critics say at rows [T, B], and [M, T, B] of it what they say of the samples taken."""
        if self.family.numbers:
            values = critics(features, self.family.encode(sample).unsqueeze(-2), members)
            return values, values.squeeze(-1)
        values = critics(features, None, members)
        place = self.family.place(sample).expand(*values.shape[:-1], 1)
        return values, values.gather(-1, place).squeeze(-1)

    def _of_choices(self, critics: Critics, features: Tensor, numbers: Tensor, members: list[int]) -> Tensor:
        """[..., K] what some critics say of every choice, as one."""
        actions = self.family.encode_each(numbers) if self.family.numbers else None
        return self._reduce(critics(features, actions, members))

    def _judge(
        self, features: Tensor, known: Tensor, members: list[int], numbers: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """[T, B, K] what every choice is worth, and how that changes with its numbers [T, B, K, c]."""
        if not self.family.numbers:
            return self._reduce(known.detach()[members]), None
        numbers = numbers.requires_grad_()
        q = self._of_choices(self.critics, features, numbers, members)
        (slope,) = torch.autograd.grad(q, numbers, torch.ones_like(q))
        return q.detach(), slope

    def _members(self) -> list[int]:
        """Which critics this update reads: M of N (Chen et al. 2021, arXiv 2101.05982, Algorithm 1)."""
        number, some = self.settings.ensemble_q_num, self.settings.ensemble_q_sample
        return list(range(number)) if some == number else torch.randperm(number).tolist()[:some]

    def _reduce(self, values: Tensor) -> Tensor:
        """[M, ...] -> [...]: the least (1812.05905, section 6), or the mean (Zhou et al. 2022, arXiv 2209.10081)."""
        values = self._value(values)
        return values.amin(0) if self.smallest else values.mean(0)

    def _value(self, outputs: Tensor) -> Tensor:
        """What critics' outputs stand for."""
        return unscale(outputs) if self.settings.rescale_values else outputs

    @staticmethod
    def _unroll(critics: Critics, rollout: Rollout) -> Tensor:
        return critics.torso.unroll(rollout.obs, rollout.first, rollout.memory, rollout.burn_in)

    @torch.no_grad()
    def features(self, rollout: Rollout) -> Tensor:
        return self._unroll(self.critics, rollout)

    @torch.no_grad()
    def lagged_features(self, rollout: Rollout) -> Tensor:
        return self._unroll(self.target.copy, rollout)

    def encode(self, obs: Mapping[str, Tensor]) -> Tensor:
        return self.critics.torso.encode(obs)

    def q(self, features: Tensor, sample: Tensor) -> Tensor:
        return self._value(self._taken(self.critics, features, sample)[1]).mean(0)

    def sync(self, update: int) -> None:
        """The target critics follow (1812.05905, Algorithm 1), every `update_target_per_step` updates."""
        if update % self.settings.update_target_per_step == 0:
            self.target.move(self.settings.tau)
