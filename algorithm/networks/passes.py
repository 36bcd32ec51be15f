"""Passes through networks whose losses are known by their gradients with respect to the outputs.

A pass is recorded by autograd, or its gradients are computed by hand. The latter is for linear layers with ReLUs, in
float32 on the CPU: autograd would only repeat a fixed sequence of operations. ReLUs and their gradients are computed in
place, and the gradients of parameters are added to those that exist. All numbers are those of autograd up to rounding.
`torch.inference_mode` saves further time.

`use_manual_passes` is called once parameters and gradients are in place. It has an effect on the networks that have a
method of this name. The loss of a pass is a scalar tensor in both cases.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from algorithm.losses import surrogate_loss
from algorithm.networks import fast_products
from algorithm.networks.fast_products import Linear, multiply_by_output
from algorithm.networks.heads import StdHead
from algorithm.networks.layers import LayerStack, Relu

# A pass leaves out rows without gradient if at most this fraction of the rows remains, since copying these takes time.
MAX_SELECTED = 0.75
# oneDNN computes a product with this many multiplications: less than in `fast_products`, since there is less to check.
MIN_MULTIPLICATIONS = 1_200_000
# The same for the gradient of the inputs of the first layer: those are few, for which MKL takes up to twice as long.
MIN_INPUT_MULTIPLICATIONS = 600_000


class Pass(ABC):
    """A pass of rows through a network, which ends with the gradients of its loss or of its inputs.

    Attributes:
        outputs: The outputs [..., S], without gradient.
    """

    outputs: Tensor

    @abstractmethod
    def make_loss(self, direction: Tensor) -> Tensor:
        """Return a scalar whose gradient with respect to the outputs is -`direction`; see `surrogate_loss`.

        Args:
            direction: Of all outputs or, for a policy, of those of the first rows; the others then have no gradient.
        """

    @abstractmethod
    def differentiate(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the inputs, given that of the outputs."""


class AutogradPass(Pass):
    """A pass of which autograd has recorded the operations.

    Args:
        outputs: The outputs [..., S] with gradient.
        inputs: The inputs, if their gradient is needed.
        further_outputs: Outputs of further rows, without gradient.
    """

    def __init__(self, outputs: Tensor, inputs: Tensor | None = None, further_outputs: Tensor | None = None):
        self._with_gradient, self._inputs, self.outputs = outputs, inputs, outputs.detach()
        if further_outputs is not None:
            self.outputs = torch.cat((self.outputs, further_outputs))

    def make_loss(self, direction: Tensor) -> Tensor:
        return surrogate_loss(direction, self._with_gradient)

    def differentiate(self, gradient: Tensor) -> Tensor:
        assert self._inputs is not None
        return torch.autograd.grad(self._with_gradient, self._inputs, gradient)[0]


def use_manual_passes(networks: Iterable[nn.Module]) -> None:
    """Compute gradients by hand from now on, in the passes of all modules of some networks that support it.

    Args:
        networks: The networks, whose precision is set, and whose parameters and gradients stay in place.
    """
    modules: Iterable[Any] = (module for network in networks for module in network.modules())
    for module in modules:
        if hasattr(module, "use_manual_passes"):
            module.use_manual_passes()


