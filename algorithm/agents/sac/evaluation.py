"""The outputs of an ensemble of critics for actions of every kind.

In shapes, T rows of B columns, M critics, K combinations of discrete branches; `*v` is the shape of a value.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from algorithm.distributions import HybridFamily
from algorithm.networks import CriticEnsemble, batch_statistics
from algorithm.rollout import Rollout


class ActionEvaluator:
    """An evaluator of actions by critics: by critics of given actions if any dimension is continuous.

    Args:
        family: The distributions of the policy.
    """

    def __init__(self, family: HybridFamily):
        self.family = family

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

    def evaluate_combinations(
        self, critics: CriticEnsemble, features: Tensor, continuous_actions: Tensor, critic_indices: Sequence[int]
    ) -> Tensor:
        """Return the outputs [M, ..., K, *v] for every combination with its continuous dimensions [..., K, c]."""
        encoded_actions = self.family.encode_per_combination(continuous_actions) if self.family.n_continuous else None
        return critics(features, encoded_actions, critic_indices)

    def evaluate_jointly(
        self,
        critics: CriticEnsemble,
        features: Tensor,
        rollout: Rollout,
        next_actions: Tensor,
        critic_indices: Sequence[int] | None = None,
        *,
        commits: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outputs of M critics in one pass on [(x, a); (x', a')], with the statistics of this batch.

        Thus batch norms normalize both parts in the same way (Bhatt et al. 2024, arXiv 1902.05605).

        Args:
            critics: The critics.
            features: Features of all rows [T+1, B, F].
            rollout: T rows.
            next_actions: a', the continuous dimensions of each combination in the rows 1 to T [T, B, K, c].
            critic_indices: The M critics; None: all.
            commits: Whether running statistics learn from the batch.

        Returns:
            The two results of `evaluate_taken` for (x, a), and the outputs for (x', a') [M, T, B, K, *v].
        """
        # The successor of row t is row t+1. Critics of all actions thus evaluate each of the T+1 rows once. Critics of
        # given actions evaluate rows 1 to T - 1 twice, with the taken actions and with those of the policy. A row
        # counts in the statistics as x if it is valid, and as x' if the row before it is valid and no termination.
        valid, has_successor = rollout.valid, rollout.valid & rollout.alive
        if not self.family.n_continuous:
            with batch_statistics(select_learned_rows(rollout), commits=commits):
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


def select_learned_rows(rollout: Rollout) -> Tensor:
    """Return which of the rows x_0 to x_T are learned from, as state or as next state [T+1, B] bool."""
    none = torch.zeros_like(rollout.valid[:1])
    return torch.cat((rollout.valid, none)) | torch.cat((none, rollout.valid & rollout.alive))
