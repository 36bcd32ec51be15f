"""What a command tells: lines for people, one line of JSON for scripts, and a copy in a file."""

from __future__ import annotations

import json
import os
import sys
import traceback
from functools import cached_property
from pathlib import Path
from typing import Any

from algorithm.adapters.standard_streams import Surviving, survive_lost_readers

WIDTH = 200  # of tables where there is no terminal


class Output:
    """Lines go to standard output; with `as_json` to standard error, and `result` follows on standard output."""

    def __init__(self, as_json: bool):
        self.as_json = as_json
        self.result: dict[str, Any] = {}  # what the command reached so far
        self.saved = ""  # what is saved of a run that was interrupted: a sentence after a space
        self.removed: dict[str, str] = {}  # folders that failed runs had, and those that their files were copied from
        self._log: Surviving | None = None
        if as_json and sys.stdout is sys.__stdout__:
            _own_standard_output()
        survive_lost_readers()

    @cached_property
    def console(self):
        """Where people read (rich takes a moment to load, so not before there is something to say)."""
        from rich.console import Console

        console = Console(stderr=self.as_json, highlight=False, markup=False, soft_wrap=True)
        if not console.is_terminal:
            console.width = WIDTH
        return console

    def keep(self, path: Path) -> None:
        """From now on, what is said is written to `path` too."""
        self.stop_keeping()
        self._log = Surviving(path.open("a", encoding="utf-8"))

    def stop_keeping(self) -> None:
        """Close the file."""
        if self._log:
            self._log.close()
            self._log = None

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(text)
        self._write(text)

    def plain(self, text: str) -> None:
        """One line without rich, which may be what is missing."""
        print(text, file=sys.stderr if self.as_json else sys.stdout, flush=True)
        self._write(text)

    def show(self, table: Any) -> None:
        """A table of rich."""
        self.console.print(table, soft_wrap=False)

    def fail(self, message: str, error: BaseException, debug: bool) -> None:
        """One line on standard error, behind the traceback if that is wanted; a kept file always gets both.

        A file of a removed folder appears as the one that it was copied from.
        """
        trace = "".join(traceback.format_exception(error))
        for folder, source in self.removed.items():
            of_run, of_source = f"{folder}{os.sep}", f"{source}{os.sep}"
            message, trace = message.replace(of_run, of_source), trace.replace(of_run, of_source)
        if debug:
            print(trace, end="", file=sys.stderr)
        line = " ".join(message.split())
        print(line, file=sys.stderr)
        self._write(f"{trace}{line}")
        self.result.setdefault("error", line)

    def finish(self, status: int) -> None:
        """The result for scripts, if one is listening."""
        self.stop_keeping()
        if self.as_json:
            print(json.dumps({**self.result, "status": status}, allow_nan=False), flush=True)

    def _write(self, text: str) -> None:
        if self._log:
            print(text, file=self._log, flush=True)


def _own_standard_output() -> None:
    """Standard output is this program's alone: what a simulator's native code prints goes to standard error."""
    sys.stdout.flush()
    sys.stdout = Surviving(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
