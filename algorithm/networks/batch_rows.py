"""The rows of a batch whose values count in the statistics of batch norms.

Batch norms use their running statistics, unless a pass through the network is within a block of `batch_statistics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

ValidRows = Tensor | Callable[[], Tensor]  # bool


@dataclass(frozen=True, kw_only=True)
class RowWeights:
    """The weights of the rows of a batch in its statistics.

    Without any valid row, the weights are those of all rows, and nothing is committed.
    """

    weights: Tensor | None  # [N] float32; the sum is 1; None for equal weights, which are found on the CPU only
    unbiased: Tensor  # n / (n - 1) for n valid rows, a scalar: factor that makes the variance of the batch unbiased
    has_rows: Tensor  # 1 if any row is valid, otherwise 0, a scalar
    commits: bool  # whether running statistics learn from the batch, if it has rows


class BatchRows:
    """The rows of the batches that pass through a network in a block of `batch_statistics`."""

    def __init__(self, valid: ValidRows, commits: bool):
        self._valid, self._commits = valid, commits
        self._weights: dict[torch.Size, RowWeights] = {}

    def select(self, shape: torch.Size) -> RowWeights:
        """Return the weights of the rows of an input [*shape, F], as `batch_statistics` describes them.

        Raises:
            ValueError: The shape of the input does not fit the rows of the batch.
        """
        if shape not in self._weights:
            # Inference tensors could not be saved for the gradient of another pass.
            with torch.inference_mode(False), torch.no_grad():
                self._weights[shape] = _weigh_rows(self._expand(shape).reshape(-1), self._commits)
        return self._weights[shape]

    def _expand(self, shape: torch.Size) -> Tensor:
        """Return the valid rows in the shape of an input."""
        if not isinstance(self._valid, Tensor):
            self._valid = self._valid()
        valid, axes = self._valid, self._valid.ndim
        if len(shape) == 1 or axes == 1:
            if shape.numel() % valid.numel() == 0:
                return valid.reshape(-1, 1).expand(-1, shape.numel() // valid.numel())
        elif len(shape) >= axes and shape[1 - axes :] == valid.shape[1:] and shape[-axes] <= len(valid):
            return valid[: shape[-axes]].expand(shape)
        raise ValueError(f"an input of rows {[*shape]} does not fit batch statistics of rows {[*valid.shape]}")


_BATCH_ROWS: ContextVar[BatchRows | None] = ContextVar("batch_rows", default=None)


@contextmanager
def batch_statistics(valid: ValidRows | None, *, commits: bool = False) -> Iterator[None]:
    """Normalize with the statistics of each batch, in all passes through networks within the block.

    Without batch normalization in the network, the block has no effect.

    Args:
        valid: The rows [T, B], or [n], bool whose values count in the statistics; all rows are normalized. A layer
            whose input has the rows [T * B] or [T, B] uses them as they are; for [t, B] with t < T, the first t; for
            [..., T, B], the same for each; for [T * B * K], K values for each row. A function that returns them is
            called only if a layer needs them. None: running statistics, as outside of a block.
        commits: Whether the running statistics learn from these batches when the optimizer steps (see `Learner`). Of
            several passes through the same layer, the last one counts.
    """
    token = _BATCH_ROWS.set(None if valid is None else BatchRows(valid, commits))
    try:
        yield
    finally:
        _BATCH_ROWS.reset(token)


def select_batch_rows(shape: torch.Size) -> RowWeights | None:
    """Return the weights of the rows of an input [*shape, F] in the innermost block; None for running statistics."""
    rows = _BATCH_ROWS.get()
    return None if rows is None else rows.select(shape)


def _weigh_rows(valid: Tensor, commits: bool) -> RowWeights:
    """Return the weights of rows [N] bool, without waiting for the device."""
    rows = valid.float()
    n = rows.sum()
    has_rows = (n > 0).float()
    weights: Tensor | None = None
    if valid.device.type != "cpu" or not valid.all():
        weights = torch.where(valid, rows / n.clamp(min=1), (1 - has_rows) / len(rows))
    return RowWeights(weights=weights, unbiased=n / (n - 1).clamp(min=1), has_rows=has_rows, commits=commits)
