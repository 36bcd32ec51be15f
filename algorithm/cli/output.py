"""The output of a command: lines for people, one line of JSON for scripts, and a copy in a file."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from algorithm.adapters.standard_streams import FaultTolerantStream, tolerate_closed_streams
from algorithm.errors import clean_text, remove_control_characters
from algorithm.program import get_command

if TYPE_CHECKING:
    from rich.console import Console

    from algorithm.runs.callbacks import Callback


NO_BREAK = "\N{NO-BREAK SPACE}"  # at which lines are not broken
DEFAULT_WIDTH = 200  # columns of a table if the output is not a terminal


class Output:
    """An output of lines on standard output, or with `as_json` on standard error, with `result` on standard output."""

    def __init__(self, as_json: bool):
        self.as_json = as_json
        self.result: dict[str, Any] = {}  # what the command reached so far
        self.save_note = ""  # what is saved of a run that was interrupted: a sentence after a space
        self.removed_folders: dict[str, str] = {}  # of failed runs: the folder that the files were copied from
        self._log_file: FaultTolerantStream | None = None
        if as_json and sys.stdout is sys.__stdout__:
            _redirect_stdout()
        tolerate_closed_streams()

    @cached_property
    def console(self) -> Console:
        """The console for lines, created on first use, since importing rich takes a moment."""
        from rich.console import Console
        from rich.segment import Segment

        class SafeConsole(Console):
            """A console whose own codes reach the terminal, and none that names and texts of run folders contain."""

            def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
                for text, style, control in super().render(renderable, options):
                    yield Segment(text if control else remove_control_characters(text), style, control)

        console = SafeConsole(stderr=self.as_json, highlight=False, markup=False, soft_wrap=True)
        if not console.is_terminal:
            console.width = DEFAULT_WIDTH
        return console

    def display_run(self, log: Callable[[str], None], title: str = "") -> AbstractContextManager[Callback]:
        """Return a display of a run in training: a panel in a terminal, elsewhere lines for `log`."""
        from algorithm.cli.display import live_display

        return live_display(self.console, log, title)

    def log_to_file(self, path: Path) -> None:
        """Write all further lines to a file, too."""
        self.close_log_file()
        self._log_file = FaultTolerantStream(path.open("a", encoding="utf-8"))

    def close_log_file(self) -> None:
        """Close the file of `log_to_file`."""
        if self._log_file:
            self._log_file.close()
            self._log_file = None

    def log(self, text: str) -> None:
        """Print a line; in a terminal, its words are not broken."""
        text = clean_text(text)
        width = self.console.width if self.console.is_terminal else None
        self.console.print("\n".join(wrap_words(line, width) for line in text.split("\n")))
        self._write(text)

    def log_plain(self, text: str) -> None:
        """Print a line without rich, which may not be installed."""
        text = clean_text(text)
        print(text, file=sys.stderr if self.as_json else sys.stdout, flush=True)
        self._write(text)

    def print_table(
        self, texts: Iterable[str], numbers: Iterable[str], rows: Iterable[Sequence[str]], title: str | None = None
    ) -> None:
        """Print a table with columns of texts, and columns of numbers at their right."""
        from rich.table import Table

        table = Table(title=title, title_justify="left")
        for name in texts:
            table.add_column(name, overflow="fold")
        for name in numbers:
            table.add_column(name, justify="right", overflow="fold")
        for row in rows:
            table.add_row(*row)
        self.console.print(table, soft_wrap=False)

    def fail(self, message: str, error: BaseException, debug: bool) -> None:
        """Print an error in one line on standard error, after its traceback with `debug`; a log file receives both.

        In both, the code of a removed folder is replaced by the files that it was copied from.
        """
        trace = "".join(traceback.format_exception(error))
        for folder, source in self.removed_folders.items():
            code = re.compile(rf"{re.escape(folder + os.sep)}(?=\w+\.py)")
            message, trace = (f"{source}{os.sep}".join(code.split(text)) for text in (message, trace))
        message, trace = clean_text(message), clean_text(trace)
        if debug:
            print(trace, end="", file=sys.stderr)
        line = " ".join(message.split())
        width = shutil.get_terminal_size().columns if sys.stderr and sys.stderr.isatty() else None
        print(wrap_words(line, width), file=sys.stderr)
        self._write(f"{trace}{line}")
        self.result.setdefault("error", line)

    def finish(self, status: int) -> None:
        """Close the log file, and print the result for scripts with `as_json`."""
        self.close_log_file()
        if self.as_json:
            print(json.dumps({**self.result, "status": status}, allow_nan=False), flush=True)

    def _write(self, text: str) -> None:
        if self._log_file:
            print(text, file=self._log_file, flush=True)


def wrap_words(line: str, width: int | None) -> str:
    """Break a line at spaces into lines of at most `width` columns, which None does not limit; longer words stay whole.

    A command of this program, which ends a line, counts as one word, so that it can be copied from a terminal.
    """
    if width is None or len(line) <= width:
        return line
    text, separator, arguments = line.partition(f" {get_command()} ")
    command = f"{separator}{arguments}".replace(" ", NO_BREAK).replace(NO_BREAK, " ", 1)
    return fill(f"{text}{command}", width, break_long_words=False, break_on_hyphens=False).replace(NO_BREAK, " ")


def _redirect_stdout() -> None:
    """Reserve standard output for the result: what native code of a simulator prints goes to standard error."""
    sys.stdout.flush()
    sys.stdout = FaultTolerantStream(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
