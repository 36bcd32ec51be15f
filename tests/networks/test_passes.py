"""Layers by hand have the outputs and gradients of the modules by autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from algorithm.networks import ActorCritic, Blueprint, Mlp, NoisyMlp
from algorithm.networks.flat_parameters import FlatParameters
from algorithm.networks.heads import StdHead
from algorithm.networks.layers import make_orthogonal_linear
from algorithm.networks.passes import ManualPass, ManualStack, make_manual_stacks
from algorithm.specs import ObsSpec

SIZES = {
    "no layer": (5, (), 3),
    "narrow": (5, (8, 7), 2),
    "deep": (4, (16, 9, 8), 1),
    "wide": (23, (256, 256), 1),
    "wider": (64, (256,), 1),  # oneDNN multiplies by the weights of its first layer, which has more units than inputs
}
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
        return self.head(self.layers(x))

    def make_stack(self, **options: bool) -> ManualStack:
        (stack,) = make_manual_stacks([(self.layers, self.head)], **options)
        return stack


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
    module = "algorithm.networks.fast_products"
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
    stack = network.make_stack(by_output=by_output)
    with torch.inference_mode():
        (hidden, values), (again, _) = (stack.run(x) for _ in range(2))
        assert_close(values, outputs)
        assert values.T.is_contiguous() or not by_output
        assert_close(stack.differentiate(hidden, gradient), of_inputs)
        network.flat.gradient.fill_(1.0)
        stack.add_gradients(again, gradient)  # to those that exist
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
    stack = network.make_stack()
    assert_close(stack.differentiate(stack.run(x)[0], gradient), of_inputs)


@pytest.mark.parametrize("n_learned", [1, 3, 4])
@pytest.mark.parametrize("is_manual", [False, True])
def test_a_policy_has_the_outputs_of_all_rows_and_learns_from_the_first(is_manual, n_learned):
    torch.manual_seed(0)
    std_head = StdHead(2, "state_dependent", 0.5, 0.01)
    policy = ActorCritic(Blueprint(policy=Mlp(8)), {"vector": ObsSpec((5,), "float32")}, 4, 0, std_head)
    gradient = FlatParameters({"policy": policy}, {}, {}).gradient
    if is_manual:
        policy.use_manual_passes()
    features, direction = torch.randn(4, 3, 5), torch.randn(n_learned, 3, 4)
    outputs = policy.compute_outputs(features)
    (-(direction * outputs[:n_learned]).sum()).backward()
    expected = gradient.clone()
    gradient.zero_()
    found = policy.run(features, n_learned)
    assert isinstance(found, ManualPass) == is_manual
    found.make_loss(direction).backward()
    assert_close(found.outputs, outputs.detach())
    assert_close(gradient, expected)


def test_other_layers_precisions_and_layers_that_are_trained_in_part_remain_modules():
    supported, head = (Mlp(8)(5), make_orthogonal_linear(8, 1, 1.0)), make_orthogonal_linear(8, 1, 1.0)
    assert len(make_manual_stacks([supported, supported])) == 2
    others = [Mlp(8, activation="tanh"), Mlp(8, norm="layer"), Mlp(8, norm="batch"), NoisyMlp(8)]
    cases = [(layers(5), head) for layers in others]
    cases += [(nn.Linear(5, 8), head), (nn.Identity(), make_orthogonal_linear(8, 1, 1.0).double())]
    network = Network(*SIZES["narrow"])
    network.layers.layers[0].weight.requires_grad_(False)
    for case in (*cases, (network.layers, network.head)):
        assert make_manual_stacks([supported, case]) == []
    target = Mlp(8)(5).requires_grad_(False)
    assert make_manual_stacks([(target, make_orthogonal_linear(8, 1, 1.0).requires_grad_(False))])
