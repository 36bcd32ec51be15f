"""Layers with batch norms as one operation against the same modules by autograd."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from algorithm.networks import Mlp, Residual, batch_statistics
from algorithm.networks import layers as module
from algorithm.networks.normalization import can_fuse, find_batch_norms
from tests.builders import perturb

INPUTS = 5
FACTORIES = {
    "residual": Residual(8, 2, expansion=2, norm="batch"),
    "residual, renormalized": Residual(8, 1, norm="batch_renorm", unit_weights=True),
    "mlp": Mlp(16, 8, norm="batch"),
    "mlp, renormalized": Mlp(16, norm="batch_renorm"),
}
ROWS = {"rows": (40,), "sequences": (5, 8)}
STATISTICS = {"running": None, "all rows": 0.0, "valid rows": 0.3}  # the fraction of invalid rows


@pytest.fixture(params=FACTORIES)
def layers(request) -> nn.Module:
    """Layers with other parameters and running statistics than the initial ones."""
    torch.manual_seed(0)
    module = perturb(FACTORIES[request.param](INPUTS))
    for norm in find_batch_norms([module]):
        norm.running[2 * norm.size :] = 10**6  # batch renormalization is warm
    return module


def make_inputs(*rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return 2 * torch.randn(*rows, INPUTS, generator=generator) + torch.arange(INPUTS)


def compute_results(layers: nn.Module, x: Tensor, fraction: float | None, commits: bool) -> list[Tensor]:
    """Return outputs, gradients of the inputs alone and of everything, and increments.

    Outputs and increments come from a pass without gradients, too.
    """
    valid = (
        None if fraction is None else torch.rand(x.shape[:-1], generator=torch.Generator().manual_seed(3)) >= fraction
    )

    def run(inputs: Tensor) -> Tensor:
        with batch_statistics(valid, commits=commits):
            return layers(inputs)

    x = x.clone().requires_grad_()
    parameters = list(layers.parameters())
    norms, results = find_batch_norms([layers]), []
    for norm in norms:
        norm.increment.zero_()
    with torch.no_grad():
        results += [run(x), *(norm.increment.clone() for norm in norms)]
    outputs = run(x)
    direction = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(5))
    loss = (outputs * direction).sum()
    results += [outputs.detach(), *torch.autograd.grad(loss, x, retain_graph=True)]
    results += torch.autograd.grad(loss, parameters, retain_graph=True)
    results += torch.autograd.grad(loss, [x, *parameters])
    return results + [norm.increment.clone() for norm in norms]


@pytest.mark.parametrize("commits", [False, True], ids=["kept", "committed"])
@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("rows", ROWS)
def test_one_operation_has_the_numbers_of_modules(monkeypatch, layers, rows, statistics, commits):
    x = make_inputs(*ROWS[rows])
    fused = compute_results(layers, x, STATISTICS[statistics], commits)
    monkeypatch.setattr(module, "can_fuse", lambda *args: False)
    monkeypatch.setattr(module, "run_fused", None)  # raises if it is called
    separate = compute_results(layers, x, STATISTICS[statistics], commits)
    for ours, expected in zip(fused, separate, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5 * max(1.0, float(expected.abs().max())))


def test_the_memory_of_a_pass_is_freed_without_garbage_collection(layers):
    x = make_inputs(6)
    gc.disable()
    try:
        with batch_statistics(torch.ones(6, dtype=torch.bool)):
            outputs = layers(x)
        node = weakref.ref(outputs)
        del outputs
        assert node() is None
    finally:
        gc.enable()


def test_a_change_of_the_parameters_before_the_backward_pass_is_an_error(layers):
    outputs = layers(make_inputs(6))
    with torch.no_grad():
        next(layers.parameters()).mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.sum().backward()


def test_modules_are_separate_where_they_cannot_be_fused(layers):
    x, parameters = make_inputs(6), list(layers.parameters())
    assert layers.fuses and can_fuse(x, parameters)
    assert not can_fuse(x.to("meta"), parameters)
    assert not can_fuse(x.double(), parameters)
    with torch.autocast("cpu", torch.bfloat16):
        assert not can_fuse(x, parameters)
    layers.requires_grad_(False)
    assert not can_fuse(x, parameters)
    with torch.no_grad():
        assert can_fuse(x, parameters)


@pytest.mark.parametrize(
    "factory", [Mlp(8), Mlp(8, norm="layer"), Mlp(8, norm="batch", activation="tanh"), Residual(8, norm="layer")]
)
def test_layers_without_batch_norms_and_relu_are_separate(factory):
    assert not factory(INPUTS).fuses
