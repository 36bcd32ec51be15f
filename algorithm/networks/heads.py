"""The outputs of a network: statistics of the policy, values of the critic, standard deviations, advantages."""

from __future__ import annotations

from dataclasses import dataclass
from math import atanh, log
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.fast_products import linear_by_output
from algorithm.networks.layers import Mlp
from algorithm.networks.modules import BranchFactory, NumpyFunction, build_module, make_numpy_chain, make_numpy_linear
from algorithm.networks.precision import run_in_precision

StdKind = Literal["fixed", "learned", "state_dependent"]
# Bounds of the logarithm of a learned std above std_min. The upper bound is wider than tanh can resolve and finite.
LOG_STD_BOUNDS = (-20.0, 2.0)


@dataclass(frozen=True)
class HeadSpec:
    """One output: its number of values, and the gain of its initial weights."""

    size: int
    gain: float


class SharedHeads(nn.Module):
    """Several outputs as slices of one linear layer: one product instead of several.

    The outputs [..., size] are views whose last axis has the largest stride in memory. Elementwise operations keep this
    layout, and sums over a few actions then add whole rows at once.
    """

    def __init__(self, inputs: int, *heads: HeadSpec):
        super().__init__()
        self.precision = torch.float32  # of the layers before the outputs, which have none here
        self.sizes = [head.size for head in heads]
        self.linear = nn.Linear(inputs, sum(self.sizes))
        nn.init.zeros_(self.linear.bias)
        with torch.no_grad():
            for weight, head in zip(self.linear.weight.split(self.sizes), heads, strict=True):
                weight.copy_(nn.init.orthogonal_(torch.empty_like(weight), head.gain))

    def forward(self, features: Tensor) -> Tensor:
        """Return all outputs concatenated: [..., F] -> [..., sum of sizes]."""
        return linear_by_output(features, self.linear.weight, self.linear.bias)

    def unroll(self, features: Tensor) -> Tensor:
        """Return `forward`: outputs are in float32 in any precision."""
        return self.forward(features)

    def numpy(self) -> NumpyFunction:
        """Return the first output in numpy, on views of the parameters."""
        return make_numpy_linear(self.linear, self.sizes[0])


