"""Questions that a process of its own answers: to load native code may hang, or end the process that does it."""

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
BOOTSTRAP = r"import sys; sys.path[:] = sys.argv[1].split('\n'); import algorithm.cli.doctor.subprocess_probe as a; a.serve_call()"


class SubprocessFailed(Exception):
    """There is no answer, and the message says why."""


class SubprocessTimeout(SubprocessFailed, TimeoutError):
    """There was no answer in time."""


def run_in_subprocess(function: str, *arguments: Any, limit: float = TIMEOUT) -> Any:
    """Return what `module:function` returns for `arguments`, in another process; JSON must hold both.

    Raises Lost where it raises or crashes, SubprocessTimeout where it takes more than `limit` seconds.
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
    """The other process: tell what was asked for, and nothing else, on standard output."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what else is printed, by native code too
    module, _, name = sys.argv[2].partition(":")
    try:
        reply = {"value": getattr(import_module(module), name)(*json.loads(sys.argv[3]))}
    except Exception as error:  # whatever was asked about
        reply = {"error": describe_error(error)}
    print(json.dumps(reply), file=output, flush=True)
    os._exit(0)  # whatever threads there are


def _describe_end(process: subprocess.CompletedProcess) -> str:
    """How a process ended that told nothing, and the last that it said."""
    lines = process.stderr.decode(errors="replace").strip().splitlines()
    return "it " + describe_exit(process.returncode) + (f": {lines[-1].strip()}" if lines else "")
