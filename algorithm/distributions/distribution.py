"""The contracts of a policy's distribution: DistributionFamily for acting (numpy), Distribution for learning (torch).

A *sample* is the variable of the density, and is stored as the raw action: continuous dimensions before clipping or
squashing, then one index for each discrete branch. *Statistics* are the parameters of a distribution: means, logarithms
of standard deviations, then the logits of each branch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

OTHER_ACTION = 1e-4  # of the player of a demonstration, see `DistributionFamily.concentrate`
MASKED_LOGIT = -1e9  # the logit of a forbidden action; its probability is exactly 0, and no result is infinite

DistributionT = TypeVar("DistributionT", bound="Distribution")
DistributionT_co = TypeVar("DistributionT_co", bound="Distribution", covariant=True)


class ExportedAction(NamedTuple):
    """An executed action in parts, to be concatenated in this order."""

    continuous: tuple[Tensor, ...]  # dimensions in [-1, 1], [B, d] each
    indices: tuple[Tensor, ...]  # one for each branch, [B, 1] int64 each


@dataclass(frozen=True)
class Selection:
    """The selection of an exported action."""

    index: Callable[[Tensor], Tensor]  # of the logits [B, A] of a branch -> [B, 1] int64
    value: Callable[[Tensor, Tensor], Tensor]  # of means and logarithms of std [B, d] -> [B, d]


SAMPLE = Selection(  # with torch's generator
    lambda logits: torch.multinomial(logits.softmax(-1), 1),
    lambda mean, log_std: mean + log_std.exp() * torch.randn_like(mean),
)
MODE = Selection(lambda logits: logits.argmax(-1, keepdim=True), lambda mean, log_std: mean)


class Distribution(ABC):
    """A batch of distributions pi(. | statistics) with statistics [*B, S]."""

    statistics: Float[Tensor, "*B S"]

    @abstractmethod
    def log_prob(self, sample: Float[Tensor, "*B size"]) -> Float[Tensor, "*B"]:
        """Return log pi of samples, the sum over their dimensions."""

    def log_ratio(
        self: DistributionT, behavior: DistributionT, sample: Float[Tensor, "*B size"]
    ) -> Float[Tensor, "*B"]:
        """Return log(pi / mu) of samples, mu being `behavior`."""
        return self.log_prob(sample) - behavior.log_prob(sample)

    def select_rows(self: DistributionT, where: slice) -> DistributionT:
        """Return the distributions of some rows of the leading axis, with the cached properties of these rows."""
        part = object.__new__(type(self))
        part.__dict__.update({name: _select_rows(value, where) for name, value in self.__dict__.items()})
        return part


def _select_rows(value: Any, where: slice) -> Any:
    """Return some rows of each tensor in an attribute of a distribution."""
    if isinstance(value, Tensor):
        return value[where]
    if isinstance(value, list):
        return [_select_rows(each, where) for each in value]
    return value.select_rows(where) if isinstance(value, Distribution) else value


class ClosedFormDistribution(Distribution):
    """A distribution with closed-form gradients with respect to its statistics, which tests compare with autograd."""

    @property
    @abstractmethod
    def entropy(self) -> Float[Tensor, "*B"]:
        """Entropy of the sample, before clipping or squashing, in nats."""

    @abstractmethod
    def entropy_gradient(self) -> Float[Tensor, "*B S"]:
        """Return d entropy / d statistics."""

    @abstractmethod
    def kl(self: DistributionT, average: DistributionT) -> Float[Tensor, "*B"]:
        """Return KL[average || self], in nats."""

    @abstractmethod
    def kl_gradient(self: DistributionT, average: DistributionT) -> Float[Tensor, "*B S"]:
        """Return d KL[average || self] / d statistics."""

    @abstractmethod
    def fisher_product(self, vector: Float[Tensor, "*B S"]) -> Float[Tensor, "*B S"]:
        """Return M vector, M being the Fisher matrix of each distribution with respect to its statistics.

        M is the second derivative of KL[self || other] with respect to the statistics of `other`, where both are equal.
        """

    @abstractmethod
    def score(self, sample: Float[Tensor, "*B size"], weight: Float[Tensor, "*B"]) -> Float[Tensor, "*B S"]:
        """Return weight * d log pi(sample) / d statistics."""

    @abstractmethod
    def draw_samples(self, count: int) -> Float[Tensor, "count *B size"]:
        """Return `count` independent samples of each row, without gradient, with torch's default generator."""


