"""Constraints of parameters, which hold after every step of the optimizer, also in target networks.

A module with an attribute `constraint` has one: a function that changes its own parameters, as one flat tensor, in
place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Constraint = Callable[[Tensor], object]


@dataclass(frozen=True)
class RowNorm:
    """A constraint that scales each of `rows` equal parts of the parameters to the Euclidean norm `norm`."""

    rows: int
    norm: float

    def __call__(self, parameters: Tensor) -> None:
        rows = parameters.view(self.rows, -1)
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        rows.mul_(self.norm / norms.clamp(min=torch.finfo(rows.dtype).tiny))


def find_constraints(module: nn.Module) -> Iterator[tuple[Constraint, list[Tensor]]]:
    """Yield the constraint of each layer of a module that has one, and the parameters of this layer."""
    for layer in module.modules():
        constraint: Constraint | None = getattr(layer, "constraint", None)
        if constraint:
            yield constraint, list(layer.parameters(recurse=False))


def has_constraints(module: nn.Module) -> bool:
    """Return whether a layer of a module has a constraint."""
    return any(True for _ in find_constraints(module))
