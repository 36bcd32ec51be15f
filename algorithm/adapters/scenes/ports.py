"""Ports of this machine on which the trainer listens for players."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from algorithm.adapters.adapter import EnvironmentStartError

LOOPBACK = "127.0.0.1"
LAST_PORT = 65535
LISTEN_STATE = "0A"  # the state of a listening socket in Linux's tables
SOCKET_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def check_ports(numbers: Sequence[int], advice: str) -> str:
    """Return a line about ports that are free.

    Args:
        numbers: Ports, ascending.
        advice: Advice for a port that is taken; it follows "end it, or" in the message.

    Raises:
        EnvironmentStartError: If another program listens on a port, or a number is not a valid port.
    """
    if numbers[-1] > LAST_PORT:
        raise EnvironmentStartError(f"{numbers[-1]} is not a valid port, the largest is {LAST_PORT}: {advice}")
    if taken := [f"{port} is taken by {describe_holder(port)}" for port in numbers if is_taken(port)]:
        raise EnvironmentStartError(f"{', '.join(taken)}: end it, or {advice}")
    return f"{numbers[0]} is free" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} are free"


def is_taken(port: int) -> bool:
    """Return whether another program listens on the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if os.name == "posix":  # a port whose last connection has just been closed is free
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False


def find_free_port() -> int:
    """Return a port on which no program listens."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def describe_holder(port: int) -> str:
    """Return the name of the program that listens on the port, known on Linux only, for processes of the same user."""
    sockets = set()  # that listen on the port
    for table in filter(Path.exists, SOCKET_TABLES):  # on Linux
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == LISTEN_STATE:
                sockets.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*") if sockets else ():
        try:
            if any(file.resolve().name in sockets for file in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (process {process.name})"
        except OSError:  # a process of another user, or one that has just ended
            continue
    return "another program"


def make_port_error(port: int) -> EnvironmentStartError:
    """Return the error for a port on which another program listens."""
    return EnvironmentStartError(f"port {port} is taken by {describe_holder(port)}: end it, or give another port")
