"""Noisy layers (Fortunato et al. 2018, arXiv 1706.10295): weights with noise of a learned size."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.flat_parameters import flatten_tensors
from algorithm.networks.mlp import LayerStack, NumpyFunction, check_layers, make_numpy_linear


class NoisyMlp:
    """A factory of noisy hidden layers for exploration, in place of Mlp: `NoisyMlp(64, 64)`.

    The noise is factorised Gaussian (Fortunato et al. 2018), drawn again after every update. Evaluation uses the
    means of the weights. [..., F] -> [..., units of the last layer].

    Args:
        units: Units of each layer, at least one layer.
        std: Initial size of the noise relative to the weights, sigma_0 in the paper; above 0. The initial noise of a
            unit is about `std` times its initial output. Default: 0.5, the paper's value.
        activation: "relu" (default) or "tanh".

    Raises:
        ValueError: No layer, a size below 1, an unknown activation, or a `std` that is not above 0.
    """

    def __init__(self, *units: int, std: float = 0.5, activation: str = "relu"):
        check_layers("NoisyMlp", units, activation)
        if not std > 0:
            raise ValueError(f"NoisyMlp's std is {std}; it must be above 0")
        self.units, self.std, self.activation = units, std, activation

    def __call__(self, size: int) -> LayerStack:
        layers = [NoisyLinear(inputs, units, self.std) for inputs, units in pairwise((size, *self.units))]
        return LayerStack(layers, NoisyLinear.numpy, self.units[-1], self.activation)


class NoisyLinear(nn.Module):
    """A linear layer with factorised noise (Eq. 9-11): y = (W + S * e_out e_in^T) x + b + s * e_out.

    W and b are the parameters of `mean`, S and s the parameters of `sigma`; `noise` [outputs + inputs] is (e_out,
    e_in). The noise is 0 until a Noise object draws it. In evaluation mode (`eval()`) the layer is `mean` alone.
    """

    def __init__(self, inputs: int, outputs: int, std: float):
        super().__init__()
        bound = inputs**-0.5
        self.mean, self.sigma = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)
        for parameter in self.mean.parameters():
            nn.init.uniform_(parameter, -bound, bound)
        for parameter in self.sigma.parameters():
            nn.init.constant_(parameter, std * bound)
        self.noise = torch.zeros(outputs + inputs)

    def forward(self, x: Tensor) -> Tensor:
        mean, sigma = self.mean, self.sigma
        if not self.training:
            return nn.functional.linear(x, mean.weight, mean.bias)
        output_noise, input_noise = self.noise.split([sigma.out_features, sigma.in_features])
        weight = torch.addcmul(mean.weight, sigma.weight, torch.outer(output_noise, input_noise))
        return nn.functional.linear(x, weight, torch.addcmul(mean.bias, sigma.bias, output_noise))

    def numpy(self) -> NumpyFunction:
        """Return `forward` in numpy, on views: two products of a few rows instead of a weight matrix per update."""
        mean, sigma = make_numpy_linear(self.mean), make_numpy_linear(self.sigma)
        output_noise, input_noise = np.split(self.noise.numpy(), [self.sigma.out_features])
        return lambda x: mean(x) + sigma(x * input_noise) * output_noise if self.training else mean(x)


class Noise:
    """The noise of all noisy layers in some modules, in one flat float32 tensor `values`.

    The noise of each layer is independent. It is neither learned nor averaged, so it belongs to no network's parameters
    or buffers. It is drawn from torch's default generator of the device. Without noisy layers nothing is drawn.
    """

    def __init__(self, modules: Iterable[nn.Module], device: str | torch.device = "cpu"):
        self._layers = collect_noise(modules)
        self.values = flatten_tensors(self._layers, torch.float32, device)

    def resample(self) -> None:
        """Draw f(e) = sign(e) sqrt(|e|) with standard normal e for every layer."""
        if self._layers:
            scale_noise(self.values.normal_())


def collect_noise(modules: Iterable[nn.Module]) -> list[Tensor]:
    """Return the noise of each noisy layer in some modules."""
    return [layer.noise for module in modules for layer in module.modules() if isinstance(layer, NoisyLinear)]


def scale_noise(noise: Tensor) -> Tensor:
    """Apply f(e) = sign(e) sqrt(|e|) in place."""
    return noise.copy_(noise.sign() * noise.abs().sqrt())
