"""The journal of a study, in which Optuna records its trials: the lock of its writers, and its repair."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from algorithm.atomic_io import copy_aside
from algorithm.errors import UserError
from algorithm.parts.lock import FolderLock
from algorithm.records_io import read_json_lines, write_json_lines

CREATE_STUDY, CREATE_TRIAL = 0, 4  # operations of Optuna
WAIT = 0.05  # seconds between two attempts to lock a study
Operation = dict[str, Any]


class StudyLock:
    """The lock of a study folder, which a process may acquire again while it holds it.

    The operating system releases it when the process ends, so that a process that was killed leaves no lock behind.
    """

    def __init__(self, folder: Path):
        self._lock, self._depth = FolderLock(folder, str(folder)), 0

    def acquire(self) -> bool:
        """Wait until no other process holds the lock, and hold it."""
        while not self._depth:
            try:
                self._lock.__enter__()
                break
            except UserError:  # another process holds it
                time.sleep(WAIT)
        self._depth += 1
        return True

    def release(self) -> None:
        """Release the lock, if it was acquired once."""
        self._depth -= 1
        if not self._depth:
            self._lock.__exit__()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def repair_journal(path: Path, maximize: bool, optuna: ModuleType, log: Callable[[str], None]) -> None:
    """Rewrite a damaged journal without the operations that cannot be used; `log` receives a line then.

    A trial whose end is lost is unfinished, and so is trained again. The caller holds the lock of the study.

    Args:
        path: the journal, in the folder of its study.
        maximize: whether trials with larger values are better.
        optuna: the package.
        log: receives a line if the journal is damaged.
    """
    if not path.is_file() or not path.stat().st_size:
        return
    operations, problem = read_json_lines(path, Operation, allow_nan=True)
    kept = list(_select(operations, path.parent.name, maximize, optuna))
    is_cut = path.read_bytes()[-1:] != b"\n"
    if problem or is_cut or kept != operations:
        copy = copy_aside(path)
        write_json_lines(path, kept, allow_nan=True)
        log(
            f"{problem or f'{path} is damaged'}: what cannot be used is dropped, and finished trials are kept; "
            f"{copy.name} is a copy as it was"
        )


def _select(operations: Sequence[Operation], study: str, maximize: bool, optuna: ModuleType) -> Iterator[Operation]:
    """Yield the operations that Optuna can apply, with the creation of the study and of trials where they are lost.

    The id of a trial is the number of trials that were created before it. An operation on the next id shows that a
    creation is lost, and creations differ in nothing but their time.
    """
    expected = {"op_code": CREATE_STUDY, "study_name": study, "directions": [2 if maximize else 1]}
    if not operations or {**operations[0], **expected} != operations[0]:
        operations = [{**expected, "worker_id": ""}, *operations]
    can_apply, n_trials = _make_predicate(optuna), 0
    for operation in operations:  # every process that opens the study creates it, too
        code, trial = operation.get("op_code"), operation.get("trial_id")
        if trial == n_trials:
            created = {"op_code": CREATE_TRIAL, "worker_id": "", "study_id": 0, "datetime_start": None}
            can_apply(created)
            n_trials += 1
            yield created
        is_foreign = operation.get("study_id", 0) != 0 or operation.get("study_name", study) != study
        is_unknown = isinstance(trial, int) and trial >= n_trials
        if not is_foreign and not is_unknown and can_apply(operation):
            n_trials += code == CREATE_TRIAL
            yield operation


def _make_predicate(optuna: ModuleType) -> Callable[[Operation], bool]:
    """Return a function that applies an operation after all earlier ones, and returns whether that was possible."""
    operations: list[Operation] = []

    class Backend(optuna.storages.journal.BaseJournalBackend):
        """A journal in memory."""

        def read_logs(self, log_number_from: int) -> list[Operation]:
            return operations[log_number_from:]

        def append_logs(self, logs: list[Operation]) -> None:
            operations.extend(logs)

    storage = optuna.storages.JournalStorage(Backend())

    def can_apply(operation: Operation) -> bool:
        operations.append(operation)
        try:
            storage.get_all_studies()  # reads what is new in the journal
        except Exception:  # Optuna raises errors of many kinds for an operation that is not of its form
            return False
        return True

    return can_apply