class ManualPass(Pass):
    """A pass of the same rows through M stacks of layers, with gradients by hand.

    Args:
        stacks: The stacks.
        inputs: The inputs [..., F].
        shape: The shape of the outputs: [M, ..., *value_shape], or [..., S] for a single stack.
        std_head: The standard deviations of continuous actions, which depend on the state; None without them.
    """

    def __init__(
        self, stacks: Sequence[ManualStack], inputs: Tensor, shape: tuple[int, ...], std_head: StdHead | None = None
    ):
        self._stacks, self._shape, self._std_head = stacks, inputs.shape, std_head
        results = [stack.run(inputs.flatten(0, -2)) for stack in stacks]
        self._hidden = [hidden for hidden, _ in results]
        first, *others = (values for _, values in results)
        self._values = (torch.stack([first, *others]) if others else first).view(shape)  # a single one in its layout
        self.outputs = std_head(self._values) if std_head else self._values

    def make_loss(self, direction: Tensor) -> Tensor:
        gradient = self._convert(direction)

        def add_gradients(scale: Tensor) -> None:
            for stack, hidden, rows in self._split(gradient * -scale):
                stack.add_gradients(hidden, rows)

        with torch.inference_mode(False):
            loss = torch.zeros((), requires_grad=True)
        loss.register_hook(add_gradients)  # called by its backward pass, with its gradient
        return loss

    def differentiate(self, gradient: Tensor) -> Tensor:
        parts = [stack.differentiate(hidden, rows) for stack, hidden, rows in self._split(self._convert(gradient))]
        return reduce(torch.add, parts).view(self._shape)

    def _convert(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the values of the stacks, given that of the outputs."""
        return self._std_head.differentiate(self._values[: len(gradient)], gradient) if self._std_head else gradient

    def _split(self, gradient: Tensor) -> Iterator[tuple[ManualStack, list[Tensor], Tensor]]:
        """Iterate over the stacks, each with the inputs of its layers and the gradient of its values [n, outputs]."""
        rows = gradient.reshape(len(self._stacks), -1, self._stacks[0].n_outputs)
        return zip(self._stacks, self._hidden, rows, strict=True)


class ManualStack:
    """Linear layers with a ReLU after each but the last: [n, F] -> [n, outputs].

    Args:
        layers: The layers. If they are trained, the gradients of their parameters exist and stay in place.
        by_output: Whether the outputs have the layout of `linear_by_output`.
    """

    def __init__(self, layers: Sequence[nn.Linear], *, by_output: bool = False):
        self.layers, self.by_output = [_Layer(layer) for layer in layers], by_output
        self.n_outputs = layers[-1].out_features

    def run(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the inputs of each layer for x [n, F], and the outputs [n, outputs]."""
        hidden = [x]
        *layers, head = self.layers
        for layer in layers:
            hidden.append(layer.activate(hidden[-1]))
        if self.by_output:
            return hidden, multiply_by_output(hidden[-1], head.weight, head.bias)
        return hidden, torch.addmm(head.bias, hidden[-1], head.transposed)

    def add_gradients(self, hidden: list[Tensor], gradient: Tensor) -> None:
        """Add the gradients of the parameters to those that exist, given that of the first n outputs [n, outputs]."""
        if gradient.shape[0] < hidden[0].shape[0]:
            hidden = [x[: gradient.shape[0]] for x in hidden]
        for layer, x, g in self._backpropagate(hidden, gradient):
            layer.add_gradients(x, g)

    def differentiate(self, hidden: list[Tensor], gradient: Tensor) -> Tensor:
        """Return the gradient of the inputs [n, F], given that of the outputs [n, outputs]."""
        rows = gradient.any(-1).nonzero().squeeze(-1)
        is_selected = rows.shape[0] <= MAX_SELECTED * gradient.shape[0]
        if is_selected:
            hidden = [hidden[0], *(x.index_select(0, rows) for x in hidden[1:])]  # the inputs are not read
            gradient = gradient.index_select(0, rows)
        inputs = hidden[0]
        ((_, _, gradient),) = deque(self._backpropagate(hidden, gradient), maxlen=1)  # of the first layer
        result = self.layers[0].differentiate(gradient)
        return torch.zeros_like(inputs).index_copy_(0, rows, result) if is_selected else result

    def _backpropagate(self, hidden: list[Tensor], gradient: Tensor) -> Iterator[tuple[_Layer, Tensor, Tensor]]:
        """Iterate over the layers, the last one first: each with its inputs, and the gradient of its outputs.

        The inputs are dropped from `hidden` on the way, so that the next products use memory that is in the cache.
        """
        for layer in reversed(self.layers):
            x = hidden.pop()
            yield layer, x, gradient
            if hidden:
                product = layer.multiply_gradient(gradient)
                gradient = torch.ops.aten.threshold_backward.grad_input(product, x, 0, grad_input=product)


class _Layer:
    """The tensors of a linear layer, and its products as in `fast_products`, but without the checks that take time."""

    def __init__(self, layer: nn.Linear):
        self.weight, self.bias = layer.weight.detach(), layer.bias.detach()
        self.transposed = self.weight.T
        self.weight_gradient, self.bias_gradient = layer.weight.grad, layer.bias.grad

    def activate(self, x: Tensor) -> Tensor:
        """Return relu(x W^T + b) for rows x [n, F]."""
        if self._uses_onednn(x):
            return fast_products.multiply_by_onednn(x, self.weight, self.bias, "relu")
        return torch.addmm(self.bias, x, self.transposed).relu_()

    def multiply_gradient(self, gradient: Tensor) -> Tensor:
        """Return g W, the gradient of the inputs [n, F], for that of the outputs [n, units]."""
        if self._uses_onednn(gradient):
            return fast_products.multiply_by_onednn(gradient, self.transposed)
        return torch.mm(gradient, self.weight)

    def differentiate(self, gradient: Tensor) -> Tensor:
        """Return `multiply_gradient`, with few inputs in the faster order of the factors."""
        if self._uses_onednn(gradient, MIN_INPUT_MULTIPLICATIONS):
            return fast_products.multiply_by_onednn(gradient, self.transposed)
        return fast_products.multiply_gradient(gradient, self.weight)

    def add_gradients(self, x: Tensor, gradient: Tensor) -> None:
        """Add the gradients g^T x and the sum of g, for inputs x [n, F] and the gradient g of the outputs."""
        assert self.weight_gradient is not None and self.bias_gradient is not None
        self.bias_gradient += gradient.sum(0)
        if self._uses_onednn(x):
            self.weight_gradient += fast_products.multiply_transposed(gradient, x, fast_products.multiply_by_onednn)
        elif fast_products.is_ordered_product(x.shape[0], *self.weight.shape):
            self.weight_gradient += fast_products.multiply_transposed(gradient, x, nn.functional.linear)
        else:
            self.weight_gradient.addmm_(gradient.T, x)

    def _uses_onednn(self, rows: Tensor, minimum: int = MIN_MULTIPLICATIONS) -> bool:
        return fast_products.USES_ONEDNN and rows.shape[0] * self.weight.numel() >= minimum


def make_manual_stacks(
    branches: Sequence[tuple[nn.Module, nn.Linear]], *, by_output: bool = False
) -> list[ManualStack]:
    """Return each of some branches as a `ManualStack`; none unless all are linear with ReLUs, in float32 on the CPU.

    None, too, for networks of which a learner has the gradient, but does not train all parameters.

    Args:
        branches: The layers before each head, an Identity for none, and the head.
        by_output: See ManualStack.
    """
    stacks = []
    for layers, head in branches:
        parts = layers.parts if isinstance(layers, LayerStack) else [] if isinstance(layers, nn.Identity) else [layers]
        parameters = (*layers.parameters(), *head.parameters())
        if (
            head.weight.device.type != "cpu"
            or head.weight.dtype != torch.float32
            or any(parameter.grad is not None and not parameter.requires_grad for parameter in parameters)
            or any(type(part) not in (Linear, Relu) for part in parts)
        ):
            return []
        linears = [part for part in parts if isinstance(part, Linear)]
        stacks.append(ManualStack([*linears, head], by_output=by_output))
    return stacks
