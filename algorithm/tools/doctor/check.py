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

from algorithm.errors import describe_exit, summarize_error

OK = "ok"
MISSING = "missing"  # not installed, and not required
BROKEN = "broken"  # required, and it does not work
TIMEOUT = "timeout"  # no result in time, perhaps because the machine is busy

CALL_LIMIT = 60.0  # seconds that a call may take
# Modules are imported from the folders of this process, not from the working directory.
BOOTSTRAP = (
    r"import sys; sys.path[:] = sys.argv[1].split('\n'); "
    "import algorithm.tools.doctor.check as check; check.serve_call()"
)


class Missing(Exception):
    """An error for something that is not installed; the message is what to do."""


@dataclass(frozen=True)
class Finding:
    """A record of the result of a check: its state, and a line with what was found, or what to do."""

    name: str
    state: str
    line: str


@dataclass(frozen=True)
class Check:
    """A check of one thing.

    Attributes:
        name: Name of the check, for people.
        run: Returns a line about what was found. It may raise `Missing`; any other error means that it is broken,
            TimeoutError that there was no result in time.
        limit: Seconds after which there is no result.
        is_required: Whether what is missing is broken.
    """

    name: str
    run: Callable[[], str]
    limit: float = 200.0
    is_required: bool = False

    def __call__(self) -> Finding:
        """Run the check in a thread, which does not keep the process alive if it never returns."""
        findings: list[Finding] = []
        thread = threading.Thread(target=lambda: findings.append(self.find()), daemon=True)
        thread.start()
        thread.join(self.limit)
        return findings[0] if findings else Finding(self.name, TIMEOUT, describe_timeout(self.limit))

    def find(self) -> Finding:
        """Run the check in this thread."""
        try:
            state, line = OK, self.run()
        except Missing as error:
            state, line = BROKEN if self.is_required else MISSING, str(error)
        except TimeoutError as error:
            state, line = TIMEOUT, str(error)
        except Exception as error:  # a broken package may raise anything
            state, line = BROKEN, describe_error(error)
        return Finding(self.name, state, " ".join(line.split()))

    def as_required(self) -> Check:
        """Return this check for something that is required."""
        return replace(self, is_required=True)


def describe_timeout(limit: float) -> str:
    """Return the line of a time-out, which may be the fault of a busy machine."""
    return f"no answer within {limit:g} s: try again when the machine is less busy"


def describe_error(error: BaseException) -> str:
    """Return an error as text, with its type unless it is an error of this project."""
    return str(error) if type(error).__module__.startswith("algorithm.") else summarize_error(error)


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
