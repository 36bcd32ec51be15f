"""A check of one thing, which reports any error as its finding, and calls in a subprocess for native code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from algorithm.errors import describe_exit

OK = "ok"
MISSING = "missing"  # not installed, and not required
BROKEN = "broken"  # required, and it does not work
TIMEOUT = "timeout"  # no result in time, perhaps because the machine is busy

Outcome = tuple[str, str]  # one of these states, and a line: what was found, or what to do
CALL_LIMIT = 60.0  # seconds that a call may take
# Modules are imported from the folders of this process, not from the working directory.
BOOTSTRAP = (
    r"import sys; sys.path[:] = sys.argv[1].split('\n'); "
    "import algorithm.tools.doctor.check as check; check.serve_call()"
)


@dataclass(frozen=True)
class Finding:
    """A record of the result of a check."""

    name: str
    state: str
    line: str


@dataclass(frozen=True)
class Check:
    """A check of one thing. `run` may raise and may take `limit` seconds; TimeoutError counts as a time-out, too.

    What is missing is broken if it is required.
    """

    name: str
    run: Callable[[], Outcome]
    limit: float = 200.0
    is_required: bool = False

    def __call__(self) -> Finding:
        """Run the check: `broken` if it raises, `timeout` if it does not return within `limit`."""
        outcomes: list[Outcome] = []
        # A daemon thread, so that a check that never returns does not keep the process alive.
        thread = threading.Thread(target=lambda: outcomes.append(self._run_safely()), daemon=True)
        thread.start()
        thread.join(self.limit)
        state, line = outcomes[0] if outcomes else (TIMEOUT, describe_timeout(self.limit))
        return Finding(self.name, BROKEN if self.is_required and state == MISSING else state, " ".join(line.split()))

    def as_required(self) -> Check:
        """Return this check for something that is required."""
        return replace(self, is_required=True)

    def _run_safely(self) -> Outcome:
        try:
            return self.run()
        except TimeoutError as error:
            return TIMEOUT, str(error)
        except Exception as error:  # a broken package may raise anything
            return BROKEN, describe_error(error)


def describe_timeout(limit: float) -> str:
    """Return the line of a time-out, which may be the fault of a busy machine."""
    return f"no answer within {limit:g} s: try again when the machine is less busy"


def describe_error(error: BaseException) -> str:
    """Return an error as one line, with its type unless it is an error of this project."""
    line = " ".join(str(error).split())
    return line if type(error).__module__.startswith("algorithm.") else f"{type(error).__name__}: {line}"


class SubprocessFailed(Exception):
    """An error for a call that returned no value; the message has the reason."""


def run_in_subprocess(function: str, *arguments: Any, limit: float = CALL_LIMIT) -> Any:
    """Return what `module:function` returns for `arguments`, in another process; JSON must hold both.

    Raises SubprocessFailed if it raises or crashes, TimeoutError if it takes more than `limit` seconds.
    """
    command = [sys.executable, "-c", BOOTSTRAP, "\n".join(sys.path), function, json.dumps(arguments)]
    try:
        process = subprocess.run(command, capture_output=True, timeout=limit, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(describe_timeout(limit)) from error
    try:
        reply = json.loads(process.stdout)
    except ValueError as error:
        lines = process.stderr.decode(errors="replace").strip().splitlines()
        end = "it " + describe_exit(process.returncode) + (f": {lines[-1].strip()}" if lines else "")
        raise SubprocessFailed(end) from error
    if "error" in reply:
        raise SubprocessFailed(reply["error"])
    return reply["value"]


def serve_call() -> None:
    """Execute the call in the subprocess, and print nothing but its result on standard output."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # all other output, also that of native code
    module, _, name = sys.argv[2].partition(":")
    try:
        reply = {"value": getattr(import_module(module), name)(*json.loads(sys.argv[3]))}
    except Exception as error:  # a function may raise anything
        reply = {"error": describe_error(error)}
    print(json.dumps(reply), file=output, flush=True)
    os._exit(0)  # even if other threads are still running
