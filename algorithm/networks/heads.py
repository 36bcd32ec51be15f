"""The outputs of a network: statistics of the policy, values of the critic, standard deviations, advantages."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.blueprint import BranchFactory, build_module
from algorithm.networks.linear import NumpyFunction, linear_by_output, make_numpy_form
from algorithm.networks.mlp import Mlp, make_numpy_linear, run_with_head

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
        self.sizes = [head.size for head in heads]
        self.linear = nn.Linear(inputs, sum(self.sizes))
        nn.init.zeros_(self.linear.bias)
        with torch.no_grad():
            for weight, head in zip(self.linear.weight.split(self.sizes), heads, strict=True):
                weight.copy_(nn.init.orthogonal_(torch.empty_like(weight), head.gain))

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        """Return each output: [..., F] -> [..., size]."""
        return self.compute_concatenated(features).split(self.sizes, -1)

    def compute_hidden(self, features: Tensor) -> list[Tensor]:
        """Return the inputs of the outputs: the features."""
        return [features]

    def compute_outputs(self, hidden: list[Tensor]) -> Tensor:
        """Return all outputs concatenated, from the result of `compute_hidden`."""
        return self.compute_concatenated(hidden[0])

    def compute_concatenated(self, features: Tensor) -> Tensor:
        """Return all outputs concatenated: [..., F] -> [..., sum of sizes]."""
        return linear_by_output(features, self.linear.weight, self.linear.bias)

    def numpy(self) -> NumpyFunction:
        """Return the first output in numpy, on views of the parameters."""
        return make_numpy_linear(self.linear, self.sizes[0])


class SeparateHeads(nn.Module):
    """Several outputs, each with separate layers before it, or with no layers if its factory is None."""

    def __init__(self, inputs: int, *branches: tuple[BranchFactory | None, HeadSpec]):
        super().__init__()
        self.layers: Any = nn.ModuleList(
            build_module(layers, inputs, "forward") if layers else nn.Identity() for layers, _ in branches
        )
        self.heads: Any = nn.ModuleList(
            SharedHeads(getattr(layers, "size", inputs), head)
            for layers, (_, head) in zip(self.layers, branches, strict=True)
        )

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        """Return each output: [..., F] -> [..., size]."""
        return tuple(self._apply_heads(self.compute_hidden(features)))

    def compute_concatenated(self, features: Tensor) -> Tensor:
        """Return all outputs concatenated: [..., F] -> [..., sum of sizes]."""
        outputs = [
            run_with_head(layers, head.linear, features, by_output=True)
            for layers, head in zip(self.layers, self.heads, strict=True)
        ]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)

    def compute_hidden(self, features: Tensor) -> list[Tensor]:
        """Return the input of each output: the features after its layers."""
        return [layers(features) for layers in self.layers]

    def compute_outputs(self, hidden: list[Tensor]) -> Tensor:
        """Return all outputs concatenated, from the result of `compute_hidden`."""
        outputs = self._apply_heads(hidden)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)

    def _apply_heads(self, hidden: list[Tensor]) -> list[Tensor]:
        return [head.compute_concatenated(head_input) for head, head_input in zip(self.heads, hidden, strict=True)]

    def numpy(self) -> NumpyFunction | None:
        """Return the first output in numpy, on views of the parameters; None if its layers have no numpy form."""
        layers, head = self.layers[0], self.heads[0].numpy()
        if isinstance(layers, nn.Identity):
            return head
        hidden = make_numpy_form(layers)
        return None if hidden is None else lambda x: head(hidden(x))


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
        return self.head.compute_concatenated(self.layers(inputs)).squeeze(-1)


class StdHead(nn.Module):
    """The standard deviations of continuous actions: inserts log std after the means of the network's output.

    The network's output [..., n_columns + rest] begins with the means, followed by a column per mean if the std is
    state dependent; the result is [..., means, log std, rest]. A std that is not fixed is std_min + exp(value): it
    starts at `std_init` and stays above `std_min`.

    Args:
        n_means: Number of means.
        kind: "fixed": `std_init`, without `std_min`; "learned": a parameter per mean; "state_dependent": a column of
            the network's output per mean.
        std_init: Initial std.
        std_min: Lower bound of the std, below `std_init`.
    """

    def __init__(self, n_means: int, kind: StdKind, std_init: float, std_min: float):
        super().__init__()
        self.n_means = n_means
        self.n_columns = 2 * n_means if kind == "state_dependent" else n_means  # of the network's output
        self.is_fixed = kind == "fixed"
        self.std_min = 0.0 if self.is_fixed else std_min
        self.initial_log_std = log(std_init - self.std_min)
        self.log_std = nn.Parameter(torch.zeros(n_means)) if kind == "learned" else None

    def forward(self, outputs: Tensor) -> Tensor:
        widths = (self.n_means, self.n_columns - self.n_means, outputs.shape[-1] - self.n_columns)
        mean, log_std_shift, rest = outputs.split(widths, -1)
        if self.is_fixed:
            return torch.cat((mean, torch.full_like(mean, self.initial_log_std), rest), -1)
        if self.log_std is not None:
            log_std_shift = self.log_std.expand_as(mean)
        std_above_min = (self.initial_log_std + log_std_shift).clamp(*LOG_STD_BOUNDS).exp()
        return torch.cat((mean, (self.std_min + std_above_min).log(), rest), -1)

    def numpy(self) -> NumpyFunction:
        """Return `forward` in numpy, on a view of the parameters."""
        parameter = None if self.log_std is None else self.log_std.detach().numpy()

        def forward(outputs: np.ndarray) -> np.ndarray:
            mean, rest = outputs[:, : self.n_means], outputs[:, self.n_columns :]
            if self.is_fixed:
                return np.concatenate((mean, np.full_like(mean, self.initial_log_std), rest), -1)
            log_std_shift = (
                outputs[:, self.n_means : self.n_columns]
                if parameter is None
                else np.broadcast_to(parameter, mean.shape)
            )
            std_above_min = np.exp(
                np.minimum(np.maximum(self.initial_log_std + log_std_shift, LOG_STD_BOUNDS[0]), LOG_STD_BOUNDS[1])
            )
            return np.concatenate((mean, np.log(self.std_min + std_above_min), rest), -1)

        return forward
