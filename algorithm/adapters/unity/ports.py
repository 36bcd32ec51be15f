"""Ports of this machine: which are taken, and who has them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

LOOPBACK = "127.0.0.1"
EDITOR_PORT, FIRST_PORT = 5004, 5005  # of the editor and of the first player, unless something else is said
LISTEN_STATE = "0A"  # the state of such a socket in Linux's tables
SOCKET_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def is_taken(port: int, host: str = LOOPBACK) -> bool:
    """Whether another program listens on the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if os.name == "posix":  # a port whose last connection has just been closed is free
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def find_free_port(host: str = LOOPBACK) -> int:
    """A port that nobody listens on."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def describe_holder(port: int) -> str:
    """Who listens on the port, as far as the system tells: Linux does, of the processes of the same user."""
    sockets = {f"socket:[{inode}]" for inode in _find_inodes(port)}
    for process in Path("/proc").glob("[0-9]*") if sockets else ():
        try:
            if any(str(file.readlink()) in sockets for file in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (process {process.name})"
        except OSError:  # somebody else's, or it has just ended
            continue
    return "another program"


def _find_inodes(port: int) -> Iterator[str]:
    """The inodes of the sockets that listen on the port."""
    for table in SOCKET_TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:  # not Linux
            continue
        for line in lines:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == LISTEN_STATE:
                yield fields[9]
