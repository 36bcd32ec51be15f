from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from algorithm.networks import fast_products as module
from algorithm.networks.fast_products import Linear, linear, linear_by_output

FUNCTIONS = (linear, linear_by_output)
SHAPES = {"wide": ((700,), 40, 300), "deep": ((600,), 300, 50), "sequences": ((20, 30), 50, 300)}  # rows, inputs, units


def make_factors(rows: tuple[int, ...], inputs: int, units: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((*rows, inputs), (units, inputs), (units,))
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def compute_gradients(function, factors: list[Tensor], second: bool = False) -> list[Tensor]:
    """Return the output of a layer with a ReLU, and its first or second gradients."""
    activate = torch.relu if function is linear_by_output else torch.relu_  # hidden layers are changed in place
    output = activate(function(*factors))
    loss = output.square().sum() / output.numel()
    gradients = torch.autograd.grad(loss, factors, create_graph=second)
    if second:
        gradients = torch.autograd.grad(sum(gradient.pow(3).sum() for gradient in gradients), factors)
    return [output.detach(), *gradients]


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_large_product_and_its_gradients_are_those_of_torch_in_float64(monkeypatch, function, shape, second):
    monkeypatch.setattr(module, "MIN_VALUES", 1)
    expected = compute_gradients(nn.functional.linear, make_factors(*SHAPES[shape], dtype=torch.float64), second)
    for result, value in zip(compute_gradients(function, make_factors(*SHAPES[shape]), second), expected, strict=True):
        assert result.dtype == torch.float32
        assert (result - value).abs().max() <= 2e-6 * value.abs().max()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_large_product_without_gradient_equals_the_one_with_gradient(monkeypatch, function):
    monkeypatch.setattr(module, "MIN_VALUES", 1)
    factors = make_factors(*SHAPES["sequences"])
    with torch.inference_mode():
        result = function(*factors)
    assert torch.equal(result, function(*factors))


@pytest.mark.parametrize("uses_onednn", [False, True])
def test_torch_and_onednn_have_the_same_products(monkeypatch, uses_onednn):
    if uses_onednn and not module.HAS_ONEDNN:
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(module, "MIN_VALUES", 1)
    monkeypatch.setattr(module, "USES_ONEDNN", uses_onednn)
    factors = make_factors(*SHAPES["wide"])
    assert torch.allclose(linear(*factors), nn.functional.linear(*factors), atol=1e-4)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_small_product_is_left_to_torch(monkeypatch, function):
    monkeypatch.setattr(module, "_multiply_large", None)  # raises if it is called
    factors = make_factors((8,), 4, 64)
    assert torch.allclose(function(*factors), nn.functional.linear(*factors), atol=1e-6)


@pytest.mark.parametrize("change", [torch.float64, torch.bfloat16], ids=str)
def test_other_precisions_are_left_to_torch(monkeypatch, change):
    monkeypatch.setattr(module, "MIN_VALUES", 1)
    factors = make_factors(*SHAPES["wide"], dtype=change)
    assert torch.equal(linear(*factors), nn.functional.linear(*factors))


def test_mixed_precision_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(module, "MIN_VALUES", 1)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(*make_factors(*SHAPES["wide"])).dtype == torch.bfloat16


def test_a_layer_may_have_no_inputs():
    x, weight, bias = torch.zeros(5, 0), torch.zeros(3, 0), torch.arange(3.0)
    assert torch.equal(linear(x, weight, bias), bias.expand(5, 3))


def test_only_the_gradients_that_are_needed_are_computed(monkeypatch):
    monkeypatch.setattr(module, "MIN_VALUES", 1)
    x, weight, bias = make_factors(*SHAPES["wide"])
    linear(x.detach(), weight, bias.detach()).sum().backward()
    assert x.grad is None and weight.grad is not None and bias.grad is None


@pytest.mark.parametrize("has_query", [True, False])
def test_a_pass_for_the_gradient_of_the_inputs_computes_no_gradient_of_the_weights(monkeypatch, has_query):
    monkeypatch.setattr(module, "MIN_VALUES", 1)
    if not has_query:
        monkeypatch.setattr(module, "WILL_EXECUTE", None)
    calls = []
    multiply = module.multiply_transposed
    monkeypatch.setattr(module, "multiply_transposed", lambda *args: calls.append(args) or multiply(*args))
    x, weight, bias = make_factors(*SHAPES["wide"])
    output = linear(x, weight, bias).sum()
    (x_gradient,) = torch.autograd.grad(output, x, retain_graph=True)
    assert len(calls) == (0 if has_query else 1)
    gradients = torch.autograd.grad(output, [x, weight, bias], retain_graph=True)
    assert torch.equal(gradients[0], x_gradient)
    output.backward()
    assert len(calls) == (2 if has_query else 3)
    for factor, gradient in zip((x, weight, bias), gradients, strict=True):
        assert torch.equal(factor.grad, gradient)


def test_a_layer_computes_with_linear(monkeypatch):
    monkeypatch.setattr("algorithm.networks.fast_products.linear", lambda x, weight, bias: (x, weight, bias))
    layer, x = Linear(3, 2), torch.zeros(1, 3)
    assert all(a is b for a, b in zip(layer(x), (x, layer.weight, layer.bias), strict=True))


@pytest.mark.parametrize(
    ("vendor", "family", "halves"),
    [("AuthenticAMD", 25, True), ("AuthenticAMD", 26, False), ("AuthenticAMD", 2, False), ("GenuineIntel", 25, False)],
)
def test_zen_4_is_found_by_vendor_and_family(vendor, family, halves):
    cpuinfo = f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: 17\n"
    assert module.halves_avx512(cpuinfo) is halves
    assert not module.halves_avx512("")
