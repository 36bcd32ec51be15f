"""Fully connected layers, also noisy ones: in torch for learning, in numpy on views of their parameters for acting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.constraints import limit_spectral_norm
from algorithm.networks.fast_products import Linear, linear
from algorithm.networks.flat_parameters import flatten_tensors
from algorithm.networks.normalization import (
    Gradients,
    RowWeights,
    can_fuse,
    check_norm,
    find_batch_norms,
    make_norm,
    run_fused,
)
from algorithm.networks.numpy_forms import NumpyFunction, make_numpy_chain, make_numpy_linear

MAX_SIZE = 2**31 - 1


class Relu(nn.Module):
    """A ReLU in the memory of its inputs, which nothing else reads; also as a layer of a fused operation."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(x)

    def numpy(self) -> NumpyFunction:
        """Return `forward` in numpy."""
        return lambda x: np.maximum(x, 0, out=x)

    def run(self, x: Tensor, rows: RowWeights | None) -> tuple[Tensor, Any]:
        """Return `forward`, and what `differentiate` needs; see FusedLayer."""
        y = x.relu_()
        return y, y

    def differentiate(self, gradient: Tensor, saved: Any, needs_x: bool, needs_parameters: bool) -> Gradients:
        """Return the gradient of the inputs; see FusedLayer."""
        return torch.ops.aten.threshold_backward.default(gradient, saved, 0), []


class Tanh(nn.Module):
    """A tanh in the memory of its inputs, which nothing else reads."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh_(x)

    def numpy(self) -> NumpyFunction:
        """Return `forward` in numpy."""
        return lambda x: np.tanh(x, out=x)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": Relu, "tanh": Tanh}


class Mlp:
    """A factory of fully connected hidden layers, an activation after each: `Mlp(64, 64)`.

    The weights start orthogonal with gain sqrt(2), the biases 0. [..., F] -> [..., units of the last layer].

    Args:
        units: Units of each layer, at least one layer.
        activation: "relu" (default) or "tanh".
        norm: Normalization of the input and of the result of each activation: "batch", "batch_renorm" (CrossQ),
            "layer", "rms", or None for none (default).
        spectral_norm: Whether the weights of each layer are divided by their spectral norm if it is above 1, after
            every step of the optimizer (Gouk et al. 2021, arXiv 1804.04368); False by default.

    Raises:
        ValueError: No layer, a size below 1, an unknown activation, or an unknown norm.
    """

    def __init__(self, *units: int, activation: str = "relu", norm: str | None = None, spectral_norm: bool = False):
        check_layers("Mlp", units, activation)
        check_norm("Mlp", norm)
        self.units = units
        self.activation = activation
        self.norm, self.spectral_norm = norm, spectral_norm

    def __call__(self, size: int) -> LayerStack:
        sizes = (size, *self.units)
        layers = [make_orthogonal_linear(inputs, units, gain=2**0.5) for inputs, units in pairwise(sizes)]
        if self.spectral_norm:
            for layer in layers:
                limit_spectral_norm(layer)
        norms = [make_norm(self.norm, size) for size in sizes] if self.norm else []
        parts: list[nn.Module] = norms[:1]
        for index, layer in enumerate(layers, 1):
            parts += [layer, ACTIVATIONS[self.activation](), *norms[index : index + 1]]
        return LayerStack(parts, self.units[-1], layers=nn.ModuleList(layers), norms=nn.ModuleList(norms))


class LayerStack(nn.Module):
    """Layers that follow each other: [..., F] -> [..., size]; also as a layer of a fused operation (see FusedLayer).

    With batch norms, and without other activations than ReLU, the layers are one operation where `can_fuse` permits it.

    Args:
        parts: The layers, norms and activations in their order.
        size: Size of the outputs.
        modules: The parts that have parameters, by name, in the order of their parameters in checkpoints.
    """

    def __init__(self, parts: Sequence[Any], size: int, **modules: nn.Module | None):
        super().__init__()
        self.size, self.parts = size, list(parts)
        for name, module in modules.items():
            self.add_module(name, module)
        self.fuses = bool(find_batch_norms(parts)) and all(hasattr(part, "differentiate") for part in parts)
        self._fused_parameters = list(chain.from_iterable(part.parameters() for part in parts))

    def forward(self, x: Tensor) -> Tensor:
        if self.fuses and can_fuse(x, self._fused_parameters):
            return run_fused(x, self, self._fused_parameters)
        for part in self.parts:
            x = part.forward(x)  # faster than part(x), which checks for hooks
        return x

    def numpy(self) -> NumpyFunction | None:
        """Return `forward` in numpy, on views of the parameters and running statistics."""
        return make_numpy_chain(*self.parts)

    def run(self, x: Tensor, rows: RowWeights | None) -> tuple[Tensor, Any]:
        """Return `forward` for rows x [n, F], and what `differentiate` needs; see FusedLayer."""
        saved = []
        for part in self.parts:
            x, part_saved = part.run(x, rows)
            saved.append(part_saved)
        return x, saved

    def differentiate(self, gradient: Tensor, saved: Any, needs_x: bool, needs_parameters: bool) -> Gradients:
        """Return the gradients of x and of the parameters, in the order of the parts; see FusedLayer."""
        gradients: list[Tensor | None] = []
        result: Tensor | None = gradient
        for index in reversed(range(len(self.parts))):
            result, part_gradients = self.parts[index].differentiate(
                result, saved[index], needs_x=index > 0 or needs_x, needs_parameters=needs_parameters
            )
            gradients[:0] = part_gradients
        return result, gradients


def check_activation(name: str) -> str:
    """Return the name of an activation. Raises ValueError for an unknown one."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation {name!r} is unknown; there are {', '.join(ACTIVATIONS)}")
    return name


def check_layers(factory: str, units: tuple[int, ...], activation: str) -> None:
    """Check the arguments of the factory named `factory`. Raises ValueError if no layers can be made of them."""
    check_activation(activation)
    if not units:
        raise ValueError(f"{factory} needs the units of at least one layer, as in {factory}(64, 64)")
    check_sizes(factory, *units)


def check_sizes(factory: str, *sizes: object) -> None:
    """Check sizes of the factory named `factory`. Raises ValueError unless all are integers from 1 to 2**31 - 1."""
    for size in sizes:
        if not isinstance(size, int | np.integer) or isinstance(size, bool) or not 1 <= size <= MAX_SIZE:
            raise ValueError(
                f"{factory} has the size {size!r}; it must be an integer, at least 1 and at most {MAX_SIZE:,}"
            )


def make_orthogonal_linear(inputs: int, outputs: int, gain: float) -> Linear:
    """Return a linear layer with orthogonal weights times `gain`, and biases 0."""
    layer = Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class NoisyMlp:
    """A factory of noisy hidden layers for exploration, in place of Mlp: `NoisyMlp(64, 64)`.

    The noise is factorised Gaussian (Fortunato et al. 2018, arXiv 1706.10295), drawn again after every update.
    Evaluation uses the means of the weights. [..., F] -> [..., units of the last layer].

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
        parts = [part for layer in layers for part in (layer, ACTIVATIONS[self.activation]())]
        return LayerStack(parts, self.units[-1], layers=nn.ModuleList(layers))


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
            return linear(x, mean.weight, mean.bias)
        output_noise, input_noise = self.noise.split([sigma.out_features, sigma.in_features])
        weight = torch.addcmul(mean.weight, sigma.weight, torch.outer(output_noise, input_noise))
        return linear(x, weight, torch.addcmul(mean.bias, sigma.bias, output_noise))

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
