"""The communication of several learners, by torch.distributed."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import perf_counter
from urllib.parse import urlsplit

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from algorithm.errors import LearnerUnreachable, summarize_error

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
        if sys.platform == "linux":
            return _find_interface_of(own_address, udp)
    return "lo0" if sys.platform == "darwin" and own_address == LOOPBACK else None


def _find_interface_of(address: str, udp: socket.socket) -> str | None:
    """Return the interface that has an address of this machine."""
    import fcntl  # which Windows has not

    for _, name in socket.if_nameindex():
        request = struct.pack("256s", name.encode())
        try:
            reply = fcntl.ioctl(udp.fileno(), GET_INTERFACE_ADDRESS, request)
        except OSError:  # it has no address
            continue
        if socket.inet_ntoa(reply[20:24]) == address:
            return name
    return None
