"""The critics of SAC: Q(x, a), or the distribution of the return of which Q(x, a) is the mean.

An evaluator returns the outputs of the networks for actions. A critic computes its target, the gradient of its loss in
closed form, and its TD error from these outputs. In shapes, T rows of B columns; N critics, of which M are drawn for an
update; K combinations of discrete branches (1 without branches); `*v` is `value_shape`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from algorithm.agents.actor_critic import make_support
from algorithm.agents.agent import select_statistics_rows
from algorithm.agents.settings import SacSettings
from algorithm.distributions import HybridDistribution, HybridFamily
from algorithm.losses import clipped_error, cross_entropy, soft_state_value, squared_error
from algorithm.networks import CriticEnsemble, batch_statistics
from algorithm.networks.normalization import find_batch_norms
from algorithm.networks.passes import AutogradPass, Pass
from algorithm.returns import (
    EstimatorInputs,
    Support,
    TraceClipping,
    get_estimator,
    rescale,
    sum_rewards,
    unscale,
)
from algorithm.rollout import Rollout


@dataclass(frozen=True, kw_only=True)
class TakenActions:
    """The taken actions of a batch, which targets of several steps read."""

    raw_action: Tensor  # [T, B, size]
    policy: HybridDistribution  # pi at the T rows
    behavior: HybridDistribution  # mu at the T rows
    entropy_cost: Tensor  # w alpha log pi of the executed actions [T, B]

    def compute_ratio(self) -> Tensor:
        """Return rho, the ratio of policy and behavior policy [T, B]."""
        return self.policy.log_ratio(self.behavior, self.raw_action).clamp(-20, 20).exp()


@dataclass(frozen=True, kw_only=True)
class Experience:
    """The rows of a batch from which a critic computes its target; w is `alpha_critic_scale`."""

    reward: Tensor  # [T, B]
    discount: Tensor  # gamma * alive [T, B]
    valid: Tensor  # [T, B]
    next_probs: Tensor  # pi(k) of each combination in the next row [T, B, K]
    next_entropy_cost: Tensor  # w alpha log pi of the policy's action for each combination in the next row [T, B, K]
    taken: TakenActions | None  # None for targets of one step
    critic_indices: Sequence[int] | None  # the M critics; None: all
    # Returns the outputs of all or some target critics for the taken actions [N or M, T, B, *v].
    evaluate_target: Callable[[Sequence[int] | None], Tensor]


@dataclass(frozen=True, kw_only=True)
class CriticOutput:
    """The errors of a batch, without gradient."""

    ascent_direction: Tensor  # the negative gradient of each critic's loss with respect to its outputs [N, T, B, *v]
    compute_loss: Callable[[], Tensor]  # the mean loss of all critics [T, B]
    compute_target_values: Callable[[], Tensor]  # the target of the critics' values [T, B], on the scale of the critics
    compute_error: Callable[[], Tensor]  # the TD error, whose magnitude determines the priority of a sequence [T, B]


class Critic(ABC):
    """A kind of critic, as functions of the outputs of an ensemble.

    Args:
        settings: The settings.
        takes_minimum: Whether the M critics have the value of their minimum, otherwise of their mean.
    """

    value_shape: tuple[int, ...]  # of an output for one action

    def __init__(self, settings: SacSettings, takes_minimum: bool):
        self.settings, self.takes_minimum = settings, takes_minimum

    @abstractmethod
    def evaluate(self, outputs: Tensor, next_outputs: Tensor, experience: Experience) -> CriticOutput:
        """Return the errors of a batch; called without gradient.

        Args:
            outputs: The outputs of all critics for the taken actions, detached [N, T, B, *v].
            next_outputs: The outputs of M target critics for the policy's action of each combination in the next row
                [M, T, B, K, *v].
            experience: The batch.
        """

    @abstractmethod
    def compute_values(self, outputs: Tensor) -> Tensor:
        """Return the values [...] of outputs [..., *v], on the scale of the critics."""

    def reduce_ensemble(self, outputs: Tensor) -> Tensor:
        """Return one Q [...] of the outputs of M critics [M, ..., *v], on the scale of rewards.

        The minimum (1812.05905, section 6) or the mean (Zhou et al. 2022, arXiv 2209.10081).
        """
        values = self.compute_values(outputs)
        return values.amin(0) if self.takes_minimum else values.mean(0)

    def differentiate_ensemble(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return `reduce_ensemble` of outputs [M, ..., *v], and its gradient with respect to them, without gradient."""
        with torch.inference_mode(False), torch.enable_grad():
            outputs = outputs.clone().requires_grad_()  # autograd cannot save a tensor of inference mode
            q = self.reduce_ensemble(outputs)
            (gradient,) = torch.autograd.grad(q, outputs, torch.ones_like(q))
        return q.detach(), gradient

    def compute_metrics(self, experience: Experience) -> dict[str, Tensor]:
        """Return metrics of each row [T, B] about the targets of a batch."""
        return {}


