"""The checkpoints of a run on disk, each of them complete: the best one, writing during the run, and copies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from typing_extensions import TypedDict

from algorithm.atomic_io import resolve_inside, set_aside, sync_folder
from algorithm.checkpointing.checkpoint import (
    LEARNER,
    METADATA,
    WEIGHTS,
    Checkpoint,
    CheckpointError,
    Manifest,
    Stateful,
    read_part,
    write_tensors,
)
from algorithm.networks.flat_parameters import State
from algorithm.records_io import write_json
from algorithm.training.metrics import TABLE_FILE, mean_evaluations, read_table
from algorithm.training.progress import Counters

NO_BEST = ("", float("-inf"))
SAVING = "saving"  # name of the folder of a checkpoint that is not complete yet
REMOVING = "removing"  # start of the name of the folder of a checkpoint that is being removed

# The content of best.json; it is no class, since `return` is a keyword.
BestRecord = TypedDict("BestRecord", {"checkpoint": str, "return": float})


class BestCheckpoint:
    """The file best.json, with the name of the checkpoint with the best evaluation, and its mean return.

    It is read once. Every method raises CheckpointError, with the name of the file, if it is damaged.

    Attributes:
        candidate: a checkpoint that is being evaluated, and so may become the best; it is kept meanwhile.
    """

    def __init__(self, folder: Path):
        self.path = folder / "best.json"
        self.candidate: Checkpoint | None = None

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Return the best checkpoint; None if none was evaluated, or it was removed."""
        name = self._record[0]
        folder = self.path.parent / name
        return Checkpoint(folder) if name and folder.is_dir() else None

    @property
    def mean(self) -> float:
        """Return its mean return over episodes and roles; minus infinity if no checkpoint was evaluated."""
        return self._record[1]

    def set_best(self, checkpoint: Checkpoint, mean: float) -> None:
        """Write the file: `checkpoint` is the best, with the mean return `mean`."""
        name, _ = self._record = checkpoint.folder.name, mean
        write_json(self.path, {"checkpoint": name, "return": mean}, is_sealed=True)

    def clear(self) -> None:
        """Remove the file: no checkpoint is the best."""
        self._record = NO_BEST
        if self.path.is_dir():
            set_aside(self.path)
        self.path.unlink(missing_ok=True)

    def recover(self, checkpoints: Iterable[Checkpoint], log: Callable[[str], None]) -> None:
        """Use the checkpoint with the best logged evaluation if the file, or the checkpoint it names, is damaged.

        So it does if a later checkpoint has a better evaluation, after which the run was killed. The file is not
        changed.

        Args:
            checkpoints: all checkpoints of the run.
            log: receives the reason.
        """
        damage = self._find_damage()
        if damage is None:
            name, mean = self._record
            later = [checkpoint for checkpoint in checkpoints if checkpoint.folder.name > name]
            evaluated = [entry for entry in self._list_evaluated(later) if entry[1] >= mean]
            if not evaluated:
                return
            damage = f"{self.path} names checkpoint {name}, whose evaluation is not the best"
        else:
            evaluated = self._list_evaluated(checkpoints)
            if not (evaluated or self.path.exists()):
                return  # a run without an evaluation
        self._record = name, _ = max(evaluated, key=lambda entry: (entry[1], entry[0]), default=NO_BEST)
        replacement = f"checkpoint {name} has the best evaluation" if name else "no other checkpoint was evaluated"
        log(f"{damage}; {replacement}")

    def _find_damage(self) -> str | None:
        """Return why the file, or the checkpoint that it names, cannot be used; None if it can."""
        try:
            name, _ = self._record
            if not name:
                return f"{self.path} is missing"
            if self.checkpoint is None:
                return f"{self.path} names checkpoint {name}, which is no longer there"
            self.checkpoint.check(WEIGHTS)
        except CheckpointError as error:
            return str(error)
        return None

    def _list_evaluated(self, checkpoints: Iterable[Checkpoint]) -> list[tuple[str, float]]:
        """Return name and mean return of the checkpoints with readable weights and an evaluation in the metrics."""
        table = self.path.parent.parent / TABLE_FILE
        means = {key: mean for key, mean in mean_evaluations(read_table(table)).items() if isfinite(mean)}
        found = []
        for checkpoint in checkpoints:
            name = checkpoint.folder.name
            if int(name) in means:
                with suppress(CheckpointError):  # its weights are damaged
                    checkpoint.check(WEIGHTS)
                    found.append((name, means[int(name)]))
        return found

    @cached_property
    def _record(self) -> tuple[str, float]:
        """The name and the mean return of the best checkpoint; `NO_BEST` without a file."""
        if not self.path.exists():
            return NO_BEST
        record = read_part(self.path, BestRecord)
        name = record["checkpoint"]
        if not name.isdecimal() or (self.path.parent / name).is_symlink():
            raise CheckpointError(f"{self.path} is damaged ({name!r} is no checkpoint of this run)")
        return name, record["return"]


