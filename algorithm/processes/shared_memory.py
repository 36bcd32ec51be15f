"""Memory that the processes of a run share, with a lock that the system releases when its holder ends; its learner."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from multiprocessing import reduction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithm.rollout import Rollout
from algorithm.training.learner import Learner
from algorithm.training.timer import PHASES

with suppress(ImportError):  # a system without it has no workers
    import fcntl

PAGE = mmap.ALLOCATIONGRANULARITY


class SharedMemory:
    """Memory of several processes, in a file without a name, which the system deletes with the last process.

    All processes place their tensors in the same order, with the same sizes. The first process to place a tensor is the
    one that created the memory; the tensor keeps its values. Each tensor has a shadow of the same size. `change` copies
    all tensors to their shadows before it changes them: if the process is killed within the block, the next holder of
    the lock restores the tensors.

    Args:
        workers: the number of workers.

    Attributes:
        counts: [workers, 2] env steps and updates that each worker has made since the memory was created.
        seconds: [workers, phases] seconds that each worker has spent in each phase.
    """

    def __init__(self, workers: int):
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("samara")
        else:
            with tempfile.TemporaryFile() as file:
                self._descriptor = os.dup(file.fileno())
        self._creates = True
        self._map_header(workers)

    def __getstate__(self) -> dict[str, Any]:
        """Pass the descriptor of the file to a spawned process."""
        return {"descriptor": reduction.DupFd(self._descriptor), "workers": len(self.counts)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._descriptor = state["descriptor"].detach()
        self._creates = False
        self._map_header(state["workers"])

    def place(self, tensor: Tensor) -> Tensor:
        """Return the next shared tensor, which has the shape and dtype of `tensor`; a new one has its values."""
        if not tensor.numel():
            return tensor
        shared, shadow = self._map(tensor), self._map(tensor)
        self._tensors.append((shared, shadow))
        return shared

    @property
    def env_steps(self) -> int:
        """The env steps of all workers since the memory was created."""
        return int(self.counts[:, 0].sum())

    @property
    def limit(self) -> int:
        """The `env_steps` at which every worker pauses after its tick."""
        return int(self._flags[1])

    @limit.setter
    def limit(self, env_steps: int) -> None:
        self._flags[1] = env_steps

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock within the block. A change that its holder did not complete is undone before."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            if self._flags[0]:
                for shared, shadow in self._tensors:
                    shared.copy_(shadow)
                self._flags[0] = 0
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    @contextmanager
    def change(self) -> Iterator[None]:
        """Hold the lock within the block, which may change the tensors and takes effect as a whole or not at all."""
        with self.lock():
            for shared, shadow in self._tensors:
                shadow.copy_(shared)
            self._flags[0] = 1
            yield
            self._flags[0] = 0

    def close(self) -> None:
        """Close the file. Its memory is freed with the last process and tensor that use it."""
        os.close(self._descriptor)

    def _map_header(self, workers: int) -> None:
        self._end = 0
        self._tensors: list[tuple[Tensor, Tensor]] = []
        # Whether the tensors are half changed, and `limit`.
        self._flags: np.ndarray = self._map(torch.zeros(2, dtype=torch.int64)).numpy()
        self.counts: np.ndarray = self._map(torch.zeros(workers, 2, dtype=torch.int64)).numpy()
        self.seconds: np.ndarray = self._map(torch.zeros(workers, len(PHASES), dtype=torch.float64)).numpy()

    def _map(self, tensor: Tensor) -> Tensor:
        """Return the tensor at the end of the file, which is extended by it if this process created the file."""
        start, size = self._end, -(-tensor.numel() * tensor.element_size() // PAGE) * PAGE
        self._end += size
        if self._creates:
            os.ftruncate(self._descriptor, self._end)
        buffer = mmap.mmap(self._descriptor, size, offset=start)
        shared = torch.frombuffer(buffer, dtype=tensor.dtype, count=tensor.numel()).view(tensor.shape)
        if self._creates:
            shared.copy_(tensor)
        return shared


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
