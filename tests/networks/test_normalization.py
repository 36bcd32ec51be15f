"""Normalization layers against torch and formulas; their batch statistics; layers as one operation against autograd."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from algorithm.networks import Mlp, Residual, batch_statistics, normalization
from algorithm.networks import layers as module
from tests.builders import perturb

SIZE = 5


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(*shape, SIZE, generator=generator) + torch.arange(SIZE)


def commit(layer: normalization.BatchNorm) -> None:
    layer.running += layer.increment
    layer.increment.zero_()


def torch_norm(layer: normalization.BatchNorm) -> nn.BatchNorm1d:
    """Return torch's layer with the same parameters and running statistics."""
    other = nn.BatchNorm1d(SIZE, eps=1e-5, momentum=0.01)
    with torch.no_grad():
        other.weight.copy_(layer.weight)
        other.bias.copy_(layer.bias)
        other.running_mean.copy_(layer.running[:SIZE])
        other.running_var.copy_(layer.running[SIZE:])
    return other


def normalize(layer, x, valid=None, commits=False):
    """Return the outputs of a layer with the statistics of the batch: of the valid rows, or of all rows."""
    with batch_statistics(torch.ones(x.shape[:-1], dtype=torch.bool) if valid is None else valid, commits=commits):
        return layer(x)


