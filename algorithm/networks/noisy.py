"""Layers whose weights are noisy while they learn, and learn how noisy (Fortunato et al. 2018, arXiv 1706.10295)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.flat_parameters import flatten_tensors
from algorithm.networks.mlp import LayerStack, check_layers, make_numpy_linear


class NoisyMlp:
    """Factory of noisy hidden layers: `NoisyMlp(64, 64)` in the place of `Mlp(64, 64)`.

    `std` is what the paper calls sigma_0: the first noise of a unit is about as large as `std` times its first output.
    """

    def __init__(self, *units: int, std: float = 0.5, activation: str = "relu"):
        check_layers("NoisyMlp", units, activation)
        if not std > 0:
            raise ValueError(f"NoisyMlp's std is {std}; it must be above 0")
        self.units, self.std, self.activation = units, std, activation

    def __call__(self, size: int) -> nn.Module:
        layers = [NoisyLinear(inputs, units, self.std) for inputs, units in pairwise((size, *self.units))]
        return LayerStack(layers, NoisyLinear.numpy, self.units[-1], self.activation)


class NoisyLinear(nn.Module):
    """y = (mean + spread * outer(e_out, e_in)) x + mean of bias + spread of bias * e_out (Eq. 9-11).

    `noise` [outputs + inputs] is (e_out, e_in). It is 0 until a `Noise` draws it, and nothing of it, `mean` alone,
    is seen in evaluation (`eval()`).
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

    def numpy(self) -> Callable[[np.ndarray], np.ndarray]:
        """The same in numpy, on views: two products of a few rows instead of new weights after every update."""
        mean, sigma = make_numpy_linear(self.mean), make_numpy_linear(self.sigma)
        output_noise, input_noise = np.split(self.noise.numpy(), [self.sigma.out_features])
        return lambda x: mean(x) + sigma(x * input_noise) * output_noise if self.training else mean(x)


class Noise:
    """The noise of all noisy layers in `modules`, one flat tensor `numbers`: independent in each, drawn by `renew`.

    It is neither learned nor averaged, so that it belongs to no network's parameters or buffers. It comes from torch's
    generator of the process (or of the device). Where there are no noisy layers there is nothing to draw.
    """

    def __init__(self, modules: Iterable[nn.Module], device: str | torch.device = "cpu"):
        self._layers = collect_noise(modules)
        self.values = flatten_tensors(self._layers, torch.float32, device)

    def resample(self) -> None:
        """Draw f(e), e normal, f(e) = sign(e) sqrt(|e|)."""
        if self._layers:
            scale_noise(self.values.normal_())


def collect_noise(modules: Iterable[nn.Module]) -> list[Tensor]:
    """The noise of each noisy layer."""
    return [layer.noise for module in modules for layer in module.modules() if isinstance(layer, NoisyLinear)]


def scale_noise(noise: Tensor) -> Tensor:
    """f(e) = sign(e) sqrt(|e|), in place."""
    return noise.copy_(noise.sign() * noise.abs().sqrt())
