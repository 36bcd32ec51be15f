"""Replacing a run: the old one is restored if the new one fails before it has learned."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path


class RunReplacement:
    """The folder of a run, somewhere below `root`; a run that it replaces is set aside in the folder above it."""

    def __init__(self, path: Path, root: Path):
        self.path, self.root = path, root
        self.backup = path.with_name(f".{path.name}")  # a run's own name never starts with a dot

    def set_aside(self) -> None:
        """Set the run aside for another one."""
        self.discard()
        self.path.rename(self.backup)

    def discard(self) -> None:
        """Remove the run that was set aside."""
        if self.backup.exists():
            shutil.rmtree(self.backup)

    def restore(self) -> None:
        """Remove the run, and put back the one that was set aside; folders that are empty then go, up to `root`."""
        shutil.rmtree(self.path)
        if self.backup.exists():
            self.backup.rename(self.path)
        with suppress(OSError):  # of the first that is not empty
            for parent in self.path.parents:
                if self.root in (parent, *parent.parents):
                    parent.rmdir()
