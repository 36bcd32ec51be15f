"""Linear layers with ReLUs and their gradients by hand: without autograd, in buffers that exist.

If the gradient of a loss with respect to the outputs of a network is known in closed form, autograd only repeats a
fixed sequence of operations. Here biases, ReLUs and their gradients are computed in place, and the gradients of
parameters are added to those that exist. All numbers are those of the modules up to rounding. The modules remain for
every network that `make_plain_layers` excludes.

No tensor here requires a gradient, so that autograd records nothing; `torch.inference_mode` saves further time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from algorithm.networks.linear import is_ordered_product, multiply_by_onednn, multiply_transposed, uses_onednn
from algorithm.networks.mlp import LayerStack

# A pass leaves out rows without gradient if at most this fraction of the rows remains, since copying these takes time.
MAX_SELECTED = 0.75

threshold_backward = torch.ops.aten.threshold_backward.grad_input


class Buffers:
    """Buffers [rows, columns] float32, which passes through networks take and give back.

    The buffer that was given back last is taken first, since it is most likely in the cache of the processor.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[int, int], list[Tensor]] = defaultdict(list)

    def take(self, rows: int, columns: int) -> Tensor:
        """Return a buffer with any values."""
        if free := self._free[rows, columns]:
            return free.pop()
        with torch.inference_mode(False):  # others may write to it outside of inference mode
            return torch.empty(rows, columns)

    def give_back(self, buffers: Sequence[Tensor]) -> None:
        """Make buffers available again."""
        for buffer in buffers:
            rows, columns = buffer.shape
            self._free[rows, columns].append(buffer)


class PlainLayers:
    """Linear layers with a ReLU after each but the last: [n, F] -> [n, outputs].

    Args:
        layers: The layers. Their parameters and, if they are trained, the gradients of these exist and stay in place.
        buffers: Buffers, which several networks may share.
        by_output: Whether the outputs have the layout of `linear_by_output`.
    """

    def __init__(self, layers: Sequence[nn.Linear], buffers: Buffers, *, by_output: bool = False):
        self.layers = [_Layer(layer) for layer in layers]
        self.buffers, self.by_output = buffers, by_output

    def run(self, x: Tensor) -> PlainPass:
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
        return PlainPass(self, values, hidden, taken)


class PlainPass:
    """A pass of n rows through layers: its outputs, and the gradients of a loss of them.

    Attributes:
        values: The outputs [n, outputs].
    """

    def __init__(self, network: PlainLayers, values: Tensor, hidden: list[Tensor], taken: list[Tensor]):
        self.values = values
        self._layers, self._buffers = network.layers, network.buffers
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
        self._buffers.give_back(self._taken)
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
                self._buffers.give_back([buffer])
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


def make_plain_layers(
    layers: nn.Module, head: nn.Linear, buffers: Buffers, *, by_output: bool = False
) -> PlainLayers | None:
    """Return layers and a head as `PlainLayers`; None unless they are linear with ReLUs, in float32 on the CPU.

    None, too, for networks of which a learner has the gradient, but does not train all parameters.

    Args:
        layers: The layers before the head; an Identity for none.
        head: The head.
        buffers: See PlainLayers.
        by_output: See PlainLayers.
    """
    if head.weight.device.type != "cpu" or head.weight.dtype != torch.float32:
        return None
    parameters = (*layers.parameters(), *head.parameters())
    if any(parameter.grad is not None and not parameter.requires_grad for parameter in parameters):
        return None
    if isinstance(layers, nn.Identity):
        return PlainLayers([head], buffers, by_output=by_output)
    if isinstance(layers, LayerStack) and layers.is_plain:
        return PlainLayers([*layers.layers, head], buffers, by_output=by_output)
    return None
