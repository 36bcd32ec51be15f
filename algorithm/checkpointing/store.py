"""The checkpoints of a run on disk, each of them complete."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from algorithm.atomic_io import resolve_inside, set_aside, sync_folder
from algorithm.checkpointing.best import BestCheckpoint
from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.checkpointing.manifest import CheckpointError, Manifest

SAVING = "saving"  # name of the folder of a checkpoint that is not complete yet
REMOVING = "removing"  # name of the folder of a checkpoint that is being removed


class CheckpointStore:
    """The folder of a run's checkpoints: the last `keep` of them, and the best one."""

    def __init__(self, folder: Path, keep: int):
        self.folder = folder
        self.keep = keep
        self.best = BestCheckpoint(folder)

    def __bool__(self) -> bool:
        """Return whether there is any checkpoint, damaged or not."""
        return bool(self._list_folders())

    def latest(self, log: Callable[[str], None], name: str | None = None) -> Checkpoint | None:
        """Return the newest checkpoint that is not damaged; None if there is no checkpoint.

        Args:
            log: receives a line for each newer checkpoint, which is damaged.
            name: the name of the file that has to be undamaged; None for every file.

        Raises:
            CheckpointError: all checkpoints are damaged.
        """
        errors = []
        for path in reversed(self._list_folders()):
            checkpoint = Checkpoint(path)
            try:
                checkpoint.check(name)
            except CheckpointError as error:
                errors.append(str(error))
                continue
            for error_text in errors:
                log(f"{error_text}: checkpoint {path.name} is used instead")
            return checkpoint
        if errors:
            raise CheckpointError(f"no checkpoint in {self.folder} can be read: {'; '.join(errors)}")
        return None

    def find(self, which: str) -> Checkpoint | None:
        """Return the checkpoint with this number of env steps, or in this folder; None if it does not exist.

        Raises:
            ValueError: it is a folder elsewhere.
        """
        path = self.get_folder(int(which)) if which.isdecimal() else Path(which).absolute()
        checkpoint = Checkpoint(resolve_inside(self.folder, path))
        return checkpoint if checkpoint.folder.is_dir() else None

    def prepare(self, checkpoint: Checkpoint | None, log: Callable[[str], None], uses_best: bool = True) -> None:
        """Prepare the folder for training from `checkpoint`, or from the start if it is None.

        Incomplete checkpoints are removed. Newer checkpoints, which are damaged, are renamed.

        Args:
            checkpoint: the newest undamaged checkpoint.
            log: receives a line if best.json is damaged.
            uses_best: whether best.json is written again if it, or the checkpoint that it names, is damaged.
        """
        for name in (SAVING, REMOVING):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for path in self._list_folders():
            if checkpoint and path.name > checkpoint.folder.name:
                set_aside(path)
        if uses_best and self.best.recover(self.list_all(), log):
            self.best.write()

    def list_all(self) -> list[Checkpoint]:
        """Return every checkpoint, damaged or not, oldest first."""
        return [Checkpoint(path) for path in self._list_folders()]

    def get_folder(self, env_steps: int) -> Path:
        """Return the folder of the checkpoint with this number of env steps."""
        return self.folder / f"{env_steps:012d}"

    @contextmanager
    def create(self, env_steps: int) -> Iterator[Manifest]:
        """Yield the manifest of a new checkpoint, by which its files are written.

        The folder gets its name when the block ends and all files are on the disk. Then older checkpoints are removed.

        Raises:
            OSError: it cannot be written; the other checkpoints are unchanged.
        """
        temporary = self.folder / SAVING
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
            manifest = Manifest(temporary)
            yield manifest
            manifest.write()
            sync_folder(temporary)
            temporary.rename(self.get_folder(env_steps))
            sync_folder(self.folder)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._remove_old()

    def _remove_old(self) -> None:
        best = self.best.checkpoint
        for old in self._list_folders()[: -self.keep]:
            if best and old == best.folder:
                continue
            removing = self.folder / REMOVING  # renamed first, so that a partly removed folder is no checkpoint
            shutil.rmtree(removing, ignore_errors=True)
            shutil.rmtree(old.rename(removing), ignore_errors=True)

    def _list_folders(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if path.name.isdecimal() and not path.is_symlink())
