"""The contracts of a policy's distribution: a Family where agents act (numpy), a Distribution where they learn (torch).

A *sample* is what the density is of and what is stored: draws before clipping or squashing, then one index for each
discrete branch. *Statistics* are the numbers that determine the distribution: means, logarithms of standard deviations,
then the logits of each branch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float
from torch import Tensor

MASKED_LOGIT = -1e9  # the logit of an action that a mask forbids: its probability is exactly 0, and nothing is infinite

DistributionT = TypeVar("DistributionT", bound="Distribution")
DistributionT_co = TypeVar("DistributionT_co", bound="Distribution", covariant=True)


class ExportedAction(NamedTuple):
    """What is executed, in parts that stand side by side: numbers in [-1, 1], and one index of each branch."""

    continuous: tuple[Tensor, ...]  # [B, d] each
    indices: tuple[Tensor, ...]  # [B, 1] int64 each


class Distribution(ABC):
    """pi(. | statistics [*B, S]), row by row."""

    statistics: Float[Tensor, "*B S"]

    @abstractmethod
    def log_prob(self, sample: Float[Tensor, "*B size"]) -> Float[Tensor, "*B"]:
        """log pi of a sample, all its numbers together."""

    def log_ratio(
        self: DistributionT, behavior: DistributionT, sample: Float[Tensor, "*B size"]
    ) -> Float[Tensor, "*B"]:
        """log pi / mu of a sample."""
        return self.log_prob(sample) - behavior.log_prob(sample)

    @property
    @abstractmethod
    def entropy(self) -> Float[Tensor, "*B"]:
        """In nats; of the draws before clipping or squashing."""

    @abstractmethod
    def select_rows(self: DistributionT, where: slice) -> DistributionT:
        """The same policy on some rows of the leading axis, with what is known of it already."""


class ClosedFormDistribution(Distribution):
    """A distribution that knows its gradients with respect to the statistics; autograd is their oracle in the tests."""

    @abstractmethod
    def entropy_gradient(self) -> Float[Tensor, "*B S"]:
        """d entropy / d statistics."""

    @abstractmethod
    def kl(self: DistributionT, average: DistributionT) -> Float[Tensor, "*B"]:
        """KL[average || self], in nats."""

    @abstractmethod
    def kl_gradient(self: DistributionT, average: DistributionT) -> Float[Tensor, "*B S"]:
        """d KL[average || self] / d statistics."""

    @abstractmethod
    def score(self, sample: Float[Tensor, "*B size"], weight: Float[Tensor, "*B"]) -> Float[Tensor, "*B S"]:
        """weight * d log pi(sample) / d statistics."""

    @abstractmethod
    def draw_samples(self, count: int) -> Float[Tensor, "count *B size"]:
        """`count` independent samples of each row, without gradient, from torch's generator of the process."""


class DistributionFamily(ABC, Generic[DistributionT_co]):
    """All distributions over one kind of action."""

    size: int  # numbers of a sample, and of an action
    statistics_size: int  # S
    dimensions: int  # continuous numbers and discrete branches: d of rho^(1/d) (Wang et al. 2017, section 5.1)
    encoded_size: int  # numbers that a critic reads of a sample
    branches: tuple[int, ...]  # actions of each discrete branch

    @abstractmethod
    def __call__(self, statistics: Float[Tensor, "*B S"]) -> DistributionT_co:
        """The distribution with these statistics."""

    @abstractmethod
    def encode(self, sample: Float[Tensor, "*B size"]) -> Float[Tensor, "*B encoded"]:
        """What a critic reads of a sample: the executed continuous numbers, then one-hot indices of each branch."""

    @abstractmethod
    def sample(self, statistics: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """One draw per row [n, S] -> [n, size] float32."""

    @abstractmethod
    def mode(self, statistics: np.ndarray) -> np.ndarray:
        """The most probable sample of each row [n, S] -> [n, size] float32."""

    @abstractmethod
    def to_action(self, sample: np.ndarray) -> np.ndarray:
        """What is executed for a sample: continuous numbers in [-1, 1], indices as they are."""

    @abstractmethod
    def with_noise(self, statistics: np.ndarray, level: np.ndarray) -> np.ndarray:
        """The statistics [n, S] of the same policy with noise of `level` [n] around each draw.

        A standard deviation grows to sqrt(std^2 + level^2); a branch takes with probability `level` any allowed action.
        """

    # Acting in a graph that is traced and runs elsewhere. `allowed` [B, sum of branches] is 1 for what may be done, or
    # else 0; all 0 is as good as all 1. Shapes are not annotated here, since those of a trace are no numbers.

    @abstractmethod
    def sample_for_export(self, statistics: Tensor, mask: Tensor) -> ExportedAction:
        """What is executed for one draw per row of statistics [B, S], from torch's generator."""

    @abstractmethod
    def mode_for_export(self, statistics: Tensor, mask: Tensor) -> ExportedAction:
        """What is executed for the most probable sample of each row of statistics [B, S]."""
