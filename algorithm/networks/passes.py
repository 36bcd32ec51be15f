"""Passes through networks whose losses are known by their gradients with respect to the outputs.

A pass is recorded by autograd, or its gradients are computed by hand. The latter is for linear layers with ReLUs, in
float32 on the CPU: autograd would only repeat a fixed sequence of operations. Biases, ReLUs and their gradients are
computed in place, in buffers that exist, and the gradients of parameters are added to those that exist. All numbers are
those of autograd up to rounding. No tensor here requires a gradient; `torch.inference_mode` saves further time.

`use_manual_passes` is called once parameters and gradients are in place. It has an effect on the networks that have a
method of this name. The loss of a pass is a scalar tensor in both cases.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from algorithm.losses import surrogate_loss
from algorithm.networks.heads import StdHead
from algorithm.networks.linear import is_ordered_product, multiply_by_onednn, multiply_transposed, uses_onednn
from algorithm.networks.mlp import LayerStack

# A pass leaves out rows without gradient if at most this fraction of the rows remains, since copying these takes time.
MAX_SELECTED = 0.75

threshold_backward = torch.ops.aten.threshold_backward.grad_input


class Pass(ABC):
    """A pass of rows through a network, which ends with the gradients of its loss or of its inputs.

    Attributes:
        outputs: The outputs [..., S], without gradient.
    """

    outputs: Tensor

    @abstractmethod
    def make_loss(self, direction: Tensor) -> Tensor:
        """Return a scalar whose gradient with respect to the outputs is -`direction`; see `surrogate_loss`."""

    @abstractmethod
    def differentiate(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the inputs, given that of the outputs."""


class AutogradPass(Pass):
    """A pass of which autograd has recorded the operations.

    Args:
        outputs: The outputs [..., S] with gradient.
        inputs: The inputs, if their gradient is needed.
    """

    def __init__(self, outputs: Tensor, inputs: Tensor | None = None):
        self._with_gradient, self._inputs, self.outputs = outputs, inputs, outputs.detach()

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
    buffers = Buffers()
    modules: Iterable[Any] = (module for network in networks for module in network.modules())
    for module in modules:
        if hasattr(module, "use_manual_passes"):
            module.use_manual_passes(buffers)


class Buffers:
    """Buffers [rows, columns] float32, which passes through networks take and release.

    The buffer that was released last is taken first, since it is most likely in the cache of the processor.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[int, int], list[Tensor]] = defaultdict(list)

    def take(self, rows: int, columns: int) -> Tensor:
        """Return a buffer with any values."""
        if free := self._free[rows, columns]:
            return free.pop()
        with torch.inference_mode(False):  # others may write to it outside of inference mode
            return torch.empty(rows, columns)

    def release(self, buffers: Sequence[Tensor]) -> None:
        """Make buffers available again."""
        for buffer in buffers:
            rows, columns = buffer.shape
            self._free[rows, columns].append(buffer)


class ManualPass(Pass):
    """A pass of the same rows through M stacks of layers, with gradients by hand.

    Args:
        stacks: The stacks.
        inputs: The inputs [..., F].
        value_shape: The shape of the values of a row. The outputs are [M, ..., *value_shape].
    """

    def __init__(self, stacks: Sequence[ManualStack], inputs: Tensor, value_shape: tuple[int, ...]):
        self._rows = inputs.shape[:-1]
        self._parts = [stack.run(inputs.flatten(0, -2)) for stack in stacks]
        first, *others = (part.values for part in self._parts)
        values = torch.stack([first, *others]) if others else first.unsqueeze(0)  # which keeps the layout
        self.outputs = values.view(len(stacks), *self._rows, *value_shape)

    def make_loss(self, direction: Tensor) -> Tensor:
        def add_gradients(scale: Tensor) -> None:
            for part, rows in self._split(direction * -scale):
                part.add_gradients(rows)

        with torch.inference_mode(False):
            return _LossByHand.apply(self._parts[0].parameter, add_gradients)

    def differentiate(self, gradient: Tensor) -> Tensor:
        parts = [part.differentiate(rows) for part, rows in self._split(gradient)]
        return reduce(torch.add, parts).view(*self._rows, -1)

    def release(self) -> Tensor:
        """End the pass, of which no gradient is needed, and return the outputs."""
        for part in self._parts:
            part.release()
        return self.outputs

    def _split(self, gradient: Tensor) -> list[tuple[_StackPass, Tensor]]:
        """Return the pass of each stack, with the gradient of its outputs [n, outputs]."""
        rows = gradient.reshape(len(self._parts), self._rows.numel(), -1)
        return list(zip(self._parts, rows, strict=True))


class ManualPolicyPass(Pass):
    """A pass of rows through a single stack, and the standard deviations of continuous actions: [..., F] -> [..., S].

    Args:
        stack: The stack.
        inputs: The inputs [..., F].
        std_head: The standard deviations, which depend on the state; None without continuous actions.
    """

    def __init__(self, stack: ManualStack, inputs: Tensor, std_head: StdHead | None):
        self._pass, self._std_head = ManualPass([stack], inputs, (-1,)), std_head
        self._values = self._pass.outputs[0]
        self.outputs = std_head(self._values) if std_head else self._values

    def make_loss(self, direction: Tensor) -> Tensor:
        return self._pass.make_loss(self._convert(direction))

    def differentiate(self, gradient: Tensor) -> Tensor:
        return self._pass.differentiate(self._convert(gradient))

    def release(self) -> Tensor:
        """End the pass, of which no gradient is needed, and return the outputs."""
        self._pass.release()
        return self.outputs

    def _convert(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the values [1, ..., columns], given that of the outputs."""
        return (self._std_head.differentiate(self._values, gradient) if self._std_head else gradient).unsqueeze(0)


