"""A learner whose updates are captured: after the first ones, an update is a few calls, without the code of the agent.

The code of an update runs in the warm-ups and when it is captured. Later its operations are only repeated. What changes
from update to update is therefore a tensor: the batch, parameters, moments, statistics and learning rates. Decisions by
the number of the update are part of its kind; each kind is captured separately.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.agent import Agent, LossReport
from algorithm.auxiliaries.auxiliary import Auxiliary
from algorithm.errors import UserError
from algorithm.rollout import Array, Rollout
from algorithm.training.graph_backend import ADVICE, CapturedFunction, GraphBackend
from algorithm.training.learner import Learner

LOG = logging.getLogger(__name__)
ALIGNMENT = 16  # of each array in the memory of a batch, in bytes

ReportValues = tuple[dict[str, Tensor], Tensor]  # metrics and TD errors


def find_obstacle(agent: Agent, auxiliaries: Mapping[str, Auxiliary]) -> str | None:
    """Return why the updates of an agent cannot be captured; None if they can."""
    if auxiliaries:
        return "auxiliaries are not captured"
    if agent.state_size:
        return "networks with a memory are not captured"
    if agent.find_phase(1) is None:
        return f"updates of {type(agent).__name__} with these settings depend on more than tensors"
    return None


class CapturingLearner(Learner):
    """A learner that captures its updates, and repeats them. See `find_obstacle` for those that it cannot capture.

    Args:
        arguments: the arguments of Learner, without `place`.
        backend: captures functions.
        is_required: whether an update that waits for the device is an error; otherwise a line is logged, and updates
            run as they are.

    Raises:
        TypeError: an optimizer other than Adam and AdamW.
    """

    uses_plain_networks = False  # their operations depend on values

    def __init__(self, *arguments: Any, backend: GraphBackend, is_required: bool = False):
        super().__init__(*arguments)
        self.checks_gradient = False
        for step in self._steps:
            step.keep_rate_on_device()
        self._backend, self._is_required = backend, is_required
        self._kinds: dict[Hashable, UpdateKind] = {}
        self._kind: UpdateKind | None = None  # of the current update; None if it runs as it is
        self._captures = True

    def compute_gradients(self, rollout: Rollout) -> LossReport:
        if not self._captures:
            self._kind = None
            return super().compute_gradients(rollout)
        self._begin_update()
        key = self.agent.find_phase(self.agent.update), describe_layout(rollout)
        if key not in self._kinds:
            batch = StaticBatch(rollout, self.device)
            self._kinds[key] = UpdateKind(self._backend, batch, self._compute_parts, self._step_if_finite)
        if self._kind:
            self._kind.expire_report()
        kind = self._kind = self._kinds[key]
        kind.batch.load(rollout)
        _, self._idle_groups = kind.compute_gradients()
        return kind.make_report()

    def apply_gradients(self) -> None:
        progress = self._compute_progress()
        for step in self._steps:
            step.set_rate(progress)
        if not self._kind:
            super().apply_gradients()
            return
        warms_up = not self._kind.step.is_warm
        self._kind.step()
        self._end_update()
        if warms_up:
            self._kind.read_report()
            self._check_waits(self._kind.find_waits())

    def _compute_parts(self, batch: Rollout) -> tuple[LossReport, Any]:
        """Compute the gradients of a batch on the device. Return the report, and the groups without a loss."""
        report = self._compute_gradients(replace(batch))  # a new record, whose rewards are replaced
        return report, self._idle_groups

    def _check_waits(self, waits: list[str]) -> None:
        """Stop capturing if the operations of an update wait for the device. Raises UserError if it is required."""
        if not waits:
            return
        reason = f"updates are not captured as CUDA graphs, since they wait for the device in {waits[0]}"
        if self._is_required:
            raise UserError(f"{reason}: {ADVICE}")
        LOG.warning(f"{reason}; they run as usual")
        self._captures = False


class UpdateKind:
    """The updates of one phase with batches of the same shapes.

    Args:
        backend: captures functions.
        batch: the memory of their batches.
        compute_gradients: computes the gradients of a batch on the device; returns the report and the idle groups.
        step: makes the step.
    """

    def __init__(
        self,
        backend: GraphBackend,
        batch: StaticBatch,
        compute_gradients: Callable[[Rollout], tuple[LossReport, Any]],
        step: Callable[[], None],
    ):
        self.batch = batch
        self.compute_gradients = CapturedFunction(backend, lambda: compute_gradients(batch.rollout))
        self.step = CapturedFunction(backend, step)
        self._compute_report = CapturedFunction(backend, self._evaluate_report)
        self._report: _CapturedReport | None = None  # of the last update

    def make_report(self) -> LossReport:
        """Return the report of the last gradients, which can be read until the next update."""
        report = self._report = _CapturedReport(self._compute_report)
        return LossReport(
            lambda: {name: value.clone() for name, value in report.read()[0].items()},
            lambda: report.read()[1].clone().cpu().numpy(),
        )

    def read_report(self) -> None:
        """Compute the report of the last update, if it has not been computed."""
        assert self._report is not None
        self._report.read()

    def expire_report(self) -> None:
        """Make the report of the last update unreadable, before the tensors that it reads change."""
        if self._report:
            self._report.is_expired = True

    def find_waits(self) -> list[str]:
        """Return the operations that waited for the device in the last warm-up."""
        return [*self.compute_gradients.waits, *self.step.waits, *self._compute_report.waits]

    @torch.no_grad()
    def _evaluate_report(self) -> ReportValues:
        report, _ = self.compute_gradients.result
        return report.compute_metrics(), report.compute_td_errors()


class _CapturedReport:
    """The values of the report of one update, which are computed when they are first read."""

    def __init__(self, compute: Callable[[], ReportValues]):
        self._compute = compute
        self._values: ReportValues | None = None
        self.is_expired = False

    def read(self) -> ReportValues:
        """Return the values. Raises RuntimeError after the next update has begun, whose values they would be."""
        if self.is_expired:
            raise RuntimeError("the report of an update is read after the next update has begun")
        if self._values is None:
            self._values = self._compute()
        return self._values


class StaticBatch:
    """Batches of the same layout, one after the other in the same memory of a device.

    Args:
        rollout: a batch in numpy with this layout.
        device: the device.

    Attributes:
        rollout: the tensors of the last batch. It has none of the arrays that stay in numpy, which a loss does not
            read.
    """

    def __init__(self, rollout: Rollout, device: torch.device):
        arrays = _list_arrays(rollout)
        starts = list(accumulate((-array.nbytes // ALIGNMENT * -ALIGNMENT for array in arrays), initial=0))
        self._places = [slice(start, start + array.nbytes) for start, array in zip(starts, arrays, strict=False)]
        self._memory = torch.empty(starts[-1], dtype=torch.uint8, device=device)
        tensors = iter([self._view(array, place) for array, place in zip(arrays, self._places, strict=True)])
        nothing = np.zeros(0, np.int64)
        self.rollout = replace(
            rollout.convert(lambda array: next(tensors)),
            lane=nothing,
            continues_previous=nothing,
            index=nothing,
            version=nothing,
        )

    def load(self, rollout: Rollout) -> None:
        """Copy a batch to the device, in one transfer."""
        # Torch keeps pinned memory until the transfer from it is done.
        host = torch.empty_like(self._memory, device="cpu", pin_memory=self._memory.device.type == "cuda")
        bytes_on_host = host.numpy()
        for array, place in zip(_list_arrays(rollout), self._places, strict=True):
            bytes_on_host[place] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._memory.copy_(host, non_blocking=True)

    def _view(self, array: np.ndarray, place: slice) -> Tensor:
        """Return the part of the memory at `place` as a tensor like an array."""
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        return self._memory[place].view(dtype).view(array.shape)


def describe_layout(rollout: Rollout) -> Hashable:
    """Return the names, shapes and types of the arrays of a batch, and its burn-in."""
    names = [tuple(part) for part in (rollout.obs, rollout.bonuses, rollout.records, rollout.targets)]
    shapes = [(array.shape, array.dtype.str) for array in _list_arrays(rollout)]
    return rollout.burn_in, *names, *shapes


def _list_arrays(rollout: Rollout) -> list[np.ndarray]:
    """Return the arrays of a batch that a loss reads."""
    arrays: list[np.ndarray] = []

    def append(array: Array) -> Array:
        arrays.append(array)
        return array

    rollout.convert(append)
    return arrays
