"""Constraints of parameters, which hold after every step of the optimizer, also in target networks.

A layer with a constraint has it in its attribute `constraint`: a function that changes the parameters of the layer, one
flat tensor, in place. `merge_constraints` applies equal constraints of several layers by fewer operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Constraint = Callable[[Tensor], object]

TINY = torch.finfo(torch.float32).tiny
SQUARINGS = 6  # of G in SpectralNorm


@dataclass(frozen=True)
class RowNorm:
    """A constraint that scales each of `rows` equal parts of the parameters to the Euclidean norm `norm`.

    The parameters are those of one layer [n], or those of several layers [layers, n].
    """

    rows: int
    norm: float

    def __call__(self, parameters: Tensor) -> None:
        rows = parameters.unflatten(-1, (self.rows, -1))
        norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp_(min=TINY)
        rows.div_(norms if self.norm == 1 else norms.div_(self.norm))


@dataclass(frozen=True)
class SpectralNorm:
    """A constraint that divides weights [rows, columns], the first of the parameters, by a spectral norm above 1.

    With G = W W^T (or W^T W, if that is smaller), the spectral norm is estimated as sqrt(|G^64|^(1/64)), with the
    Frobenius norm and six squarings of G. The estimate is never too small, and too large by at most a factor of
    size^(1/256) for G [size, size]: 2% for 256 units.
    """

    rows: int
    columns: int

    def __call__(self, parameters: Tensor) -> None:
        weight = parameters[: self.rows * self.columns].view(self.rows, self.columns)
        power = weight @ weight.T if self.rows < self.columns else weight.T @ weight
        log_norm = torch.zeros((), device=weight.device)  # G^k = power * exp(log_norm)
        for _ in range(SQUARINGS):
            norm = power.norm().clamp(min=TINY)
            power = power / norm
            power, log_norm = power @ power, 2 * (log_norm + norm.log())
        log_norm = log_norm + power.norm().clamp(min=TINY).log()
        weight.div_((log_norm / 2 ** (SQUARINGS + 1)).exp().clamp(min=1))


def set_constraint(layer: Any, constraint: Constraint) -> None:
    """Set the constraint of a layer whose first parameter is `weight`, and apply it to the initial weights."""
    layer.constraint = constraint
    constraint(layer.weight.data.view(-1))


def limit_spectral_norm(layer: Any) -> None:
    """Constrain a linear layer, or a convolution as a matrix of its channels, to a spectral norm of at most 1."""
    rows = len(layer.weight)
    set_constraint(layer, SpectralNorm(rows, layer.weight.numel() // rows))


def find_constraints(module: nn.Module) -> Iterator[tuple[Constraint, list[Tensor]]]:
    """Yield the constraint of each layer of a module that has one, and the parameters of this layer."""
    for layer in module.modules():
        constraint: Constraint | None = getattr(layer, "constraint", None)
        if constraint:
            yield constraint, list(layer.parameters(recurse=False))


def merge_constraints(constrained: Iterable[tuple[Constraint, Tensor]]) -> list[tuple[Constraint, Tensor]]:
    """Return constraints with the flat parameters to which they apply, one for several layers where possible.

    Equal constraints on as many parameters, at equal distances in the same flat tensor, become one [layers, n], as
    those of two critics, or of the blocks of one.

    Args:
        constrained: The constraint and the flat parameters [n] of each layer, in the order of the flat tensor.
    """
    merged: list[tuple[Constraint, Tensor]] = []
    groups: dict[tuple[RowNorm, int], list[Tensor]] = {}
    for constrain, parameters in constrained:
        if isinstance(constrain, RowNorm):
            groups.setdefault((constrain, len(parameters)), []).append(parameters)
        else:
            merged.append((constrain, parameters))
    for (constrain, size), layers in groups.items():
        layers.sort(key=Tensor.storage_offset)
        while layers:
            starts = [layer.storage_offset() for layer in layers]
            step = starts[1] - starts[0] if len(layers) > 1 else size
            count = next((i for i, start in enumerate(starts) if start != starts[0] + i * step), len(layers))
            merged.append((constrain, layers[0].as_strided((count, size), (step, 1))))
            del layers[:count]
    return merged
