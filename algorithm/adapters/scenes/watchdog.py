"""A program that ends a player when its trainer ends; it imports nothing of this project.

`python watchdog.py GRACE LOG COMMAND...` starts the command and prints `pid N`; when the command has ended, it prints
`exit CODE LINES` with the last lines of the command's output, which the file LOG receives, unless its name is empty. If
the command cannot be started, it prints `failed REASON`. When its standard input ends, because the trainer closed it or
ended in any way, the player has GRACE seconds to quit before it is killed; a byte on the standard input kills the
player at once. All processes that the player started end with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

MAX_LINES, MAX_WIDTH = 5, 200  # largest number of lines that are reported, and of characters in each
TAIL_BYTES = 4096  # bytes at the end of the output that contain these lines


def main(grace: float, log: str, command: Sequence[str]) -> None:
    """Run the command until it ends or is killed; `grace` is in seconds, `log` the name of a file for its output."""
    try:
        player = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **make_detach_args()
        )
    except OSError as error:
        send_line(f"failed {error}")
        return
    send_line(f"pid {player.pid}")
    has_exited = threading.Event()
    threading.Thread(target=kill_after_trainer, args=(player.pid, has_exited, grace), daemon=True).start()
    printed = bytearray()
    reader = threading.Thread(target=read_output, args=(player.stdout, printed, log), daemon=True)
    reader.start()
    code = player.wait()
    has_exited.set()
    kill_player(player.pid)
    reader.join(grace)
    send_line(f"exit {code} {last_lines(bytes(printed))}")


def read_output(output: Any, tail: bytearray, log: str) -> None:
    """Read the output of a player, which would block otherwise; keep its end in `tail`, and all of it in a file.

    What cannot be written, as on a full disk, is dropped.
    """
    with ExitStack() as stack:
        file = None
        with suppress(OSError):
            file = stack.enter_context(Path(log or os.devnull).open("wb", buffering=0))
        while data := os.read(output.fileno(), 2**16):
            with suppress(OSError):
                if file:
                    file.write(data)
            tail += data
            del tail[:-TAIL_BYTES]


def last_lines(text: bytes) -> str:
    """Return the last lines that are not empty, as one line."""
    lines = [" ".join(line.split()) for line in text.decode(errors="replace").splitlines()]
    return " | ".join([line[:MAX_WIDTH] for line in lines if line][-MAX_LINES:])


def kill_after_trainer(pid: int, has_exited: threading.Event, grace: float) -> None:
    """Wait until the trainer closes the pipe or sends a byte, and kill the player if it does not quit."""
    stop_byte = os.read(0, 1)
    if not has_exited.wait(0 if stop_byte else grace):
        kill_player(pid)


def kill_player(pid: int) -> None:
    """Kill a player and all processes that it started, if there are any left."""
    if sys.platform == "win32":
        subprocess.run(["taskkill", "/F", "/T", "/PID", str(pid)], capture_output=True, check=False)
        return
    with suppress(ProcessLookupError, PermissionError):  # macOS raises the latter for a group of zombies
        os.killpg(pid, signal.SIGKILL)


def make_detach_args() -> dict[str, Any]:
    """Return arguments of Popen that keep the signals of a terminal, such as Ctrl-C, from the new process."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def send_line(line: str) -> None:
    """Send a line to the trainer, if it still reads."""
    with suppress(OSError):
        os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2], sys.argv[3:])
    os._exit(0)  # the reader thread may still block