class CheckpointStore:
    """The folder of a run's checkpoints: the last `keep` of them, and the best one."""

    def __init__(self, folder: Path, keep: int):
        self.folder, self.keep = folder, keep
        self.best = BestCheckpoint(folder)

    def __bool__(self) -> bool:
        """Return whether there is any checkpoint, damaged or not."""
        return bool(self.list_all())

    def latest(self, log: Callable[[str], None], name: str | None = None) -> Checkpoint | None:
        """Return the newest checkpoint that is not damaged; None if there is no checkpoint.

        Args:
            log: receives a line for each newer checkpoint, which is damaged.
            name: the name of the file that has to be undamaged; None for every file.

        Raises:
            CheckpointError: all checkpoints are damaged.
        """
        errors = []
        for checkpoint in reversed(self.list_all()):
            try:
                checkpoint.check(name)
            except CheckpointError as error:
                errors.append(str(error))
                continue
            for error_text in errors:
                log(f"{error_text}: checkpoint {checkpoint.folder.name} is used instead")
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
            uses_best: whether best.json is recovered and written again.
        """
        for path in (self.folder / SAVING, *self.folder.glob(f"{REMOVING}*")):
            shutil.rmtree(path, ignore_errors=True)
        for each in self.list_all():
            if checkpoint and each.folder.name > checkpoint.folder.name:
                set_aside(each.folder)
        if uses_best:
            self.best.recover(self.list_all(), log)
            if best := self.best.checkpoint:
                self.best.set_best(best, self.best.mean)
            else:
                self.best.clear()

    def list_all(self) -> list[Checkpoint]:
        """Return every checkpoint, damaged or not, oldest first."""
        if not self.folder.is_dir():
            return []
        folders = (path for path in self.folder.iterdir() if path.name.isdecimal() and not path.is_symlink())
        return [Checkpoint(path) for path in sorted(folders)]

    def get_folder(self, env_steps: int) -> Path:
        """Return the folder of the checkpoint with this number of env steps."""
        return self.folder / f"{env_steps:012d}"

    @contextmanager
    def create(self, env_steps: int) -> Iterator[Manifest]:
        """Yield the manifest of a new checkpoint, by which its files are written.

        The folder gets its name when the block ends and all files are on the disk; it then replaces checkpoints with as
        many env steps or more. After that, old checkpoints are removed.

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
            replaced = [each.folder for each in reversed(self.list_all()) if int(each.folder.name) >= env_steps]
            if (best := self.best.checkpoint) and best.folder in replaced:
                self.best.clear()
            removed = [self._set_aside(path) for path in replaced]
            temporary.rename(self.get_folder(env_steps))  # at once, so that there is almost always one of the two
            sync_folder(self.folder)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        kept = {each.folder for each in (self.best.checkpoint, self.best.candidate) if each}
        removed += [self._set_aside(each.folder) for each in self.list_all()[: -self.keep] if each.folder not in kept]
        for path in removed:
            shutil.rmtree(path, ignore_errors=True)

    def _set_aside(self, path: Path) -> Path:
        """Rename a checkpoint before it is removed, since a partly removed one is incomplete; return its new path."""
        removing = self.folder / f"{REMOVING}-{path.name}"
        shutil.rmtree(removing, ignore_errors=True)
        return path.rename(removing)