class DistributionFamily(ABC, Generic[DistributionT_co]):
    """The distributions over one kind of action, as functions of their statistics."""

    size: int  # columns of a sample, and of an action
    statistics_size: int  # S
    dimensions: int  # continuous dimensions and discrete branches: d of rho^(1/d) (Wang et al. 2017, section 5.1)
    encoded_size: int  # columns of `encode`
    branches: tuple[int, ...]  # number of actions of each discrete branch

    @abstractmethod
    def __call__(self, statistics: Float[Tensor, "*B S"]) -> DistributionT_co:
        """Return the distribution with these statistics."""

    @abstractmethod
    def encode(self, sample: Float[Tensor, "*B size"]) -> Float[Tensor, "*B encoded"]:
        """Return the input of a critic: executed continuous dimensions, then one-hot indices of each branch."""

    @abstractmethod
    def sample(self, statistics: np.ndarray, rng: np.random.Generator, noise: np.ndarray | None = None) -> np.ndarray:
        """Return one sample [n, size] float32 for each row of statistics.

        Args:
            statistics: [n, S].
            rng: The generator of the sample.
            noise: Standard normal noise [n, c] of the c continuous dimensions, whose sample is mean + std * noise;
                None: it is drawn. Indices of discrete branches are always drawn.
        """

    @abstractmethod
    def mode(self, statistics: np.ndarray) -> np.ndarray:
        """Return the most probable sample [n, size] float32 for each row of statistics [n, S]."""

    @abstractmethod
    def to_action(self, sample: np.ndarray) -> np.ndarray:
        """Return the executed actions of samples [n, size]: continuous dimensions in [-1, 1], indices unchanged."""

    def from_action(self, action: np.ndarray) -> np.ndarray:
        """Return samples [n, size] whose executed actions are `action`; those of a tanh are finite at its bounds."""
        return action

    @abstractmethod
    def with_noise(self, statistics: np.ndarray, level: np.ndarray) -> np.ndarray:
        """Return the statistics [n, S] of the policy with exploration noise.

        A standard deviation becomes sqrt(std^2 + level^2); a branch takes a uniformly random allowed action with
        probability `level`.

        Args:
            statistics: [n, S].
            level: Noise of each row [n].
        """

    @abstractmethod
    def concentrate(self, statistics: Float[Tensor, "*B S"], sample: Float[Tensor, "*B size"]) -> Float[Tensor, "*B S"]:
        """Return the statistics of a player that selects `sample`, as far as its behavior is known.

        It takes any other allowed action of a branch with probability `OTHER_ACTION`; its means are those of the
        sample, its standard deviations those of `statistics`.
        """

    def with_repetition(self, statistics: np.ndarray, sample: np.ndarray, level: np.ndarray) -> np.ndarray:
        """Return the statistics [n, S] of the policy that takes the action of a sample with a probability.

        Each branch takes it independently, unless it is forbidden, and otherwise follows the policy.

        Args:
            statistics: [n, S].
            sample: [n, size].
            level: Probability of each row [n], below 1.

        Raises:
            TypeError: The actions are continuous.
        """
        raise TypeError(f"{type(self).__name__} has continuous actions, which have no probability of repetition")

    @abstractmethod
    def export_action(self, statistics: Tensor, mask: Tensor, selection: Selection) -> ExportedAction:
        """Return the executed action for each row of statistics [B, S], in operators for export to ONNX.

        Shapes are not annotated, since the sizes in a traced graph are not integers.

        Args:
            statistics: [B, S].
            mask: 1 for allowed actions [B, sum of branches], otherwise 0; all 0 allows all actions.
            selection: SAMPLE for a sample of each row, or MODE for its most probable sample.
        """
