"""The outputs of an ensemble of critics for actions of every kind.

In shapes, T rows of B columns, M critics, K combinations of discrete branches; `*v` is the shape of a value.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from algorithm.agents.agent import select_statistics_rows
from algorithm.agents.sac.critics import Critic
from algorithm.distributions import HybridFamily
from algorithm.networks import CriticEnsemble, batch_statistics
from algorithm.networks.normalization import find_batch_norms
from algorithm.networks.passes import AutogradPass, Pass
from algorithm.rollout import Rollout


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

        So batch norms normalize both parts in the same way (Bhatt et al. 2024, arXiv 1902.05605).

        Args:
            critics: The critics.
            rollout: See `evaluate_pairs`.
            features: Features of these critics [T+1, B, F].
            next_actions: See `evaluate_pairs`.
            critic_indices: The M critics; None: all.
            commits: Whether running statistics learn from the batch.

        Returns:
            See `evaluate_pairs`; all of the M critics.
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
