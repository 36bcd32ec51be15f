"""Keeps a player from outliving its trainer; a program of its own that imports nothing of this project.

`python keeper.py GRACE COMMAND...` starts the command and prints `pid N`, and `exit CODE LINES` when it ended, with the
last lines that it printed; or `failed WHY`. As soon as its standard input ends, since the trainer closed it or ended in
any way, the player has GRACE seconds to leave; a byte there ends the player at once. All that the player started
ends with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

LINES, WIDTH = 5, 200  # of the last output of a player
TAIL = 4096  # bytes in which these lines are looked for


def main(grace: float, command: Sequence[str]) -> None:
    """Run the command until it ends, or has to."""
    try:
        player = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **apart()
        )
    except OSError as error:
        tell(f"failed {error}")
        return
    tell(f"pid {player.pid}")
    ended = threading.Event()
    threading.Thread(target=outlive, args=(player.pid, ended, grace), daemon=True).start()
    printed = bytearray()
    reader = threading.Thread(target=read, args=(player.stdout, printed), daemon=True)
    reader.start()
    code = player.wait()
    ended.set()
    end(player.pid)
    reader.join(grace)
    tell(f"exit {code} {last_lines(bytes(printed))}")


def read(output: Any, tail: bytearray) -> None:
    """Read all that a player prints, so that it never waits, and keep the end of it."""
    while data := os.read(output.fileno(), 2**16):
        tail += data
        del tail[:-TAIL]


def last_lines(text: bytes) -> str:
    """Return the last lines that are not empty as one line; nothing if there are none."""
    lines = [" ".join(line.split()) for line in text.decode(errors="replace").splitlines()]
    return " | ".join([line[:WIDTH] for line in lines if line][-LINES:])


def outlive(pid: int, ended: threading.Event, grace: float) -> None:
    """Wait for the trainer's end of the pipe, and end what is still there then."""
    told = os.read(0, 1)
    if not ended.wait(0 if told else grace):
        end(pid)


def end(pid: int) -> None:
    """Kill a player and all that it started; harmless where nothing is left."""
    if sys.platform == "win32":
        subprocess.run(["taskkill", "/F", "/T", "/PID", str(pid)], capture_output=True, check=False)
        return
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # macOS names a group of zombies so
        pass


def apart() -> dict[str, Any]:
    """What keeps the signals of a terminal, such as Ctrl-C, from a new process; the trainer decides when it ends."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def tell(line: str) -> None:
    """One line to the trainer, if it is still there."""
    try:
        os.write(1, f"{line}\n".encode())
    except OSError:
        pass


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
    os._exit(0)  # the thread that reads may still wait
