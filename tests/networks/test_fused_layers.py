from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from algorithm.networks import Mlp, NoisyMlp, fused_layers
from algorithm.networks.fused_layers import can_fuse, run_layers
from algorithm.networks.mlp import LayerStack

ROWS = {"few": (5,), "sequences": (3, 4), "many": (300,)}  # of many rows the products are those of large layers
SIZES = {"narrow": (4, 64, 64, 3), "wide": (23, 256, 256, 1)}
KINDS = {
    "hidden": {},
    "head": {"has_head": True},
    "head by output": {"has_head": True, "by_output": True},
}


@pytest.fixture(autouse=True)
def _fuse_small_layers(monkeypatch):
    monkeypatch.setattr(fused_layers, "MIN_MULTIPLICATIONS", 0)


def make_layers(sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [shape for i, units in zip(sizes, sizes[1:], strict=False) for shape in ((units, i), (units,))]
    return [(torch.randn(shape, generator=generator) / 4).to(dtype).requires_grad_() for shape in shapes]


def make_inputs(rows: tuple[int, ...], size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*rows, size, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()


def run_separately(monkeypatch, function):
    """Return what a function returns if each operation is recorded by autograd."""
    with monkeypatch.context() as patch:
        patch.setattr(fused_layers, "can_fuse", lambda *args: False)
        return function()


def compute_results(x: Tensor, parameters: list[Tensor], kind: str) -> list[Tensor]:
    """Return the outputs and the gradients after two backward passes of one graph, and one for the inputs alone."""
    for tensor in (x, *parameters):
        tensor.grad = None
    outputs = run_layers(x, parameters, **KINDS[kind])
    loss = (outputs.square() / outputs.numel()).sum()
    (alone,) = torch.autograd.grad(loss, x, retain_graph=True)
    loss.backward(retain_graph=True)
    loss.backward()
    return [outputs.detach(), alone, x.grad, *(parameter.grad for parameter in parameters)]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_fused_layers_have_the_numbers_of_separate_ones(monkeypatch, rows, sizes, kind):
    x, parameters = make_inputs(ROWS[rows], SIZES[sizes][0]), make_layers(SIZES[sizes])
    compute = partial(compute_results, x, parameters, kind)
    for fused, separate in zip(compute(), run_separately(monkeypatch, compute), strict=True):
        assert torch.equal(fused, separate)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_and_their_gradients_are_those_of_finite_differences(kind):
    x, parameters = make_inputs((3,), 2, torch.float64), make_layers((2, 4, 3, 2), torch.float64)
    assert can_fuse(x, parameters)
    function = lambda x, *parameters: run_layers(x, parameters, **KINDS[kind])  # noqa: E731
    assert torch.autograd.gradcheck(function, (x, *parameters))
    assert torch.autograd.gradgradcheck(function, (x, *parameters))


def test_gradients_of_some_parameters_are_returned(monkeypatch):
    x, parameters = make_inputs((5,), 4), make_layers((4, 8, 2))
    compute = lambda: torch.autograd.grad(run_layers(x, parameters).square().sum(), parameters[2:3])  # noqa: E731
    assert torch.equal(*compute(), *run_separately(monkeypatch, compute))


def test_passes_before_the_backward_pass_do_not_change_its_gradient(monkeypatch):
    parameters = make_layers((4, 64, 64))
    first, second = make_inputs((6,), 4), make_inputs((6,), 4) + 1

    def compute() -> list[Tensor]:
        outputs = run_layers(first, parameters)
        with torch.no_grad():
            run_layers(second, parameters)
        others = run_layers(second.detach().requires_grad_(), parameters)
        (outputs_gradient,) = torch.autograd.grad(others.sum(), parameters[:1])
        return [outputs_gradient, *torch.autograd.grad(outputs.square().sum(), [first, *parameters])]

    for fused, separate in zip(compute(), run_separately(monkeypatch, compute), strict=True):
        assert torch.equal(fused, separate)


def test_a_change_of_the_parameters_before_the_backward_pass_is_an_error():
    parameters = make_layers((4, 8))
    outputs = run_layers(make_inputs((5,), 4), parameters)
    with torch.no_grad():
        parameters[0].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.sum().backward()


def test_layers_are_separate_where_they_cannot_be_fused(monkeypatch):
    x, parameters = make_inputs((5,), 4), make_layers((4, 8))
    assert can_fuse(x, parameters)
    with monkeypatch.context() as patch:
        patch.setattr(fused_layers, "MIN_MULTIPLICATIONS", 5 * 4 * 8 + 1)
        assert not can_fuse(x, parameters)
    assert not can_fuse(x.to("meta"), parameters)
    assert not can_fuse(x.double(), parameters)
    assert not can_fuse(x, [parameter.detach() for parameter in parameters])
    with torch.no_grad():
        assert not can_fuse(x, parameters)
    with torch.autocast("cpu", torch.bfloat16):
        assert not can_fuse(x, parameters)
        assert run_layers(x, parameters).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("factory", "is_plain"),
    [(Mlp(8), True), (Mlp(8, activation="tanh"), False), (Mlp(8, norm="layer"), False), (NoisyMlp(8), False)],
)
def test_only_plain_layers_are_fused(monkeypatch, factory, is_plain):
    calls = []
    monkeypatch.setattr("algorithm.networks.mlp.run_layers", lambda x, parameters: calls.append(parameters) or x)
    layers = factory(4)
    assert isinstance(layers, LayerStack)
    layers(torch.zeros(2, 4))
    assert bool(calls) == is_plain
