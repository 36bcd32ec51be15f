"""Hidden layers: fully connected, noisy and residual ones, scaling to the unit sphere, and chains of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.constraints import RowNorm, limit_spectral_norm, set_constraint
from algorithm.networks.fast_products import Linear, linear
from algorithm.networks.flat_parameters import flatten_tensors
from algorithm.networks.modules import LayersFactory, NumpyFunction, build_module, make_numpy_chain, make_numpy_linear
from algorithm.networks.normalization import (
    FusedLayer,
    Gradients,
    RmsNorm,
    RowWeights,
    can_fuse,
    check_norm,
    find_batch_norms,
    make_norm,
    run_fused,
)

MAX_SIZE = 2**31 - 1


class Relu(FusedLayer):
    """A ReLU in the memory of its inputs, which nothing else reads."""

    def numpy(self) -> NumpyFunction:
        return lambda x: np.maximum(x, 0, out=x)

    def run(self, x: Tensor, rows: RowWeights | None) -> tuple[Tensor, Any]:
        y = torch.relu_(x)
        return y, y

    def differentiate(self, gradient: Tensor, saved: Any, needs_x: bool, needs_parameters: bool) -> Gradients:
        return torch.ops.aten.threshold_backward.default(gradient, saved, 0), []


class Tanh(nn.Module):
    """A tanh in the memory of its inputs, which nothing else reads."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh_(x)

    def numpy(self) -> NumpyFunction:
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


class LayerStack(FusedLayer):
    """Layers that follow each other: [..., F] -> [..., size].

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
        return make_numpy_chain(*self.parts)

    def run(self, x: Tensor, rows: RowWeights | None) -> tuple[Tensor, Any]:
        saved = []
        for part in self.parts:
            x, part_saved = part.run(x, rows)
            saved.append(part_saved)
        return x, saved

    def differentiate(self, gradient: Tensor, saved: Any, needs_x: bool, needs_parameters: bool) -> Gradients:
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


def make_orthogonal_linear(inputs: int, outputs: int, gain: float, *, bias: bool = True) -> Linear:
    """Return a linear layer with orthogonal weights times `gain`, and biases 0."""
    layer = Linear(inputs, outputs, bias=bias)
    nn.init.orthogonal_(layer.weight, gain)
    if bias:
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


@dataclass(frozen=True)
class Residual:
    """A factory of residual layers, as body, policy or critic: `Residual(128, blocks=2)`. [..., F] -> [..., width].

    A linear layer maps the input to `width` features. After it are the blocks x + relu(norm(W2 relu(norm(W1 x)))) and,
    unless `norm` is None, RMSNorm (FlashSAC, arXiv 2604.04539). With `batch` and `batch_renorm` the input is
    normalized, too; otherwise the encoder should normalize it, as `Vector(normalize=True)` does. The initial weights
    are orthogonal.

    Args:
        width: Features between blocks, at least 1.
        blocks: Number of blocks, at least 1; 2 by default.
        expansion: Hidden features of a block, in multiples of `width`; 4 by default.
        norm: "batch" (default), "batch_renorm", "layer", "rms", or None for none. With a norm the linear layers have no
            biases.
        unit_weights: Whether the weights of each unit are scaled to length 1, and scale and shift of each norm together
            to length sqrt(features), after every step of the optimizer; False by default.
        spectral_norm: Whether the weights of each linear layer keep a spectral norm of at most 1, as those of Mlp;
            False by default.

    Raises:
        ValueError: A size below 1, an unknown norm, unit weights without a norm, or with a spectral norm.
    """

    width: int
    blocks: int = 2
    _: KW_ONLY
    expansion: int = 4
    norm: str | None = "batch"
    unit_weights: bool = False
    spectral_norm: bool = False

    def __post_init__(self) -> None:
        check_sizes("Residual", self.width, self.blocks, self.expansion)
        check_norm("Residual", self.norm)
        if self.unit_weights and self.norm is None:
            raise ValueError("Residual has unit_weights without a norm, which sets the scale of features: give a norm")
        if self.unit_weights and self.spectral_norm:
            raise ValueError("Residual has unit_weights and spectral_norm: give one or the other")

    def __call__(self, size: int) -> LayerStack:
        input_norm = self._make_norm(size) if self.norm in ("batch", "batch_renorm") else None
        linear = self._make_linear(size, self.width, gain=1.0)
        blocks = [self._make_block() for _ in range(self.blocks)]
        output_norm = RmsNorm(self.width, unit_weights=self.unit_weights) if self.norm else None
        return LayerStack(
            [part for part in (input_norm, linear, *blocks, output_norm) if part],
            self.width,
            input_norm=input_norm,
            input=linear,
            blocks=nn.ModuleList(blocks),
            output_norm=output_norm,
        )

    def _make_block(self) -> ResidualBlock:
        hidden = self.width * self.expansion
        expand, expand_norm = self._make_linear(self.width, hidden, gain=2**0.5), self._make_norm(hidden)
        reduce, reduce_norm = self._make_linear(hidden, self.width, gain=2**0.5), self._make_norm(self.width)
        return ResidualBlock(
            [part for part in (expand, expand_norm, Relu(), reduce, reduce_norm, Relu()) if part],
            self.width,
            expand=expand,
            expand_norm=expand_norm,
            reduce=reduce,
            reduce_norm=reduce_norm,
        )

    def _make_linear(self, inputs: int, outputs: int, gain: float) -> Linear:
        """Return a linear layer with orthogonal weights times `gain`, and the constraint of the settings."""
        layer = make_orthogonal_linear(inputs, outputs, gain, bias=self.norm is None)
        if self.unit_weights:
            set_constraint(layer, RowNorm(outputs, 1.0))
        elif self.spectral_norm:
            limit_spectral_norm(layer)
        return layer

    def _make_norm(self, size: int) -> Any:
        return make_norm(self.norm, size, unit_weights=self.unit_weights) if self.norm else None


class ResidualBlock(LayerStack):
    """The inputs plus the outputs of layers that follow each other: [..., size] -> [..., size]."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)

    def numpy(self) -> NumpyFunction | None:
        compute = super().numpy()
        return compute and (lambda x: x + compute(x))

    def run(self, x: Tensor, rows: RowWeights | None) -> tuple[Tensor, Any]:
        y, saved = super().run(x, rows)
        return x + y, saved

    def differentiate(self, gradient: Tensor, saved: Any, needs_x: bool, needs_parameters: bool) -> Gradients:
        x_gradient, gradients = super().differentiate(gradient, saved, needs_x, needs_parameters)
        return None if x_gradient is None else x_gradient.add_(gradient), gradients