class _LossByHand(torch.autograd.Function):
    """A scalar 0 whose backward pass calls a function with the gradient of the scalar.

    The scalar depends on `parameter`, whose gradient is one of those that the function adds to the existing ones.
    """

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, add_gradients: Callable[[Tensor], object]) -> Tensor:
        ctx.add_gradients = add_gradients
        return parameter.new_zeros(())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[None, None]:
        with torch.inference_mode():  # of which the tensors of the pass may be
            ctx.add_gradients(*gradients)
        return None, None


class ManualStack:
    """Linear layers with a ReLU after each but the last: [n, F] -> [n, outputs].

    Args:
        layers: The layers. Their parameters and, if they are trained, the gradients of these exist and stay in place.
        buffers: Buffers, which several networks may share.
        by_output: Whether the outputs have the layout of `linear_by_output`.
    """

    def __init__(self, layers: Sequence[nn.Linear], buffers: Buffers, *, by_output: bool = False):
        self.layers = [_Layer(layer) for layer in layers]
        self.parameter = layers[-1].weight
        self.buffers, self.by_output = buffers, by_output

    def run(self, x: Tensor) -> _StackPass:
        """Return a pass for x [n, F]."""
        rows, hidden, taken = x.shape[0], [x], []
        *layers, head = self.layers
        for layer in layers:
            if uses_onednn(x, layer.weight):
                x = multiply_by_onednn(x, layer.weight, layer.bias)
            else:
                taken.append(self.buffers.take(rows, layer.units))
                x = torch.addmm(layer.bias, x, layer.transposed, out=taken[-1])
            hidden.append(x.relu_())
        if self.by_output:
            values = torch.addmm(head.bias.unsqueeze(1), head.weight, x.T).T
        else:
            values = torch.addmm(head.bias, x, head.transposed)
        return _StackPass(self, values, hidden, taken)


