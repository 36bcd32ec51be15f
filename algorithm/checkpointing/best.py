"""The record of the best checkpoint of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import isfinite
from pathlib import Path

from algorithm.atomic_io import replace_text
from algorithm.checkpointing.checkpoint import WEIGHTS, Checkpoint, CheckpointError
from algorithm.training.metrics import TABLE_FILE, mean_evaluations, read_table

NO_BEST = ("", float("-inf"))


class BestCheckpoint:
    """The file best.json, with the name of the checkpoint with the best evaluation, and its mean return.

    It is read once. Every method raises CheckpointError, with the name of the file, if it is damaged.
    """

    def __init__(self, folder: Path):
        self.path = folder / "best.json"
        self._cached: tuple[str, float] | None = None

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Return the best checkpoint; None if none was evaluated, or it was removed."""
        name = self._read()[0]
        folder = self.path.parent / name
        return Checkpoint(folder) if name and folder.is_dir() else None

    @property
    def mean(self) -> float:
        """Return its mean return over episodes and roles; minus infinity if no checkpoint was evaluated."""
        return self._read()[1]

    def set_best(self, checkpoint: Checkpoint, mean: float) -> None:
        """Write the file: `checkpoint` is the best, with the mean return `mean`."""
        self._cached = checkpoint.folder.name, mean
        replace_text(self.path, json.dumps({"checkpoint": checkpoint.folder.name, "return": mean}))

    def clear(self) -> None:
        """Remove the file: no checkpoint is the best."""
        self._cached = NO_BEST
        self.path.unlink(missing_ok=True)

    def recover(self, checkpoints: Iterable[Checkpoint], log: Callable[[str], None]) -> bool:
        """Use the checkpoint with the best logged evaluation if the file, or the checkpoint it names, is damaged.

        The file is not changed.

        Args:
            checkpoints: all checkpoints of the run.
            log: receives the reason.

        Returns:
            Whether the file, or the checkpoint that it names, is damaged.
        """
        damage = self._find_damage()
        if damage is None:
            return False
        evaluated = self._list_evaluated(checkpoints)
        if not (evaluated or self.path.exists()):
            return False  # raised for a run without an evaluation
        self._cached = name, _ = max(evaluated, key=lambda entry: (entry[1], entry[0]), default=NO_BEST)
        replacement = f"checkpoint {name} has the best evaluation" if name else "no other checkpoint was evaluated"
        log(f"{damage}; {replacement}")
        return True

    def write(self) -> None:
        """Write the file with the checkpoint that `recover` found."""
        if checkpoint := self.checkpoint:
            self.set_best(checkpoint, self.mean)
        else:
            self.path.unlink(missing_ok=True)

    def _find_damage(self) -> str | None:
        """Return why the file, or the checkpoint that it names, cannot be used; None if it can."""
        try:
            name = self._read()[0]
            if not name:
                return f"{self.path} is missing"
            checkpoint = Checkpoint(self.path.parent / name)
            if not checkpoint.folder.is_dir():
                return f"{self.path} names checkpoint {name}, which is no longer there"
            checkpoint.check(WEIGHTS)
        except CheckpointError as error:
            return str(error)
        return None

    def _list_evaluated(self, checkpoints: Iterable[Checkpoint]) -> list[tuple[str, float]]:
        """Return name and mean return of the checkpoints with readable weights and an evaluation in the metrics."""
        table = self.path.parent.parent / TABLE_FILE
        means = mean_evaluations(read_table(table)) if table.exists() else {}
        found = []
        for checkpoint in checkpoints:
            name = checkpoint.folder.name
            if int(name) in means:
                with suppress(CheckpointError):  # its weights are damaged
                    checkpoint.check(WEIGHTS)
                    found.append((name, means[int(name)]))
        return found

    def _read(self) -> tuple[str, float]:
        if self._cached is None:
            self._cached = self._read_file()
        return self._cached

    def _read_file(self) -> tuple[str, float]:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            name, mean = content["checkpoint"], float(content["return"])
        except FileNotFoundError:
            return NO_BEST
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self.path} is damaged ({error})") from error
        if not isinstance(name, str) or not name.isdecimal() or (self.path.parent / name).is_symlink():
            raise CheckpointError(f"{self.path} is damaged ({name!r} is no checkpoint of this run)")
        if not isfinite(mean):
            raise CheckpointError(f"{self.path} is damaged (its return is {mean})")
        return name, mean