class ScalarCritic(Critic):
    """Q(x, a), or h(Q) with `rescale_values`, whose target is r + gamma V(x') (Eq. 5), or a multi-step target."""

    value_shape = ()

    def __init__(self, settings: SacSettings, takes_minimum: bool, has_probabilities: bool):
        super().__init__(settings, takes_minimum)
        name = settings.estimator if settings.use_n_step_is else "n_step"
        self.estimator = get_estimator(name, has_probabilities=has_probabilities)
        self.trace_clipping = TraceClipping(
            trace_clip=settings.v_c,
            rho_clip=settings.v_rho,
            trace_lambda=settings.v_lambda,
            horizon=settings.n_step,
        )

    def compute_values(self, outputs: Tensor) -> Tensor:
        return outputs

    def compute_metrics(self, experience: Experience) -> dict[str, Tensor]:
        if experience.taken is None or not self.settings.use_n_step_is:
            return {}
        return {"train/clip_fraction": (experience.taken.compute_ratio() > self.settings.v_c).float()}

    def reduce_ensemble(self, outputs: Tensor) -> Tensor:
        return super().reduce_ensemble(unscale(outputs) if self.settings.rescale_values else outputs)

    def differentiate_ensemble(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        if self.settings.rescale_values or not self.takes_minimum:
            return super().differentiate_ensemble(outputs)
        q = outputs.amin(0)
        is_smallest = (outputs == q).to(q.dtype)
        return q, is_smallest / is_smallest.sum(0)  # shared by equal values, as autograd does

    def evaluate(self, outputs: Tensor, next_outputs: Tensor, experience: Experience) -> CriticOutput:
        target, clip = self._compute_target(next_outputs, experience), self.settings.clip_epsilon
        direction = target - outputs  # Eq. 5
        if clip is not None:  # 0 where the step is forbidden
            direction = clipped_error(target.expand_as(outputs), outputs, experience.evaluate_target(None), clip)
        return CriticOutput(
            ascent_direction=direction,
            compute_loss=lambda: squared_error(target.expand_as(outputs), outputs).mean(0),
            compute_target_values=lambda: target,
            compute_error=lambda: target - outputs.mean(0),
        )

    def _compute_target(self, next_outputs: Tensor, experience: Experience) -> Tensor:
        """Return the target of Q(x, a) of the taken actions [T, B]."""
        q = self.reduce_ensemble(next_outputs)
        v = soft_state_value(experience.next_probs, q, experience.next_entropy_cost)  # Eq. 3
        if experience.taken is None:
            target = torch.addcmul(experience.reward, experience.discount, v)
        else:
            target = self._compute_multi_step_target(v, experience, experience.taken)
        return rescale(target) if self.settings.rescale_values else target

    def _compute_multi_step_target(self, next_v: Tensor, experience: Experience, taken: TakenActions) -> Tensor:
        """Return targets [T, B] of up to `n_step` rewards, given V [T, B] of the next states.

        V-trace and n-step returns compare a reward with V, which includes the entropy of the action of the same row, so
        that the reward is r - alpha log pi(a); without that term E[r + gamma V' - V] would be -alpha H. Q(x, a) does
        not include it, so that neither the first reward of a target nor any reward of Retrace has the term.
        """
        rho = taken.compute_ratio()
        # Neither V nor Q of the first row enters the target of an action value: they cancel.
        v = torch.cat((torch.zeros_like(next_v[:1]), next_v))
        entropy_cost, q_taken = torch.zeros_like(rho), v[:-1]
        if self.estimator.needs_action_values:
            q_taken = self.reduce_ensemble(experience.evaluate_target(experience.critic_indices))
        else:
            entropy_cost = taken.entropy_cost
        inputs = EstimatorInputs(
            reward=experience.reward - entropy_cost,
            discount=experience.discount,
            valid=experience.valid,
            v=v,
            q_taken=q_taken,
            rho=rho,
            rho_per_dimension=rho,  # traces of at most `n_step` rows use the ratio itself
            prob_taken=lambda: taken.policy.log_prob(taken.raw_action).exp(),
        )
        return self.estimator.estimate(inputs, self.trace_clipping).q_target + entropy_cost


class CategoricalCritic(Critic):
    """The logits of a distribution q(x, a) of the return on atoms z, of which Q(x, a) is the mean (FlashSAC, SimbaV2).

    The target is the projection of the distribution of r + gamma (z - alpha log pi(a'|x')), with z distributed as
    q(x', a'); its mean is the target of `ScalarCritic`, unless positions are clipped to the range of the atoms.
    q(x', a') is the distribution with the smallest mean of those of M critics, for each action, or their average.

    The initial distributions are random. If all were uniform, their targets would be uniform too, but for the ends of
    the range, and learning would start from there.
    """

    def __init__(self, settings: SacSettings, takes_minimum: bool):
        super().__init__(settings, takes_minimum)
        self.support: Support = make_support(settings)
        self.value_shape = (self.support.n_atoms,)

    def compute_values(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1) @ self.support.make_atoms(outputs)

    def evaluate(self, outputs: Tensor, next_outputs: Tensor, experience: Experience) -> CriticOutput:
        target, q = self._compute_target(next_outputs, experience), outputs.softmax(-1)
        return CriticOutput(
            ascent_direction=target - q,  # of the logits, since the entries of the target sum to 1
            compute_loss=lambda: cross_entropy(target.expand_as(outputs), outputs.log_softmax(-1)).mean(0),
            compute_target_values=lambda: target @ self.support.make_atoms(target),
            # The total variation between the target and the mean distribution, as Reactor (1704.04651, 3.3).
            compute_error=lambda: 0.5 * (target - q.mean(0)).abs().sum(-1),
        )

    def _compute_target(self, next_outputs: Tensor, experience: Experience) -> Tensor:
        """Return the target of q(x, a) of the taken actions [T, B, N atoms]."""
        distribution = self._reduce_distributions(next_outputs.softmax(-1))  # [T, B, K, N atoms]
        mass, entropy_cost = experience.next_probs.unsqueeze(-1) * distribution, experience.next_entropy_cost
        rewards, discount = experience.reward, experience.discount
        if taken := experience.taken:
            # The rewards after the first include the entropy of their rows, as V does (see ScalarCritic).
            cost, horizon = taken.entropy_cost, self.settings.n_step
            rewards, discount, end = sum_rewards(rewards - cost, discount, experience.valid, horizon)
            rewards = rewards + cost
            last, columns = end - 1, torch.arange(end.shape[1], device=end.device)
            mass, entropy_cost = mass[last, columns], entropy_cost[last, columns]
        atoms = self.support.make_atoms(mass)
        position = rewards[..., None, None] + discount[..., None, None] * (atoms - entropy_cost.unsqueeze(-1))
        return self.support.project(position.flatten(-2), mass.flatten(-2))

    def _reduce_distributions(self, distributions: Tensor) -> Tensor:
        """Return one distribution [..., N atoms], given those of M critics [M, ..., N atoms]."""
        if not self.takes_minimum:
            return distributions.mean(0)
        smallest = (distributions @ self.support.make_atoms(distributions)).argmin(0)
        index = smallest[None, ..., None].expand(1, *distributions.shape[1:])
        return distributions.gather(0, index).squeeze(0)


def make_critic(settings: SacSettings, *, is_continuous: bool) -> Critic:
    """Return the kind of critic of the settings, for actions with or without continuous dimensions."""
    takes_minimum = settings.ensemble_q_reduce == "min" or (settings.ensemble_q_reduce == "auto" and is_continuous)
    if settings.critic == "categorical":
        return CategoricalCritic(settings, takes_minimum)
    return ScalarCritic(settings, takes_minimum, has_probabilities=not is_continuous)


class ActionEvaluator:
    """An evaluator of actions by critics.

    If any dimension is continuous, a critic evaluates given actions, otherwise all actions at once.

    Args:
        family: The distributions of the policy.
        critics: The critics.
        target_critics: The target critics; None: the targets contain the values of the critics.

    Attributes:
        is_joint: Whether (x, a) and (x', a') are evaluated in one pass, since critics have batch norms.
    """

    def __init__(self, family: HybridFamily, critics: CriticEnsemble, target_critics: CriticEnsemble | None):
        self.family, self.critics, self.target_critics = family, critics, target_critics
        self.is_joint = bool(find_batch_norms([critics.critics]))
        self._has_batch_norms = bool(find_batch_norms([critics]))

    def evaluate_pairs(
        self,
        rollout: Rollout,
        features: Tensor,
        target_features: Tensor,
        next_actions: Tensor,
        critic_indices: Sequence[int] | None,
    ) -> tuple[Tensor, Pass, Tensor]:
        """Return the outputs of all critics for (x, a), and those of M critics for (x', a') without gradient.

        Args:
            rollout: T rows.
            features: Features of the critics [T+1, B, F].
            target_features: Features of the target critics, or of the critics without them [T+1, B, F].
            next_actions: a', the continuous dimensions of each combination in the rows 1 to T [T, B, K, c].
            critic_indices: The M critics; None: all.

        Returns:
            The two results of `evaluate_taken` for all critics, the second as a pass, and outputs [M, T, B, K, *v].
        """
        if self.family.n_continuous and not self.is_joint:
            taken = self.critics.run(torch.cat((features[:-1], self.family.encode(rollout.raw_action)), -1))
            next_inputs = self._join(target_features[1:], next_actions)
            with torch.no_grad():
                next_outputs = (self.target_critics or self.critics).run(next_inputs, critic_indices).outputs
            return taken.outputs.unsqueeze(features.ndim), taken, next_outputs
        if not self.is_joint:
            outputs, taken_outputs = self.evaluate_taken(self.critics, features[:-1], rollout.raw_action)
            with torch.no_grad():
                next_outputs = (self.target_critics or self.critics)(target_features[1:], None, critic_indices)
            return outputs, AutogradPass(taken_outputs), next_outputs
        outputs, taken_outputs, next_outputs = self._evaluate_jointly(
            self.critics, rollout, features, next_actions, commits=True
        )
        if not self.target_critics:
            return outputs, AutogradPass(taken_outputs), select_critics(next_outputs.detach(), critic_indices)
        with torch.no_grad():
            _, _, next_outputs = self._evaluate_jointly(
                self.target_critics, rollout, target_features, next_actions, critic_indices
            )
        return outputs, AutogradPass(taken_outputs), next_outputs

    def evaluate_policy_actions(
        self,
        critic: Critic,
        features: Tensor,
        values: Tensor,
        critic_indices: Sequence[int] | None,
        continuous_actions: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        """Return Q [T, B, K] of every combination, and its gradient with respect to its continuous dimensions.

        Args:
            critic: The kind of the critics.
            features: [T, B, F] without gradient.
            values: The critics' outputs for every combination [N, T, B, K, *v], used if there are no continuous
                dimensions.
            critic_indices: The critics of this update; None: all.
            continuous_actions: [T, B, K, c].
        """
        if not self.family.n_continuous:
            values = select_critics(values.detach(), critic_indices)
            if self._has_batch_norms:  # `values` were computed with the statistics of the batch
                with torch.no_grad():
                    values = self.critics(features, None, critic_indices)
            return critic.reduce_ensemble(values), None
        inputs = self._join(features, continuous_actions)
        policy_pass = self.critics.run(inputs, critic_indices, differentiates=True)
        q, gradient = critic.differentiate_ensemble(policy_pass.outputs)
        actions = slice(features.shape[-1], features.shape[-1] + self.family.n_continuous)
        return q, policy_pass.differentiate(gradient)[..., actions]

    def _join(self, features: Tensor, continuous_actions: Tensor) -> Tensor:
        """Return the inputs of critics [..., K, F + E] for every combination with its continuous dimensions."""
        encoded = self.family.encode_per_combination(continuous_actions)
        return torch.cat((features.unsqueeze(-2).expand(*encoded.shape[:-1], -1), encoded), -1)

    def evaluate_taken(
        self, critics: CriticEnsemble, features: Tensor, raw_action: Tensor, critic_indices: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs of M critics for taken actions [..., size], given features [..., F].

        Returns:
            The outputs for every combination [M, ..., K, *v] (K is 1 with continuous dimensions: only the output for
            the taken combination is computed), and the outputs for the taken actions [M, ..., *v].
        """
        if self.family.n_continuous:
            outputs = critics(features, self.family.encode(raw_action).unsqueeze(-2), critic_indices)
            return outputs, outputs.squeeze(features.ndim)
        outputs = critics(features, None, critic_indices)
        return outputs, self._select_taken(outputs, raw_action)

    def _evaluate_jointly(
        self,
        critics: CriticEnsemble,
        rollout: Rollout,
        features: Tensor,
        next_actions: Tensor,
        critic_indices: Sequence[int] | None = None,
        *,
        commits: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs of M critics in one pass on [(x, a); (x', a')], with the statistics of this batch.

        So batch norms normalize both parts in the same way (Bhatt et al. 2024, arXiv 1902.05605). Arguments and results
        are those of `evaluate_pairs`, for the M critics alone; running statistics learn from the batch if it `commits`.
        """
        # The successor of row t is row t+1: of the T+1 rows, the first T are x and the last T are x'. Critics of all
        # actions evaluate each row once; critics of given actions evaluate rows 1 to T-1 twice, as x with the taken
        # action and as x' with the policy's. In the statistics, a row counts as x if it is valid, and as x' if the row
        # before it is valid and does not terminate.
        valid, has_successor = rollout.valid, rollout.valid & rollout.alive
        if not self.family.n_continuous:
            with batch_statistics(select_statistics_rows(rollout), commits=commits):
                all_outputs = critics(features, None, critic_indices)
            outputs = all_outputs[:, :-1]
            return outputs, self._select_taken(outputs, rollout.raw_action), all_outputs[:, 1:]
        encoded = self.family.encode(rollout.raw_action).flatten(0, 1)
        next_encoded = self.family.encode_per_combination(next_actions)  # [T, B, K, E]
        shape = next_encoded.shape[:-1]
        next_features = features[1:].unsqueeze(-2).expand(*shape, -1).flatten(0, 2)
        rows = torch.cat((valid.flatten(), has_successor.flatten().repeat_interleave(shape[-1])))
        with batch_statistics(rows, commits=commits):
            joint = critics(
                torch.cat((features[:-1].flatten(0, 1), next_features)),
                torch.cat((encoded, next_encoded.flatten(0, 2))).unsqueeze(-2),
                critic_indices,
            )
        first, second = joint.squeeze(2).split([len(encoded), len(next_features)], 1)
        taken = first.unflatten(1, shape[:2])
        return taken.unsqueeze(3), taken, second.unflatten(1, shape)

    def _select_taken(self, outputs: Tensor, raw_action: Tensor) -> Tensor:
        """Return the outputs [M, ..., *v] for taken actions [..., size], of those for every combination."""
        axis = raw_action.ndim  # of the combinations
        combination = self.family.find_combination(raw_action)
        value_shape = outputs.shape[axis + 1 :]
        index = combination[(..., *[None] * len(value_shape))].expand(*outputs.shape[:axis], 1, *value_shape)
        return outputs.gather(axis, index).squeeze(axis)


def select_critics(outputs: Tensor, critic_indices: Sequence[int] | None) -> Tensor:
    """Return the outputs of M critics, of those of all [N, ...]; None: all."""
    return outputs if critic_indices is None else outputs[critic_indices]