@dataclass(eq=False)
class CheckpointWriter:
    """A writer of the checkpoints of a run.

    Args:
        store: the checkpoints of the run.
        write_parts: writes the files of roles and environments by a manifest, and returns what counters.json has about
            them (`write_all`, if everything is in one process).
        states: {name: part of the run}, whose states are saved as JSON.
        log: receives a line if a checkpoint cannot be written.
        on_checkpoint: receives each checkpoint that was written.
    """

    store: CheckpointStore
    write_parts: Callable[[Manifest], Mapping[str, Any]]
    states: Mapping[str, Stateful]
    log: Callable[[str], None]
    on_checkpoint: Callable[[Checkpoint], object] = lambda checkpoint: None
    failure: str | None = field(default=None, init=False)  # of the last call
    _last_folder: Path | None = field(default=None, init=False)  # of the last checkpoint that was written

    def __call__(self, counters: Counters) -> Checkpoint | None:
        """Write a checkpoint, unless there was no env step yet. A failure is logged, and the next call tries again.

        Returns:
            The checkpoint; None if none was written.
        """
        if not counters.env_steps:
            return None
        try:
            checkpoint = self.write(counters)
            self.failure = None
        except OSError as error:
            self.failure = (
                f"the checkpoint of {counters.env_steps:,} env steps cannot be written to {self.store.folder}: "
                f"{error.strerror or error}; earlier checkpoints are kept"
            )
            self.log(f"{self.failure}; the next save tries again")
            return None
        if checkpoint.folder != self._last_folder:  # the final checkpoint may be the last one that was written
            self._last_folder = checkpoint.folder
            self.on_checkpoint(checkpoint)
        return checkpoint

    def raise_if_failed(self) -> None:
        """Raise CheckpointError if the last call failed; at the end of a run, it wrote the final checkpoint."""
        if self.failure:
            raise CheckpointError(self.failure)

    def write(self, counters: Counters) -> Checkpoint:
        """Write a checkpoint, or return the checkpoint of these env steps if it exists.

        Raises:
            OSError: it cannot be written; the other checkpoints are unchanged.
        """
        if existing := self.store.find(str(counters.env_steps)):
            return existing
        with self.store.create(counters.env_steps) as manifest:
            metadata = {
                "counters": asdict(counters),
                "states": {name: part.state() for name, part in self.states.items()},
                **self.write_parts(manifest),
            }
            with manifest.open_file(METADATA) as file:
                file.write(json.dumps(metadata).encode())
        return Checkpoint(self.store.get_folder(counters.env_steps))


def copy_checkpoint(
    source: Checkpoint, store: CheckpointStore, weights: Mapping[str, State] | None = None
) -> Checkpoint:
    """Copy a checkpoint into a store and return the copy, which is then the newest of the store.

    Checkpoints of the store with as many env steps or more are removed, when the copy is complete.

    Args:
        source: the checkpoint, of this store or of another run of the same networks.
        store: the store.
        weights: other weights by role; the moments of the optimizers are then 0. None: those of the source.

    Raises:
        CheckpointError: the source is damaged.
        OSError: the copy cannot be written.
    """
    source.check()
    changed: dict[str, Any] = {}
    for role, state in (weights or {}).items():
        learner, folder = source.learner_state(role), quote(role, safe="")
        moments = {name: torch.zeros_like(value) for name, value in learner.items() if name.startswith("moments/")}
        changed |= {f"{folder}/{WEIGHTS}": state, f"{folder}/{LEARNER}": {**learner, **moments}}
    env_steps = source.counters.env_steps
    with store.create(env_steps) as manifest:
        for name in Manifest.read(source.folder).digests:
            if name in changed:
                write_tensors(manifest, name, changed[name])
            else:
                with (source.folder / name).open("rb") as original, manifest.open_file(name) as copy:
                    shutil.copyfileobj(original, copy, 2**22)
    return Checkpoint(store.get_folder(env_steps))
