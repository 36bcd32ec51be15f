"""A learner that averages its gradients with those of other processes, and their connection by torch.distributed."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from algorithm.agents.agent import LossResult
from algorithm.errors import LearnerUnreachable, summarize_error
from algorithm.rollout import Rollout
from algorithm.training.learner import Learner

LOOPBACK = "127.0.0.1"
INTERFACE = "GLOO_SOCKET_IFNAME"  # the environment variable with the network interface that gloo uses
GET_INTERFACE_ADDRESS = 0x8915  # SIOCGIFADDR, a request to Linux


class LearnerConnection:
    """A connection of processes with one learner each, or with one for each role.

    Each call waits for all members, which have to make the same calls in the same order. After an error, no further
    call is possible: the processes start again from the last checkpoint. A process has one connection at a time.

    Args:
        address: the place where the members meet: `tcp://HOST:PORT` of member 0, or `file:///PATH` of a file that does
            not exist yet, on one machine. Connections are not authenticated, and so belong into a private network. They
            use the interface by which this process reaches the address, the loopback interface for a file; the
            environment variable GLOO_SOCKET_IFNAME chooses another one.
        rank: the number of this member, from 0.
        size: the number of members.
        timeout: the longest time that a call waits for the other members, in seconds.
        backend: `gloo`; `nccl` for learners with a GPU each: NCCL sums what is on GPUs, and gloo all that is on CPUs.

    Attributes:
        waiting_seconds: the seconds that this process has spent in calls, which wait for the other members.

    Raises:
        LearnerUnreachable: a member did not come, here or in a later call.
    """

    def __init__(self, address: str, *, rank: int, size: int, timeout: float, backend: str = "gloo"):
        self.rank, self.size, self.timeout = rank, size, timeout
        self.waiting_seconds = 0.0
        with self._call():
            if INTERFACE not in os.environ and (interface := find_interface(address)):
                os.environ[INTERFACE] = interface
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
        with self._call():
            dist.all_reduce(tensor)

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Set `tensor` to that of the member with the rank `source`."""
        with self._call():
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

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Count the seconds of the block, and raise LearnerUnreachable for an error of torch.distributed in it."""
        start = perf_counter()
        try:
            yield
        except (RuntimeError, OSError) as error:
            raise LearnerUnreachable(
                f"learner {self.rank} of {self.size} cannot continue: another learner has ended, or did not answer "
                f"within {self.timeout:g} s; resume from the last checkpoint ({summarize_error(error)})"
            ) from error
        finally:
            self.waiting_seconds += perf_counter() - start


@contextmanager
def close_on_error() -> Iterator[None]:
    """End the communication after an exception in the block, so that no other learner waits for this one."""
    try:
        yield
    except BaseException:
        close_connection()
        raise


def close_connection() -> None:
    """End the communication of this process, if there is any: calls of other members then raise LearnerUnreachable."""
    if dist.is_initialized():
        dist.destroy_process_group()


def find_interface(address: str) -> str | None:
    """Return the network interface by which this process reaches an address of a connection; None if it is not found.

    Only Linux and the loopback interface of macOS are supported.
    """
    host = urlsplit(address).hostname or LOOPBACK
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.connect((host, 9))  # chooses a route, and sends nothing
        own_address = udp.getsockname()[0]
        if sys.platform != "linux":
            return "lo0" if sys.platform == "darwin" and own_address == LOOPBACK else None
        import fcntl  # which Windows has not

        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no address
                reply = fcntl.ioctl(udp.fileno(), GET_INTERFACE_ADDRESS, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(reply[20:24]) == own_address:
                    return name
    return None


class AveragingLearner(Learner):
    """A learner of one of several processes that make the same steps, so that their parameters stay the same.

    Each learner has its own rollouts and replay, and no natural step, which needs the whole batch. An update is
    `compute_gradients`, `average_gradients`, and then `apply_gradients`. The average weights the gradient of each
    learner by the number of valid rows in its batch. It is thus the gradient of the batch that consists of the batches
    of all learners; it is clipped after that. A gradient that is not finite makes the average not finite, so that all
    learners skip the step. Networks, moments of optimizers, running statistics and counters are the same in all
    learners; replay, priorities, noise and generators are not.

    Args:
        arguments: the positional arguments of Learner, without `place`.
        connection: connects the learners.
        synchronize_every: the number of updates after which the parameters are copied from learner 0, since other kinds
            of processors may round in other ways.

    Raises:
        LearnerUnreachable: another learner has ended or does not answer, here or in a later call.
    """

    def __init__(self, *arguments: Any, connection: LearnerConnection, synchronize_every: int = 1000):
        self._shared_tensors: list[Tensor] = []  # those that are the same in all learners
        super().__init__(*arguments, place=self._keep_shared)  # type: ignore[misc]
        self.connection, self.synchronize_every = connection, synchronize_every
        if self.agent.merges_moments:
            self.agent.merge_moments = connection.merge_moments
        self.synchronize()

    def synchronize(self) -> None:
        """Copy what all learners share from learner 0, as after it has restored a checkpoint."""
        for tensor in self._shared_tensors:
            self.connection.broadcast(tensor, 0)
        self._mark_outdated()

    def observe(self, rollout: Rollout | None) -> None:
        """Update the running statistics with the rollouts of all learners, in the order of their ranks.

        Args:
            rollout: the collected rollout of this learner; None if it has none.
        """
        for rank in range(self.connection.size):
            if rank == self.connection.rank and rollout is not None:
                super().observe(rollout)
            for tensor in (self.parameters.statistics, torch.from_numpy(self._counts)):
                self.connection.broadcast(tensor, rank)
        self._mark_outdated()

    def average_gradients(self, batch: Rollout | None, result: LossResult | None) -> bool:
        """Replace the gradient of a batch by the average over the learners.

        The changes of the running statistics of batch norms are averaged with the same weights.

        Args:
            batch: the batch of the gradient; None if this learner has no further batch.
            result: the result of its losses, or None.

        Returns:
            Whether a step follows. There is none if no learner has a batch, or if the mean KL divergence over the
            batches of all learners ends the epochs.
        """
        if batch is None and self.agent.merges_moments:
            self.connection.merge_moments(0, 0.0, 0.0)  # as the learners with a batch do in their losses
        rows = 0 if batch is None else int(batch.valid[batch.burn_in :].sum())
        kl_excess = result.kl_excess if result else 0.0
        groups = list(self.parameters.group_slices)
        is_stepped = [batch is not None and name not in self._idle_groups for name in groups]
        numbers = self.connection.gather(batch is not None, rows, rows * kl_excess, *is_stepped)
        n_batches, total_rows, total_excess, *n_stepped = numbers.sum(0)
        if not n_batches or total_excess > 0:
            return False
        self._idle_groups = {name for name, n in zip(groups, n_stepped, strict=True) if not n}
        for tensor in (self.parameters.gradient, self.parameters.increments):
            if batch is None:
                tensor.zero_()
            else:
                tensor *= float(rows / max(total_rows, 1))
            if len(tensor):
                self.connection.sum(tensor)
        return True

    def apply_gradients(self) -> None:
        """Step by the average gradient."""
        super().apply_gradients()
        is_reset = self.agent.reset and self.updates % self.agent.reset.every == 0  # by the generator of each process
        if is_reset or self.updates % self.synchronize_every == 0:
            self.synchronize()

    def _keep_shared(self, tensor: Tensor) -> Tensor:
        self._shared_tensors.append(tensor)
        return tensor
