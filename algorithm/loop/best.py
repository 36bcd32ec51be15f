"""Which checkpoint did best."""

from __future__ import annotations

import json
from pathlib import Path

from algorithm.loop.checkpoint import Checkpoint, CheckpointError
from algorithm.loop.files import replace


class Best:
    """The file best.json beside the checkpoints: which of them did best on held-out episodes, and its mean return.

    Raises CheckpointError, naming the file, where it cannot be read.
    """

    def __init__(self, folder: Path):
        self.path = folder / "best.json"

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The best checkpoint; None where none was evaluated, or it is no longer there."""
        name = self._read()[0]
        place = self.path.parent / name
        return Checkpoint(place) if name and place.is_dir() else None

    @property
    def mean(self) -> float:
        """Its mean return over episodes and roles; minus infinity where none was evaluated."""
        return self._read()[1]

    def name(self, checkpoint: Checkpoint, mean: float) -> None:
        """From now on it is this one."""
        replace(self.path, json.dumps({"checkpoint": checkpoint.folder.name, "return": mean}))

    def _read(self) -> tuple[str, float]:
        try:
            content = json.loads(self.path.read_text())
            return content["checkpoint"], float(content["return"])
        except FileNotFoundError:
            return "", float("-inf")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self.path}: {error}") from error