def gradients(function, layer, x):
    """Return outputs, and the gradients of x, weight and bias for a random direction."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    y = function(x)
    direction = torch.randn(y.shape, generator=torch.Generator().manual_seed(5))
    (y * direction).sum().backward()
    return [y.detach(), x.grad, layer.weight.grad.clone(), layer.bias.grad.clone()]


def test_batch_norm_equals_torchs_in_both_modes():
    layer, x = perturb(normalization.BatchNorm(SIZE)), rows(7)
    other, batch = torch_norm(layer), partial(normalize, layer, commits=True)
    for ours, theirs in zip(gradients(batch, layer, x), gradients(other.train(), other, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    commit(layer)
    torch.testing.assert_close(layer.running, torch.cat((other.running_mean, other.running_var)))
    for ours, theirs in zip(gradients(layer, layer, x), gradients(other.eval(), other, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_a_batch_with_invalid_rows_is_exact():
    layer = perturb(normalization.BatchNorm(SIZE))
    valid = torch.tensor([True, False, True, True, False, True])

    def reference(x):
        selected = x[valid]
        y = (x - selected.mean(0)) / (selected.var(0, correction=0) + 1e-5).sqrt()
        return y * layer.weight + layer.bias

    batch = partial(normalize, layer, valid=valid)
    for ours, expected in zip(gradients(batch, layer, rows(6)), gradients(reference, layer, rows(6)), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["batch", "batch_renorm"])
def test_invalid_rows_do_not_count(norm):
    layer, x = perturb(normalization.make_norm(norm, SIZE)), rows(4, 3)
    valid = torch.rand(4, 3, generator=torch.Generator().manual_seed(2)) < 0.6
    changed = torch.where(valid.unsqueeze(-1), x, 1e3 * rows(4, 3, seed=1))
    results = []
    for batch in (x, changed):
        results.append((normalize(layer, batch, valid, commits=True)[valid], layer.increment.clone()))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-6)


def test_a_batch_without_valid_rows_commits_nothing():
    layer = perturb(normalization.BatchRenorm(SIZE))
    assert normalize(layer, rows(6), torch.zeros(6, dtype=torch.bool), commits=True).isfinite().all()
    assert not layer.increment.any()


@pytest.mark.parametrize("committed", [2, 3])
def test_batch_renorm_follows_algorithm_1_after_its_warmup(committed):
    """Algorithm 1 of Ioffe 2017 in float64, with standard deviations for which r and d reach their bounds."""
    layer, x = perturb(normalization.BatchRenorm(SIZE)), rows(8)
    layer.warmup = 3
    with torch.no_grad():
        layer.running[SIZE : 2 * SIZE] = torch.tensor([1e-4, 1.0, 9.0, 2e4, 4.0])
        layer.running[0] = 40.0
    layer.running[-1] = committed
    running, mean, std = layer.running.double(), x.double().mean(0), (x.double().var(0, correction=0) + 1e-5).sqrt()
    running_std = (running[SIZE : 2 * SIZE] + 1e-5).sqrt()
    r, d = (std / running_std).clamp(1 / 3, 3), ((mean - running[:SIZE]) / running_std).clamp(-5, 5)
    if committed < 3:
        r, d = torch.ones(SIZE), torch.zeros(SIZE)
    else:
        assert r.max() == 3 and r.min() < 0.34 and d.min() == -5 and ((r > 0.34) & (r < 2.9)).any()

    def reference(x):
        y = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt() * r.float() + d.float()
        return y * layer.weight + layer.bias

    batch = partial(normalize, layer, commits=True)
    for ours, expected in zip(gradients(batch, layer, x), gradients(reference, layer, x), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    commit(layer)
    assert layer.running[-1] == committed + 1
    torch.testing.assert_close(layer.running[:SIZE].double(), running[:SIZE] + 0.01 * (mean - running[:SIZE]))
    y = (x - layer.running[:SIZE]) / (layer.running[SIZE:-1] + 1e-5).sqrt() * layer.weight + layer.bias
    torch.testing.assert_close(layer(x), y, rtol=1e-4, atol=1e-4)


def test_layer_norm_and_rms_norm_equal_torchs():
    x = rows(6)
    layer, rms = perturb(normalization.LayerNorm(SIZE)), perturb(normalization.RmsNorm(SIZE))
    torch.testing.assert_close(layer(x), nn.functional.layer_norm(x, (SIZE,), layer.weight, layer.bias))
    torch.testing.assert_close(rms(x), nn.functional.rms_norm(x, (SIZE,), rms.weight, 1e-6))


def test_valid_rows_are_computed_once_and_only_for_a_batch_norm():
    calls = []

    def select():
        calls.append(1)
        return torch.tensor([True, False, True])

    layer = perturb(normalization.BatchNorm(SIZE))
    with batch_statistics(select):
        torch.nn.Linear(SIZE, 2)(rows(3))
        assert not calls
        with torch.inference_mode():
            y = layer(rows(3))
        layer(rows(3)).sum().backward()
        layer(rows(1, 3))
    assert len(calls) == 1
    torch.testing.assert_close(y.clone(), normalize(layer, rows(3), select()))


def test_blocks_nest_and_end_with_an_exception():
    layer, x, valid = perturb(normalization.BatchNorm(SIZE)), rows(6), torch.ones(6, dtype=torch.bool)
    running = layer(x)
    with pytest.raises(ZeroDivisionError), batch_statistics(valid):
        batch = layer(x)
        with batch_statistics(None):
            torch.testing.assert_close(layer(x), running)
        torch.testing.assert_close(layer(x), batch)
        raise ZeroDivisionError
    assert not torch.allclose(batch, running)
    torch.testing.assert_close(layer(x), running)
    assert not layer.increment.any()  # no block commits


def test_the_rows_of_an_input_are_found_by_its_shape():
    """All shapes of T rows and B columns, with more values for each row, and with fewer rows."""
    batch, valid = (
        partial(normalize, perturb(normalization.BatchNorm(SIZE))),
        torch.tensor([[True, False, True], [True, True, False]]),
    )
    x = rows(2, 3)
    expected = batch(x, valid)
    torch.testing.assert_close(batch(x.flatten(0, 1), valid), expected.flatten(0, 1))
    torch.testing.assert_close(batch(x[:1], valid), batch(x[0], valid[0]).unsqueeze(0))
    # Three values for each of the first row's columns, which are as many rows as `valid` has, but others.
    short = torch.tensor([[True, False], [True, True], [True, False]])
    torch.testing.assert_close(batch(rows(3, 1, 2), short), batch(rows(3, 1, 2), short[:1].expand(3, 1, 2)))
    torch.testing.assert_close(batch(x, valid.flatten()), expected)
    tiled, many = rows(4, 2, 3), rows(2, 3, 4)
    torch.testing.assert_close(batch(tiled, valid), batch(tiled, valid.expand(4, 2, 3)))
    repeated = valid.unsqueeze(-1).expand(2, 3, 4)
    torch.testing.assert_close(batch(many.flatten(0, 2), valid), batch(many, repeated).flatten(0, 2))
    with pytest.raises(ValueError, match=r"rows \[3, 3\] does not fit batch statistics of rows \[2, 3\]"):
        batch(rows(3, 3), valid)


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
    for norm in normalization.find_batch_norms([module]):
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
    norms, results = normalization.find_batch_norms([layers]), []
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
    assert layers.fuses and normalization.can_fuse(x, parameters)
    assert not normalization.can_fuse(x.to("meta"), parameters)
    assert not normalization.can_fuse(x.double(), parameters)
    with torch.autocast("cpu", torch.bfloat16):
        assert not normalization.can_fuse(x, parameters)
    layers.requires_grad_(False)
    assert not normalization.can_fuse(x, parameters)
    with torch.no_grad():
        assert normalization.can_fuse(x, parameters)


@pytest.mark.parametrize(
    "factory", [Mlp(8), Mlp(8, norm="layer"), Mlp(8, norm="batch", activation="tanh"), Residual(8, norm="layer")]
)
def test_layers_without_batch_norms_and_relu_are_separate(factory):
    assert not factory(INPUTS).fuses
