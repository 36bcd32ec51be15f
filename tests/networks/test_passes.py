"""Layers by hand have the outputs and gradients of the modules by autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from algorithm.networks import Mlp, NoisyMlp, passes
from algorithm.networks.flat_parameters import FlatParameters
from algorithm.networks.mlp import make_orthogonal_linear, run_with_head
from algorithm.networks.passes import Buffers, ManualStack, make_manual_stack

SIZES = {"no layer": (5, (), 3), "narrow": (5, (8, 7), 2), "deep": (4, (16, 9, 8), 1), "wide": (23, (256, 256), 1)}
ROWS = 160  # of which a product with 256 x 256 weights is large


class Network(nn.Module):
    """Layers with a head and random biases, whose parameters and gradients are flat."""

    def __init__(self, inputs: int, units: tuple[int, ...], outputs: int):
        super().__init__()
        self.layers = Mlp(*units)(inputs) if units else nn.Identity()
        self.head = make_orthogonal_linear(units[-1] if units else inputs, outputs, gain=1.0)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(parameter)
        self.flat = FlatParameters({"network": self}, {}, {})

    def forward(self, x: Tensor) -> Tensor:
        return run_with_head(self.layers, self.head, x)

    def make_stack(self, buffers: Buffers, **options: bool) -> ManualStack:
        plain = make_manual_stack(self.layers, self.head, buffers, **options)
        assert plain is not None
        return plain


def compute_by_autograd(network: Network, x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs, and the gradients of the inputs and of the parameters."""
    network.flat.gradient.zero_()
    inputs = x.clone().requires_grad_()
    outputs = network(inputs)
    outputs.backward(gradient)
    assert inputs.grad is not None
    return outputs.detach(), inputs.grad, network.flat.gradient.clone()


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.fixture(params=["oneDNN", "MKL"])
def _products(request, monkeypatch):
    """Large products by each library; a processor has one of the two."""
    module = "algorithm.networks.linear"
    if request.param == "oneDNN" and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("torch was built without oneDNN")
    monkeypatch.setattr(f"{module}.USES_ONEDNN", request.param == "oneDNN")


@pytest.mark.usefixtures("_products")
@pytest.mark.parametrize("by_output", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_outputs_and_gradients_are_those_of_autograd(sizes, by_output):
    torch.manual_seed(0)
    network = Network(*SIZES[sizes])
    x, gradient = torch.randn(ROWS, SIZES[sizes][0]), torch.randn(ROWS, SIZES[sizes][2])
    outputs, of_inputs, of_parameters = compute_by_autograd(network, x, gradient)
    plain = network.make_stack(Buffers(), by_output=by_output)
    with torch.inference_mode():
        completed = plain.run(x)
        assert_close(completed.values, outputs)
        assert completed.values.T.is_contiguous() or not by_output
        assert_close(completed.differentiate(gradient), of_inputs)
        network.flat.gradient.fill_(1.0)
        plain.run(x).add_gradients(gradient)  # to those that exist
    assert_close(network.flat.gradient - 1, of_parameters)


@pytest.mark.usefixtures("_products")
@pytest.mark.parametrize("n", [0, 1, 40, 119, 121])
def test_rows_without_gradient_change_nothing(n):
    """Few rows with a gradient are computed alone, many together with the others."""
    torch.manual_seed(n)
    network = Network(*SIZES["wide"])
    x, gradient = torch.randn(ROWS, 23), torch.zeros(ROWS, 1)
    gradient[torch.randperm(ROWS)[:n]] = 1.5
    _, of_inputs, _ = compute_by_autograd(network, x, gradient)
    assert_close(network.make_stack(Buffers()).run(x).differentiate(gradient), of_inputs)


def test_passes_that_overlap_have_buffers_of_their_own(monkeypatch):
    """Buffers are taken again only after their pass has ended; further passes make none."""
    monkeypatch.setattr("algorithm.networks.linear.USES_ONEDNN", False)
    network, buffers = Network(*SIZES["narrow"]), Buffers()
    plain = network.make_stack(buffers)
    batches, gradient = [torch.randn(ROWS, 5) for _ in range(3)], torch.randn(ROWS, 2)
    expected = [compute_by_autograd(network, x, gradient)[1] for x in batches]
    made = []
    empty = torch.empty
    monkeypatch.setattr(passes.torch, "empty", lambda *shape: made.append(shape) or empty(*shape))
    for _ in range(3):
        first, second, third = (plain.run(x) for x in batches)
        second.release()
        assert_close(third.differentiate(gradient), expected[2])
        assert_close(first.differentiate(gradient), expected[0])
        plain.run(batches[1]).release()
    assert made == [(ROWS, 8), (ROWS, 7)] * 3  # of two layers in each of three passes


def test_a_buffer_made_in_inference_mode_serves_outside_of_it():
    network, buffers = Network(*SIZES["narrow"]), Buffers()
    stack, x = network.make_stack(buffers), torch.randn(ROWS, 5)
    with torch.inference_mode():
        stack.run(x).release()
    stack.run(x).release()


@pytest.mark.parametrize("layers", [Mlp(8, activation="tanh"), Mlp(8, norm="layer"), Mlp(8, norm="batch"), NoisyMlp(8)])
def test_other_layers_remain_modules(layers):
    assert make_manual_stack(layers(5), make_orthogonal_linear(8, 1, 1.0), Buffers()) is None


def test_another_dtype_remains_a_module():
    assert make_manual_stack(nn.Identity(), make_orthogonal_linear(8, 1, 1.0).double(), Buffers()) is None


def test_layers_that_are_trained_in_part_remain_modules():
    network = Network(*SIZES["narrow"])
    network.layers.layers[0].weight.requires_grad_(False)
    assert make_manual_stack(network.layers, network.head, Buffers()) is None
    target = Mlp(8)(5).requires_grad_(False)
    assert make_manual_stack(target, make_orthogonal_linear(8, 1, 1.0).requires_grad_(False), Buffers())


def test_a_pass_that_has_ended_has_no_gradients():
    network = Network(*SIZES["narrow"])
    ended = network.make_stack(Buffers()).run(torch.randn(ROWS, 5))
    ended.release()
    with pytest.raises(ValueError, match="shorter"):
        ended.add_gradients(torch.randn(ROWS, 2))
