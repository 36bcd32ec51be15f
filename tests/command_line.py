"""Command lines in the process of a test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from algorithm.cli import main


class CommandLine:
    """A caller of command lines, which has to end with the expected status."""

    def __init__(self, capsys):
        self.capsys = capsys

    def __call__(self, line: str | list[str], status: int = 0) -> Any:
        """Return what a command line prints: `out` and `err`."""
        self.capsys.readouterr()
        try:
            found = main.main(line.split() if isinstance(line, str) else line)
        except SystemExit as error:  # of --help
            found = error.code
        shown = self.capsys.readouterr()
        assert found == status, shown.err
        return shown

    def json(self, line: str, status: int = 0) -> dict[str, Any]:
        """Return the record that a command line prints for a script, in one line."""
        shown = self(f"{line} --json", status).out
        assert shown.count("\n") == 1, shown
        record = json.loads(shown)
        assert record["status"] == status
        return record

    def fail(self, line: str | list[str], status: int = 2) -> str:
        """Return the error of a command line, which is one line on standard error."""
        shown = self(line, status)
        assert shown.err.count("\n") == 1 and "Traceback" not in shown.err + shown.out, shown.err
        return shown.err


def train_once(tmp_path_factory, line: str, write_folder=lambda: None) -> Path:
    """Return a working directory in which a command line has trained, in a folder that `write_folder` has written."""
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        write_folder()
        assert main.main(line.split()) == 0
    return place
