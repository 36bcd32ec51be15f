"""A learner whose parameters, moments, running statistics and counters are shared by several processes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from algorithm.processes.shared_memory import SharedMemory
from algorithm.rollout import Rollout
from algorithm.training.learner import Learner


class SharedLearner(Learner):
    """A learner of one of several processes (A3C; Mnih et al. 2016, Algorithm S3).

    Gradients are computed with the copy of the parameters that this process also acts with. `apply_gradients` steps the
    shared parameters, with the shared moments, and then copies them. `observe` merges a rollout into the shared
    statistics.

    Args:
        arguments: the positional arguments of Learner, without `place`.
        memory: the shared memory.
        lock: `base_config.worker_lock`.
    """

    def __init__(self, *arguments: Any, memory: SharedMemory, lock: str):
        super().__init__(*arguments, place=memory.place)  # type: ignore[misc]
        self._memory, self._lock = memory, lock
        self.fetch()

    def fetch(self) -> None:
        """Copy the shared parameters and statistics to the networks of this process."""
        with self._guard_copy():
            self.parameters.fetch()

    def observe(self, rollout: Rollout) -> None:
        with self._memory.change() if self._lock == "full" else self._guard_copy():
            self.parameters.fetch_statistics()
            super().observe(rollout)
            self.parameters.publish_statistics()

    def apply_gradients(self) -> None:
        if self._lock != "full":
            super().apply_gradients()
            self.fetch()
            return
        with self._memory.change():
            super().apply_gradients()
            self.parameters.fetch()

    def _guard_copy(self) -> AbstractContextManager[None]:
        return nullcontext() if self._lock == "none" else self._memory.lock()
