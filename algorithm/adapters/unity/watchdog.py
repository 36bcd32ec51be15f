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

MAX_LINES, MAX_WIDTH = 5, 200  # of the last output of a player
TAIL_BYTES = 4096  # bytes in which these lines are looked for


def main(grace: float, command: Sequence[str]) -> None:
    """Run the command until it ends, or has to."""
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
    reader = threading.Thread(target=read_output, args=(player.stdout, printed), daemon=True)
    reader.start()
    code = player.wait()
    has_exited.set()
    kill_player(player.pid)
    reader.join(grace)
    send_line(f"exit {code} {last_lines(bytes(printed))}")


def read_output(output: Any, tail: bytearray) -> None:
    """Read all that a player prints, so that it never waits, and keep the end of it."""
    while data := os.read(output.fileno(), 2**16):
        tail += data
        del tail[:-TAIL_BYTES]


def last_lines(text: bytes) -> str:
    """Return the last lines that are not empty as one line; nothing if there are none."""
    lines = [" ".join(line.split()) for line in text.decode(errors="replace").splitlines()]
    return " | ".join([line[:MAX_WIDTH] for line in lines if line][-MAX_LINES:])


def kill_after_trainer(pid: int, has_exited: threading.Event, grace: float) -> None:
    """Wait for the trainer's end of the pipe, and end what is still there then."""
    stop_byte = os.read(0, 1)
    if not has_exited.wait(0 if stop_byte else grace):
        kill_player(pid)


def kill_player(pid: int) -> None:
    """Kill a player and all that it started; harmless where nothing is left."""
    if sys.platform == "win32":
        subprocess.run(["taskkill", "/F", "/T", "/PID", str(pid)], capture_output=True, check=False)
        return
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # macOS names a group of zombies so
        pass


def make_detach_args() -> dict[str, Any]:
    """What keeps the signals of a terminal, such as Ctrl-C, from a new process; the trainer decides when it ends."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def send_line(line: str) -> None:
    """One line to the trainer, if it is still there."""
    try:
        os.write(1, f"{line}\n".encode())
    except OSError:
        pass


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
    os._exit(0)  # the thread that reads may still wait
