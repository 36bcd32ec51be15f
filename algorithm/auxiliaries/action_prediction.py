"""The prediction of actions of any kind, from the features of the rows before and after them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from algorithm.networks import Mlp
from algorithm.specs import ActionSpec


class InverseModel(nn.Module):
    """A network that predicts the action between two rows from their features (Pathak et al. 2017, Eq. 2-3).

    Its outputs are one value for each continuous dimension, and a logit for each action of each branch.

    Args:
        size: Number of features of a row.
        units: Units of the hidden layer.
        spec: The actions.
    """

    def __init__(self, size: int, units: int, spec: ActionSpec):
        super().__init__()
        self._sizes = [spec.continuous, *spec.branches]
        self.layers = make_model(2 * size, units, sum(self._sizes))

    def compute_error(self, features: Tensor, encoded: Tensor) -> Tensor:
        """Return the error of each predicted action.

        Args:
            features: [T+1, B, size].
            encoded: The taken actions [T, B, ...]: continuous dimensions in [-1, 1], then one-hot indices of each
                branch, as `DistributionFamily.encode` returns them.

        Returns:
            [T, B]: 1/2 the squared error of the continuous dimensions, plus the cross-entropy of each branch in nats.
        """
        predicted = self.layers(torch.cat((features[:-1], features[1:]), -1))
        (means, *logits), (actions, *codes) = predicted.split(self._sizes, -1), encoded.split(self._sizes, -1)
        error = 0.5 * (means - actions).square().sum(-1)
        for logit, code in zip(logits, codes, strict=True):
            error = error - (code * torch.log_softmax(logit, -1)).sum(-1)
        return error


def make_model(inputs: int, units: int, outputs: int) -> nn.Module:
    """Return a network with one hidden layer."""
    hidden = Mlp(units)(inputs)
    return nn.Sequential(hidden, nn.Linear(hidden.size, outputs))
