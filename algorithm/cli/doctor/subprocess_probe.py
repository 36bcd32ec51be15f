"""Questions that a process of its own answers: to load native code may hang, or end the process that does it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from typing import Any

from algorithm.adapters.unity.os_process import describe
from algorithm.cli.doctor.check import described, no_answer

LIMIT = 60.0  # seconds
# The folders that modules come from are those of this process, whatever the working directory holds.
START = (
    r"import sys; sys.path[:] = sys.argv[1].split('\n'); import algorithm.cli.doctor.subprocess_probe as a; a.answer()"
)


class Lost(Exception):
    """There is no answer, and the message says why."""


class TimedOut(Lost, TimeoutError):
    """There was no answer in time."""


def ask(function: str, *told: Any, limit: float = LIMIT) -> Any:
    """Return what `module:function` returns for `told`, in another process; JSON must hold both.

    Raises Lost where it raises or crashes, TimedOut where it takes more than `limit` seconds.
    """
    command = [sys.executable, "-c", START, "\n".join(sys.path), function, json.dumps(told)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=limit, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise TimedOut(no_answer(limit)) from error
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        raise Lost(_last_words(done)) from error
    if "error" in answer:
        raise Lost(answer["error"])
    return answer["value"]


def answer() -> None:
    """The other process: tell what was asked for, and nothing else, on standard output."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what else is printed, by native code too
    module, _, name = sys.argv[2].partition(":")
    try:
        told = {"value": getattr(import_module(module), name)(*json.loads(sys.argv[3]))}
    except Exception as error:  # whatever was asked about
        told = {"error": described(error)}
    print(json.dumps(told), file=output, flush=True)
    os._exit(0)  # whatever threads there are


def _last_words(done: subprocess.CompletedProcess) -> str:
    """How a process ended that told nothing, and the last that it said."""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return "it " + describe(done.returncode) + (f": {lines[-1].strip()}" if lines else "")
