"""Policies as distributions: sampling in numpy where agents act, closed forms in torch where they learn."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor


class Categorical:
    """pi(a) = softmax(logits)(a) over the A actions of one discrete branch; `statistics` are the logits [..., A].

    Gradients are with respect to the logits and in closed form; autograd is their oracle in the tests.
    """

    # Below this probability, gradients with respect to probabilities would overflow float32 when squared.
    SMALLEST = 1e-8

    def __init__(self, statistics: Float[Tensor, "*B A"]):
        self.statistics = statistics

    @staticmethod
    def sample(statistics: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """One draw per row of logits [n, A], as indices [n, 1] in float32: argmax of logits and Gumbel noise."""
        noise = rng.standard_exponential(statistics.shape, np.float32)
        # An exponential of 0 would be noise without bound, and take even what a mask forbids.
        return Categorical.mode(statistics - np.log(np.maximum(noise, np.finfo(np.float32).tiny)))

    @staticmethod
    def mode(statistics: np.ndarray) -> np.ndarray:
        """The most probable action of each row of logits [n, A], as indices [n, 1] in float32."""
        return statistics.argmax(-1)[:, None].astype(np.float32)

    @staticmethod
    def to_action(sample: np.ndarray) -> np.ndarray:
        """What is executed for a sample: the index itself."""
        return sample

    @cached_property
    def log_probs(self) -> Tensor:
        """log pi(a) of all actions [..., A]."""
        # Over a leading axis a softmax runs over whole rows at once; over a short last axis it costs ten times as much.
        return self.statistics.movedim(-1, 0).log_softmax(0).movedim(0, -1)

    @cached_property
    def probs(self) -> Tensor:
        """pi(a) of all actions [..., A]."""
        return self.log_probs.exp()

    def rows(self, where: slice) -> Categorical:
        """The same policy on some rows of the leading axis, with what is known of it already."""
        part = Categorical(self.statistics[where])
        part.__dict__.update(
            {name: self.__dict__[name][where] for name in ("log_probs", "probs") if name in self.__dict__}
        )
        return part

    def log_prob(self, action: Int64[Tensor, "*B"]) -> Float[Tensor, "*B"]:
        """log pi of the taken action."""
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def expectation(self, value: Float[Tensor, "*B A"]) -> Float[Tensor, "*B"]:
        """sum_a pi(a) value(a)."""
        return (self.probs * value).sum(-1)

    @cached_property
    def entropy(self) -> Tensor:
        """-sum_a pi(a) log pi(a) [...], in nats."""
        return -self.expectation(self.log_probs)

    def kl(self, average: Categorical) -> Float[Tensor, "*B"]:
        """KL[average || self], in nats."""
        return average.expectation(average.log_probs - self.log_probs)

    def score(self, weight: Float[Tensor, "*B A"]) -> Float[Tensor, "*B A"]:
        """sum_a weight(a) d log pi(a) / d logits."""
        return torch.addcmul(weight, self.probs, weight.sum(-1, keepdim=True), value=-1)

    def entropy_gradient(self) -> Float[Tensor, "*B A"]:
        """d entropy / d logits."""
        return self.probs * (self.expectation(self.log_probs).unsqueeze(-1) - self.log_probs)

    def kl_gradient(self, average: Categorical) -> Float[Tensor, "*B A"]:
        """d KL[average || self] / d logits."""
        return self.probs - average.probs

    def score_in_probs(self, weight: Float[Tensor, "*B A"]) -> Float[Tensor, "*B A"]:
        """sum_a weight(a) d log pi(a) / d pi: the score with the probabilities as free coordinates."""
        return weight / self.probs.clamp(min=self.SMALLEST)

    def kl_gradient_in_probs(self, average: Categorical) -> Float[Tensor, "*B A"]:
        """d KL[average || self] / d pi, with the probabilities as free coordinates."""
        return -average.probs / self.probs.clamp(min=self.SMALLEST)
