"""Gaussian policies over continuous actions; executed actions are samples clipped or squashed to [-1, 1]."""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from algorithm.distributions.distribution import ClosedFormDistribution, DistributionFamily, ExportedAction, Selection

MAX_TANH = 0.999  # the largest executed action that `from_action` inverts exactly; its sample is 3.8


class Gaussian(ClosedFormDistribution):
    """N(mean, std^2) in each of d dimensions; the statistics are d means, then d logarithms of std [..., 2 d]."""

    def __init__(self, statistics: Float[Tensor, "*B S"]):
        self.statistics = statistics
        self.mean, self.log_std = statistics.chunk(2, -1)

    @cached_property
    def inverse_std(self) -> Tensor:
        """1 / std [..., d]."""
        return self.log_std.neg().exp()

    def log_prob(self, sample: Float[Tensor, "*B d"]) -> Float[Tensor, "*B"]:
        z_score = (sample - self.mean) * self.inverse_std
        constant = 0.5 * math.log(2 * math.pi) * self.mean.shape[-1]
        return -torch.addcmul(self.log_std, z_score, z_score, value=0.5).sum(-1) - constant

    @cached_property
    def entropy(self) -> Tensor:
        """Sum over dimensions of log std + 1/2 log(2 pi e) [...], in nats."""
        return self.log_std.sum(-1) + 0.5 * math.log(2 * math.pi * math.e) * self.mean.shape[-1]

    def entropy_gradient(self) -> Float[Tensor, "*B S"]:
        return self._concat_gradients(torch.zeros_like(self.mean), torch.ones_like(self.log_std))

    def kl(self, average: Gaussian) -> Float[Tensor, "*B"]:
        _, log_std_ratio, excess = self._compare(average)
        return (0.5 * excess - log_std_ratio).sum(-1)

    def kl_gradient(self, average: Gaussian) -> Float[Tensor, "*B S"]:
        shift, _, excess = self._compare(average)
        return self._concat_gradients(shift * self.inverse_std, -excess)

    def fisher_product(self, vector: Float[Tensor, "*B S"]) -> Float[Tensor, "*B S"]:
        """M is diagonal: 1 / s^2 for each mean, 2 for each log std."""
        mean, log_std = vector.chunk(2, -1)
        return self._concat_gradients(mean * self.inverse_std.square(), 2 * log_std)

    def _compare(self, average: Gaussian) -> tuple[Tensor, Tensor, Tensor]:
        """Return (m - m_avg) / s, log(s_avg / s) and (s_avg^2 + (m - m_avg)^2) / s^2 - 1, each [..., d]."""
        shift = (self.mean - average.mean) * self.inverse_std
        log_std_ratio = average.log_std - self.log_std
        return shift, log_std_ratio, torch.addcmul((2 * log_std_ratio).expm1(), shift, shift)

    def score(self, sample: Float[Tensor, "*B d"], weight: Float[Tensor, "*B"]) -> Float[Tensor, "*B S"]:
        z_score = (sample - self.mean) * self.inverse_std
        weight = weight.unsqueeze(-1)
        weighted = weight * z_score
        return self._concat_gradients(weighted * self.inverse_std, weighted * z_score - weight)

    def draw_samples(self, count: int) -> Float[Tensor, "count *B d"]:
        noise = self.mean.new_empty((count, *self.mean.shape)).normal_()
        return torch.addcmul(self.mean, self.log_std.exp(), noise)

    @staticmethod
    def _concat_gradients(mean: Tensor, log_std: Tensor) -> Tensor:
        """Return the gradient with respect to the statistics, from the gradients of the means and of log std."""
        return torch.cat((mean, log_std), -1)


class FixedStdGaussian(Gaussian):
    """A Gaussian with a constant standard deviation: the columns of log std are 0 in every gradient."""

    @staticmethod
    def _concat_gradients(mean: Tensor, log_std: Tensor) -> Tensor:
        return torch.cat((mean, torch.zeros_like(log_std)), -1)


class GaussianFamily(DistributionFamily[Gaussian]):
    """The Gaussian policies over d continuous dimensions, whose executed actions are in [-1, 1].

    Densities, ratios and KL refer to the samples before clipping or squashing.
    """

    def __init__(self, dimensions: int, distribution: type[Gaussian]):
        self.size = self.dimensions = self.encoded_size = dimensions
        self.statistics_size = 2 * dimensions
        self.branches = ()
        self.distribution = distribution

    def __call__(self, statistics: Float[Tensor, "*B S"]) -> Gaussian:
        return self.distribution(statistics)

    def sample(self, statistics: np.ndarray, rng: np.random.Generator, noise: np.ndarray | None = None) -> np.ndarray:
        mean, log_std = np.split(statistics, 2, -1)
        if noise is None:
            noise = rng.standard_normal(mean.shape, np.float32)
        return mean + np.exp(log_std) * noise

    def mode(self, statistics: np.ndarray) -> np.ndarray:
        return statistics[:, : self.size].copy()

    def with_noise(self, statistics: np.ndarray, level: np.ndarray) -> np.ndarray:
        mean, log_std = np.split(statistics, 2, -1)
        return np.concatenate((mean, np.log(np.hypot(np.exp(log_std), level[:, None]))), -1, dtype=np.float32)

    def concentrate(self, statistics: Float[Tensor, "*B S"], sample: Float[Tensor, "*B d"]) -> Float[Tensor, "*B S"]:
        return torch.cat((sample, statistics[..., self.size :]), -1)

    def encode(self, sample: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        return self.bound_actions(sample)

    @staticmethod
    @abstractmethod
    def bound_actions(sample: Tensor) -> Tensor:
        """Return the executed actions of samples, in [-1, 1]."""

    def export_action(self, statistics: Tensor, mask: Tensor, selection: Selection) -> ExportedAction:
        sample = selection.value(statistics[:, : self.size], statistics[:, self.size :])
        return ExportedAction((self.bound_actions(sample),), ())


class ClippedGaussianFamily(GaussianFamily):
    """The Gaussian policies whose executed action is the sample clipped to [-1, 1]."""

    @staticmethod
    def bound_actions(sample: Tensor) -> Tensor:
        return sample.clamp(-1, 1)

    def to_action(self, sample: np.ndarray) -> np.ndarray:
        return np.clip(sample, -1, 1)


class TanhGaussianFamily(GaussianFamily):
    """The Gaussian policies whose executed action is tanh of the sample; the mode is tanh of the mean."""

    @staticmethod
    def bound_actions(sample: Tensor) -> Tensor:
        return sample.tanh()

    def to_action(self, sample: np.ndarray) -> np.ndarray:
        return np.tanh(sample)

    def from_action(self, action: np.ndarray) -> np.ndarray:
        return np.arctanh(np.clip(action, -MAX_TANH, MAX_TANH))
