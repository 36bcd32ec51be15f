"""What the numbers of a critic's head mean."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from algorithm.agents.estimators import Targets
from algorithm.distributions import Categorical
from algorithm.losses import bias_correction


class Critic(ABC):
    """Reads `size` numbers per row, `values` [..., size]; actions are indices [..., 1]."""

    size: int

    @abstractmethod
    def v(self, values: Tensor, policy: Categorical) -> Tensor:
        """V(x) [...] under `policy`."""

    @abstractmethod
    def taken(self, values: Tensor, action: Tensor) -> Tensor:
        """[...] what is learned where `action` was taken."""

    @abstractmethod
    def target(self, targets: Targets) -> Tensor:
        """[...] the target of what was `taken`."""

    @abstractmethod
    def pull(self, values: Tensor, action: Tensor, error: Tensor) -> Tensor:
        """[..., size] the descent direction of 1/2 error^2 (Wang et al. 2017, Eq. 6)."""

    @abstractmethod
    def correction(self, values: Tensor, v: Tensor, policy: Categorical, behavior: Categorical, clip: float) -> Tensor:
        """[..., A] the weight of every action's score that corrects the truncated importance (Eq. 9)."""


class ActionValues(Critic):
    """Q(x, a) of every action of one branch."""

    def __init__(self, actions: int):
        self.size = actions

    def v(self, values: Tensor, policy: Categorical) -> Tensor:
        return policy.expectation(values)

    def taken(self, values: Tensor, action: Tensor) -> Tensor:
        return values.gather(-1, action).squeeze(-1)

    def target(self, targets: Targets) -> Tensor:
        return targets.q

    def pull(self, values: Tensor, action: Tensor, error: Tensor) -> Tensor:
        return torch.zeros_like(values).scatter_(-1, action, error.unsqueeze(-1))

    def correction(self, values: Tensor, v: Tensor, policy: Categorical, behavior: Categorical, clip: float) -> Tensor:
        return bias_correction(policy.probs, behavior.probs, values - v.unsqueeze(-1), clip)


class StateValue(Critic):
    """V(x) alone. Nothing is known of actions that were not taken, so that the correction is dropped."""

    size = 1

    def v(self, values: Tensor, policy: Categorical) -> Tensor:
        return values.squeeze(-1)

    def taken(self, values: Tensor, action: Tensor) -> Tensor:
        return values.squeeze(-1)

    def target(self, targets: Targets) -> Tensor:
        return targets.v

    def pull(self, values: Tensor, action: Tensor, error: Tensor) -> Tensor:
        return error.unsqueeze(-1)

    def correction(self, values: Tensor, v: Tensor, policy: Categorical, behavior: Categorical, clip: float) -> Tensor:
        return torch.zeros_like(policy.probs)
