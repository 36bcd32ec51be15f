"""The prediction of actions of any kind, from the features of the rows before and after them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from algorithm.networks import Mlp
from algorithm.specs import ActionSpec


class ActionPrediction:
    """A comparison of predicted and taken actions: cross-entropy of each discrete branch, squared error otherwise.

    Attributes:
        size: number of predicted values: one for each continuous dimension, a logit for each action of each branch.
    """

    def __init__(self, spec: ActionSpec):
        self._continuous, self._branches = spec.continuous, tuple(spec.branches)
        self.size = self._continuous + sum(self._branches)

    def compute_error(self, predicted: Tensor, encoded: Tensor) -> Tensor:
        """Return the error of each row.

        Args:
            predicted: [..., size].
            encoded: The taken actions [..., size]: continuous dimensions in [-1, 1], then one-hot indices of each
                branch, as `DistributionFamily.encode` returns them.

        Returns:
            [...]: 1/2 the squared error of the continuous dimensions, plus the cross-entropy of each branch in nats.
        """
        sizes = [self._continuous, *self._branches]
        (means, *logits), (actions, *codes) = predicted.split(sizes, -1), encoded.split(sizes, -1)
        error = 0.5 * (means - actions).square().sum(-1)
        for logit, code in zip(logits, codes, strict=True):
            error = error - (code * torch.log_softmax(logit, -1)).sum(-1)
        return error


class InverseModel(nn.Module):
    """A network that predicts the action between two rows from their features (Pathak et al. 2017, Eq. 2-3).

    Args:
        size: Number of features of a row.
        units: Units of the hidden layer.
        spec: The actions.
    """

    def __init__(self, size: int, units: int, spec: ActionSpec):
        super().__init__()
        self._prediction = ActionPrediction(spec)
        self.layers = make_model(2 * size, units, self._prediction.size)

    def compute_error(self, features: Tensor, encoded: Tensor) -> Tensor:
        """Return the error of each predicted action [T, B], see `ActionPrediction.compute_error`.

        Args:
            features: [T+1, B, size].
            encoded: The taken actions [T, B, ...], as `DistributionFamily.encode` returns them.
        """
        predicted = self.layers(torch.cat((features[:-1], features[1:]), -1))
        return self._prediction.compute_error(predicted, encoded)


def make_model(inputs: int, units: int, outputs: int) -> nn.Module:
    """Return a network with one hidden layer."""
    hidden = Mlp(units)(inputs)
    return nn.Sequential(hidden, nn.Linear(hidden.size, outputs))
