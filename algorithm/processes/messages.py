"""The messages between the main process of a run and its workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.specs import Role
from algorithm.training.invalid_values import Episode
from algorithm.training.progress import Counters


@dataclass(frozen=True, kw_only=True)
class Start:
    """To a worker that is ready: build the components, whose shared tensors exist now.

    Attributes:
        counters: counters of the run.
        checkpoint: folder of the checkpoint with the worker's experience; None: it starts with an empty replay.
    """

    counters: Counters
    checkpoint: Path | None


@dataclass(frozen=True, kw_only=True)
class Continue:
    """To a worker that waits: make ticks until the next report.

    Attributes:
        iterations: completed iterations of the run; after each of them, no lane counts as active.
        rows: rows of metrics that were written; each of them starts new samples of metrics.
    """

    iterations: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class Save:
    """To a worker that waits: write its experience to the folder of a checkpoint.

    Attributes:
        folder: the folder.
        iterations: as in Continue.
    """

    folder: Path
    iterations: int


@dataclass(frozen=True)
class Stop:
    """To a worker: close the environments and end."""


@dataclass(frozen=True)
class Ready:
    """From a worker whose environments are open: their roles."""

    roles: Mapping[str, Role]


@dataclass(frozen=True)
class LogRecord:
    """From a worker: a logged message, with its level."""

    level: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """From a worker: what it has collected and learned since its last report.

    Attributes:
        waits: whether the worker waits for a reply.
        episodes: episodes that ended.
        active_lanes: {role: [lanes] bool}, the lanes that had a row in this iteration.
        samples: {role: metrics of the sampled updates}.
        error: exception that has ended the worker's training.
        trace: its traceback.
    """

    waits: bool = True
    episodes: Sequence[Episode] = ()
    active_lanes: Mapping[str, np.ndarray] = field(default_factory=dict)
    samples: Mapping[str, Sequence[Mapping[str, float]]] = field(default_factory=dict)
    error: BaseException | None = None
    trace: str = ""

    def raise_error(self) -> None:
        """Raise the exception, caused by one that shows the traceback in the worker."""
        if self.error:
            raise self.error from WorkerTraceback(f"\n{self.trace}")


class WorkerTraceback(Exception):
    """The traceback of an exception in a worker, as text."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """From a worker: what it has written to a checkpoint.

    Attributes:
        digests: digests of its files.
        metadata: what counters.json has about it.
        learners: {role: the state of the learner that workers do not share}.
        error: error of the disk, if there was one.
    """

    digests: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    learners: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    error: OSError | None = None
