"""Function calls in a subprocess, since native code may hang or end its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from typing import Any

from algorithm.cli.doctor.check import describe_error, describe_timeout
from algorithm.errors import describe_exit

TIMEOUT = 60.0  # seconds
# The folders that modules come from are those of this process, whatever the working directory holds.
BOOTSTRAP = (
    r"import sys; sys.path[:] = sys.argv[1].split('\n'); "
    "import algorithm.cli.doctor.subprocess_probe as probe; probe.serve_call()"
)


class SubprocessFailed(Exception):
    """An error for a call that returned no value; the message has the reason."""


class SubprocessTimeout(SubprocessFailed, TimeoutError):
    """An error for a call that did not return in time."""


def run_in_subprocess(function: str, *arguments: Any, limit: float = TIMEOUT) -> Any:
    """Return what `module:function` returns for `arguments`, in another process; JSON must hold both.

    Raises SubprocessFailed if it raises or crashes, SubprocessTimeout if it takes more than `limit` seconds.
    """
    command = [sys.executable, "-c", BOOTSTRAP, "\n".join(sys.path), function, json.dumps(arguments)]
    try:
        process = subprocess.run(command, capture_output=True, timeout=limit, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise SubprocessTimeout(describe_timeout(limit)) from error
    try:
        reply = json.loads(process.stdout)
    except ValueError as error:
        raise SubprocessFailed(_describe_end(process)) from error
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


def _describe_end(process: subprocess.CompletedProcess) -> str:
    """Return how a process without a result ended, with the last line of its standard error."""
    lines = process.stderr.decode(errors="replace").strip().splitlines()
    return "it " + describe_exit(process.returncode) + (f": {lines[-1].strip()}" if lines else "")