@dataclass(frozen=True)
class UnitSphere:
    """A factory of layers without parameters: append a constant, then scale each row to norm 1. [..., F] -> [..., F+1].

    With the constant, the result still determines the length of the row (Lee et al. 2025, arXiv 2502.15280, SimbaV2).

    Args:
        shift: The constant, above 0; 3 by default, the paper's value.

    Raises:
        ValueError: A `shift` that is not above 0.
    """

    shift: float = 3.0

    def __post_init__(self) -> None:
        if not self.shift > 0:
            raise ValueError(f"UnitSphere's shift is {self.shift}; it must be above 0")

    def __call__(self, size: int) -> UnitSphereLayers:
        return UnitSphereLayers(size, self.shift)


class UnitSphereLayers(nn.Module):
    """The layers of a UnitSphere: [..., F] -> [..., F+1]."""

    def __init__(self, inputs: int, shift: float):
        super().__init__()
        self.size, self.shift = inputs + 1, shift

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat((x, 0 * x[..., :1] + self.shift), -1)
        return x / x.square().sum(-1, keepdim=True).sqrt()

    def numpy(self) -> NumpyFunction:
        def forward(x: np.ndarray) -> np.ndarray:
            x = np.concatenate((x, np.full_like(x[..., :1], self.shift)), -1)
            return x / np.sqrt(np.square(x).sum(-1, keepdims=True))

        return forward


class Chain:
    """A factory of layers that follow each other: `Chain(UnitSphere(), Residual(128))`.

    Args:
        factories: Factories of layers, at least one.

    Raises:
        ValueError: No factory.
    """

    def __init__(self, *factories: LayersFactory):
        if not factories:
            raise ValueError("Chain needs at least one factory of layers, as in Chain(UnitSphere(), Residual(128))")
        self.factories = factories

    def __call__(self, size: int) -> ChainedLayers:
        layers: list[Any] = []
        for factory in self.factories:
            layers.append(build_module(factory, size, "forward"))
            size = layers[-1].size
        return ChainedLayers(layers, size)


class ChainedLayers(nn.Sequential):
    """The layers of a Chain: [..., F] -> [..., size]."""

    def __init__(self, layers: list[nn.Module], size: int):
        super().__init__(*layers)
        self.size = size

    def numpy(self) -> NumpyFunction | None:
        return make_numpy_chain(*self)