class _StackPass:
    """A pass of n rows through a stack: its outputs, and the gradients of a loss of them.

    Attributes:
        values: The outputs [n, outputs].
    """

    def __init__(self, stack: ManualStack, values: Tensor, hidden: list[Tensor], taken: list[Tensor]):
        self.values, self.parameter = values, stack.parameter
        self._layers, self._buffers = stack.layers, stack.buffers
        self._hidden = hidden  # the inputs of each layer
        self._taken = taken  # those of them that are buffers

    def add_gradients(self, gradient: Tensor) -> None:
        """Add the gradients of the parameters, for that of the outputs, to those that exist, and end the pass."""
        self._differentiate(gradient, self._hidden, adds=True)
        self.release()

    def differentiate(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the inputs [n, F] for that of the outputs [n, outputs], and end the pass."""
        hidden, rows = self._hidden, gradient.any(-1).nonzero().squeeze(-1)
        if rows.shape[0] > MAX_SELECTED * gradient.shape[0]:
            result = self._layers[0].differentiate(self._differentiate(gradient, hidden, adds=False))
        else:
            selected = [hidden[0], *(x.index_select(0, rows) for x in hidden[1:])]  # the inputs are not read
            gradient = self._differentiate(gradient.index_select(0, rows), selected, adds=False)
            result = torch.zeros_like(hidden[0]).index_copy_(0, rows, self._layers[0].differentiate(gradient))
        self.release()
        return result

    def release(self) -> None:
        """End the pass: others may take its buffers."""
        self._buffers.release(self._taken)
        self._taken, self._hidden = [], []

    def _differentiate(self, gradient: Tensor, hidden: list[Tensor], *, adds: bool) -> Tensor:
        """Return the gradient of the outputs of the first layer, before its ReLU, in the memory of these outputs.

        Args:
            gradient: That of the outputs of the last layer [m, outputs].
            hidden: The inputs [m, ...] of each layer; gradients replace those of all layers but the first.
            adds: Whether to add the gradients of the parameters to those that exist.
        """
        for layer, x in zip(reversed(self._layers[1:]), reversed(hidden[1:]), strict=True):
            if adds:
                layer.add_gradients(gradient, x)
            if uses_onednn(gradient, layer.transposed):
                product = multiply_by_onednn(gradient, layer.transposed, None)
                gradient = threshold_backward(product, x, 0, grad_input=x)
            else:
                buffer = self._buffers.take(self.values.shape[0], layer.inputs)
                product = torch.mm(gradient, layer.weight, out=buffer[: x.shape[0]])
                gradient = threshold_backward(product, x, 0, grad_input=x)
                self._buffers.release([buffer])
        if adds:
            self._layers[0].add_gradients(gradient, hidden[0])
        return gradient


class _Layer:
    """The tensors of a linear layer, without autograd."""

    def __init__(self, layer: nn.Linear):
        self.units, self.inputs = layer.weight.shape
        self.weight, self.bias = layer.weight.detach(), layer.bias.detach()
        self.transposed = self.weight.T
        self.weight_gradient, self.bias_gradient = layer.weight.grad, layer.bias.grad

    def add_gradients(self, gradient: Tensor, x: Tensor) -> None:
        """Add the gradients g^T x and sum g, for the gradient g of the outputs."""
        assert self.weight_gradient is not None and self.bias_gradient is not None
        self.bias_gradient += gradient.sum(0)
        if uses_onednn(x, self.weight) or is_ordered_product(x, self.weight):
            self.weight_gradient += multiply_transposed(gradient, x)
        else:
            self.weight_gradient.addmm_(gradient.T, x)

    def differentiate(self, gradient: Tensor) -> Tensor:
        """Return g W, the gradient of the inputs."""
        if uses_onednn(gradient, self.transposed):
            return multiply_by_onednn(gradient, self.transposed, None)
        if is_ordered_product(gradient, self.weight):
            return torch.mm(self.transposed, gradient.T).T
        return torch.mm(gradient, self.weight)


def make_manual_stack(
    layers: nn.Module, head: nn.Linear, buffers: Buffers, *, by_output: bool = False
) -> ManualStack | None:
    """Return layers and a head as a `ManualStack`; None unless they are linear with ReLUs, in float32 on the CPU.

    None, too, for networks of which a learner has the gradient, but does not train all parameters.

    Args:
        layers: The layers before the head; an Identity for none.
        head: The head.
        buffers: See ManualStack.
        by_output: See ManualStack.
    """
    if head.weight.device.type != "cpu" or head.weight.dtype != torch.float32:
        return None
    parameters = (*layers.parameters(), *head.parameters())
    if any(parameter.grad is not None and not parameter.requires_grad for parameter in parameters):
        return None
    if isinstance(layers, nn.Identity):
        return ManualStack([head], buffers, by_output=by_output)
    if isinstance(layers, LayerStack) and layers.is_linear:
        return ManualStack([*layers.layers, head], buffers, by_output=by_output)
    return None
