"""The communication of several learners, by torch.distributed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from algorithm.errors import summarize_error


class LearnerUnreachable(Exception):
    """Another learner has ended, or did not make the call that this learner waits for in time."""


class LearnerGroup:
    """A group of processes with one learner each, or with one for each role.

    Each call waits for all members, which have to make the same calls in the same order. After an error, no further
    call is possible: the processes start again from the last checkpoint. A process is a member of one group at a time.

    Args:
        address: the place where the members meet: `tcp://HOST:PORT` of member 0, or `file:///PATH` of a file that does
            not exist yet, on one machine. Connections are not authenticated, and so belong into a private network; the
            environment variable GLOO_SOCKET_IFNAME chooses the interface.
        rank: the number of this member, from 0.
        size: the number of members.
        timeout: the longest time that a call waits for the other members, in seconds.
        backend: `gloo`; `nccl` for learners with a GPU each: NCCL sums what is on GPUs, and gloo all that is on CPUs.

    Raises:
        LearnerUnreachable: a member did not come, here or in a later call.
    """

    def __init__(self, address: str, *, rank: int, size: int, timeout: float, backend: str = "gloo"):
        self.rank, self.size, self.timeout = rank, size, timeout
        with self._explain_errors():
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if backend == "nccl" else backend,
                init_method=address,
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=timeout),
            )

    def gather(self, *values: float) -> np.ndarray:
        """Return the numbers of all members, [size, n] float64, given the n numbers of this member."""
        rows = torch.zeros(self.size, len(values), dtype=torch.float64)
        rows[self.rank] = torch.tensor(values, dtype=torch.float64)
        self.sum(rows)
        return rows.numpy()

    def sum(self, tensor: Tensor) -> None:
        """Set `tensor` to the sum over the members. All of them receive the same bits."""
        with self._explain_errors():
            dist.all_reduce(tensor)

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Set `tensor` to that of the member with the rank `source`."""
        with self._explain_errors():
            dist.broadcast(tensor, source)

    def merge_moments(self, count: int, mean: float, std: float) -> tuple[int, float, float]:
        """Return the number, mean and standard deviation of the values of all members (Chan et al. 1983).

        Args:
            count: the number of values of this member.
            mean: their mean; any finite number without values.
            std: their standard deviation, with the divisor count - 1; any finite number with fewer than two values.
        """
        counts, means, stds = self.gather(count, mean, std).T
        total = counts.sum()
        merged_mean = (counts * means).sum() / max(total, 1)
        squared_deviations = (counts - 1).clip(min=0) * stds**2 + counts * (means - merged_mean) ** 2
        return int(total), float(merged_mean), float(np.sqrt(squared_deviations.sum() / max(total - 1, 1)))

    def close(self) -> None:
        """End the communication of this process."""
        dist.destroy_process_group()

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Raise LearnerUnreachable for an error of torch.distributed within the block."""
        try:
            yield
        except RuntimeError as error:
            raise LearnerUnreachable(
                f"learner {self.rank} of {self.size} cannot continue: another learner has ended, or did not answer "
                f"within {self.timeout:g} s; resume from the last checkpoint ({summarize_error(error)})"
            ) from error