class SeparateHeads(nn.Module):
    """Several outputs, each with separate layers before it, or with no layers if its factory is None."""

    def __init__(self, inputs: int, *branches: tuple[BranchFactory | None, HeadSpec]):
        super().__init__()
        self.precision = torch.float32
        self.layers: Any = nn.ModuleList(
            build_module(layers, inputs, "forward") if layers else nn.Identity() for layers, _ in branches
        )
        self.heads: Any = nn.ModuleList(
            SharedHeads(getattr(layers, "size", inputs), head)
            for layers, (_, head) in zip(self.layers, branches, strict=True)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return all outputs concatenated: [..., F] -> [..., sum of sizes]."""
        return self._compute_outputs([layers.forward(features) for layers in self.layers])

    def unroll(self, features: Tensor) -> Tensor:
        """Return `forward` for learning: the layers compute in `precision`, the outputs in float32."""
        return self._compute_outputs(self._compute_hidden(features))

    @run_in_precision
    def _compute_hidden(self, features: Tensor) -> list[Tensor]:
        return [layers.forward(features) for layers in self.layers]

    def _compute_outputs(self, hidden: list[Tensor]) -> Tensor:
        outputs = [head.forward(head_input) for head, head_input in zip(self.heads, hidden, strict=True)]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)

    def numpy(self) -> NumpyFunction | None:
        """Return the first output in numpy, on views of the parameters; None if its layers have no numpy form."""
        return make_numpy_chain(self.layers[0], self.heads[0])


class AdvantageHead(nn.Module):
    """A value of each action: features [..., F] and actions [K, ..., E] -> [K, ...].

    Args:
        inputs: Size F of the features.
        encoded_size: Size E of an encoded action.
        layers: Layers before the output, which read features and action concatenated; None: one hidden layer as wide as
            the features.
    """

    def __init__(self, inputs: int, encoded_size: int, layers: BranchFactory | None):
        super().__init__()
        hidden: Any = build_module(layers or Mlp(inputs), inputs + encoded_size, "forward")
        self.layers, self.head = hidden, SharedHeads(hidden.size, HeadSpec(1, gain=1.0))

    def forward(self, features: Tensor, actions: Tensor) -> Tensor:
        inputs = torch.cat((features.expand(*actions.shape[:-1], -1), actions), -1)
        return self.head(self.layers(inputs)).squeeze(-1)


class StdAboveMinimum:
    """A function from a real number to log std: std = std_min + exp(number + constant), std_init for the number 0.

    Its argument `xp` is the library of the numbers, torch or numpy.
    """

    def __init__(self, std_init: float, std_min: float):
        self.std_min, self.initial = std_min, log(std_init - std_min)

    def __call__(self, number: Any, xp: Any = torch) -> Any:
        return xp.log(self.std_min + xp.exp((self.initial + number).clip(*LOG_STD_BOUNDS)))

    def differentiate(self, number: Tensor) -> Tensor:
        """Return the derivative of log std with respect to the number."""
        exponent, (low, high) = self.initial + number, LOG_STD_BOUNDS
        derivative = torch.sigmoid(exponent - log(self.std_min)) if self.std_min else torch.ones_like(exponent)
        return derivative * ((exponent >= low) & (exponent <= high))


class StdInRange:
    """A function from a real number to log std, between log std_min and log std_max, std_init for the number 0.

    log std = center + (1/2 length of the range) tanh(number + constant), as in FlashSAC (arXiv 2604.04539). `xp` is
    the library of the numbers, torch or numpy.
    """

    def __init__(self, std_init: float, std_min: float, std_max: float):
        self.center, self.half = 0.5 * log(std_max * std_min), 0.5 * log(std_max / std_min)
        self.initial = atanh((log(std_init) - self.center) / self.half)

    def __call__(self, number: Any, xp: Any = torch) -> Any:
        return self.center + self.half * xp.tanh(self.initial + number)

    def differentiate(self, number: Tensor) -> Tensor:
        """Return the derivative of log std with respect to the number."""
        return self.half * (1 - torch.tanh(self.initial + number).square())


class StdHead(nn.Module):
    """The standard deviations of continuous actions: inserts log std after the means of the network's output.

    The network's output [..., n_columns + rest] begins with the means, followed by a column per mean if the std is
    state dependent; the result is [..., means, log std, rest].

    Args:
        n_means: Number of means.
        kind: "fixed": `std_init`, without `std_min`; "learned": a parameter per mean; "state_dependent": a column of
            the network's output per mean.
        std_init: Initial std.
        std_min: Lower bound of a std that is not fixed, below `std_init`.
        std_max: Upper bound of a std that is not fixed, above `std_init`; then `std_min` is above 0. None: no bound.
    """

    def __init__(self, n_means: int, kind: StdKind, std_init: float, std_min: float, std_max: float | None = None):
        super().__init__()
        self.n_means = n_means
        self.n_columns = 2 * n_means if kind == "state_dependent" else n_means  # of the network's output
        self.fixed_log_std = log(std_init) if kind == "fixed" else None
        self.log_std = nn.Parameter(torch.zeros(n_means)) if kind == "learned" else None
        if kind != "fixed":
            self.compute_log_std = (
                StdAboveMinimum(std_init, std_min) if std_max is None else StdInRange(std_init, std_min, std_max)
            )

    def forward(self, outputs: Tensor) -> Tensor:
        widths = (self.n_means, self.n_columns - self.n_means, outputs.shape[-1] - self.n_columns)
        mean, number, rest = outputs.split(widths, -1)
        mean = self.bound_means(mean)
        if self.fixed_log_std is not None:
            return torch.cat((mean, torch.full_like(mean, self.fixed_log_std), rest), -1)
        if self.log_std is not None:
            number = self.log_std.expand_as(mean)
        return torch.cat((mean, self.compute_log_std(number), rest), -1)

    def bound_means(self, mean: Any, xp: Any = torch) -> Any:
        """Return the means, given their columns of the network's output, by functions of the library `xp`."""
        return mean

    def differentiate(self, outputs: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient of the network's outputs for that of the result, if the std is state dependent.

        Args:
            outputs: The outputs of the network [..., n_columns + rest].
            gradient: The gradient of the result, of the same shape.
        """
        columns = slice(self.n_means, self.n_columns)
        result = gradient.clone()
        result[..., columns] *= self.compute_log_std.differentiate(outputs[..., columns])
        return result

    def numpy(self) -> NumpyFunction:
        parameter = None if self.log_std is None else self.log_std.detach().numpy()

        def forward(outputs: np.ndarray) -> np.ndarray:
            mean, rest = self.bound_means(outputs[:, : self.n_means], np), outputs[:, self.n_columns :]
            if self.fixed_log_std is not None:
                return np.concatenate((mean, np.full_like(mean, self.fixed_log_std), rest), -1)
            number = outputs[:, self.n_means : self.n_columns] if parameter is None else parameter
            log_std = np.broadcast_to(self.compute_log_std(number, np), mean.shape)
            return np.concatenate((mean, log_std, rest), -1)

        return forward


class BoundedMeans(StdHead):
    """The means of a deterministic policy, bounded to (-1, 1) by tanh, with a fixed std of exploration (TD3)."""

    def __init__(self, n_means: int, std: float):
        super().__init__(n_means, "fixed", std, std_min=0.0)

    def bound_means(self, mean: Any, xp: Any = torch) -> Any:
        return xp.tanh(mean)


# Bounds of log alpha where it is used. A target entropy that no policy reaches would otherwise increase it without
# limit. The learned value itself is not bounded, so its gradient brings it back into the bounds.
LOG_ALPHA_BOUNDS = (-20.0, 5.0)


class Temperature(nn.Module):
    """Entropy temperatures alpha, stored as their logarithms, which are learned if `trainable`."""

    def __init__(self, count: int, log_alpha: float, trainable: bool):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((count,), log_alpha), requires_grad=trainable)

    def alpha(self) -> Tensor:
        """Return the temperatures [count], without gradient."""
        return self.log_alpha.detach().clamp(*LOG_ALPHA_BOUNDS).exp()
