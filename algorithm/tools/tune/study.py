"""A study folder, which several processes share: its trials in Optuna's journal, and the locks of the processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np

from algorithm.atomic_io import copy_aside, replace_text
from algorithm.config.yaml_layers import Tree, format_value, format_yaml, parse_yaml, read_yaml
from algorithm.errors import UserError
from algorithm.parts.lock import FolderLock
from algorithm.parts.run_folder import find_changes
from algorithm.program import get_install_command
from algorithm.records_io import read_json_lines, write_json_lines

JOURNAL_FILE, STUDY_FILE = "journal.log", "study.yaml"
CREATE_STUDY, CREATE_TRIAL = 0, 4  # operations of Optuna
WAIT = 0.05  # seconds between two attempts to lock a study
Operation = dict[str, Any]
State = Literal["complete", "pruned", "running"]


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """A trial of a study, as it is reported.

    Attributes:
        number: its number, from 0 on.
        state: complete, pruned (also for a trial that failed), or running (also for one that was interrupted).
        value: the number by which trials are compared; None unless the trial is complete.
        settings: its settings, by their paths.
        reason: why it was pruned, in one line; otherwise empty.
    """

    number: int
    state: State
    value: float | None
    settings: Mapping[str, Any]
    reason: str


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


class Study:
    """A study in a folder; every process that opens the folder joins the study.

    A trial belongs to the process that holds the lock of the trial's folder. The operating system releases the lock
    when the process ends. An unfinished trial whose lock is free is trained again, from its beginning.

    Args:
        folder: the folder, which is made if it does not exist.
        maximize: whether trials with larger values are better.
        seed: seed of the samples. The sample of a trial depends on this seed, the number of the trial and the results
            that are known, not on the process.
        warmup: number of the first evaluation at which a trial can be pruned.
        log: receives a line if the journal is damaged.

    Attributes:
        lock: the lock of the study, for a block in which no other process changes it.
    """

    def __init__(self, folder: Path, maximize: bool, seed: int, warmup: int = 0, log: Callable[[str], None] = print):
        self.optuna = import_optuna()
        self.folder, self.maximize, self.seed = folder, maximize, seed
        folder.mkdir(parents=True, exist_ok=True)
        self.lock = StudyLock(folder)
        storages, path = self.optuna.storages, folder / JOURNAL_FILE
        with self.lock:
            self._repair_journal(path, log)
            backend = storages.journal.JournalFileBackend(str(path), self.lock)
            self._study = self.optuna.create_study(
                storage=storages.JournalStorage(backend),
                study_name=folder.name,
                direction="maximize" if maximize else "minimize",
                pruner=self.optuna.pruners.MedianPruner(n_warmup_steps=warmup),
                load_if_exists=True,
            )

    def _repair_journal(self, path: Path, log: Callable[[str], None]) -> None:
        """Rewrite a damaged journal without the operations that cannot be used; `log` receives a line then.

        A trial whose end is lost is unfinished, and so is trained again.
        """
        if not path.is_file() or not path.stat().st_size:
            return
        operations, problem = read_json_lines(path, Operation, allow_nan=True)
        kept = list(self._select(operations))
        is_cut = path.read_bytes()[-1:] != b"\n"
        if problem or is_cut or kept != operations:
            copy = copy_aside(path)
            write_json_lines(path, kept, allow_nan=True)
            log(
                f"{problem or f'{path} is damaged'}: what cannot be used is dropped, and finished trials are kept; "
                f"{copy.name} is a copy as it was"
            )

    def _select(self, operations: Sequence[Operation]) -> Iterator[Operation]:
        """Yield the operations that Optuna can apply, with the creation of the study and of trials where they are lost.

        The id of a trial is the number of trials that were created before it. An operation on the next id shows that a
        creation is lost, and creations differ in nothing but their time.
        """
        study = self.folder.name
        expected = {"op_code": CREATE_STUDY, "study_name": study, "directions": [2 if self.maximize else 1]}
        if not operations or {**operations[0], **expected} != operations[0]:
            operations = [{**expected, "worker_id": ""}, *operations]
        applied, n_trials = _AppliedOperations(self.optuna), 0
        for operation in operations:  # every process that opens the study creates it, too
            code, trial = operation.get("op_code"), operation.get("trial_id")
            if trial == n_trials:
                created = {"op_code": CREATE_TRIAL, "worker_id": "", "study_id": 0, "datetime_start": None}
                applied.add(created)
                n_trials += 1
                yield created
            is_foreign = operation.get("study_id", 0) != 0 or operation.get("study_name", study) != study
            is_unknown = isinstance(trial, int) and trial >= n_trials
            if not is_foreign and not is_unknown and applied.add(operation):
                n_trials += code == CREATE_TRIAL
                yield operation

    def check_settings(self, tree: Tree) -> None:
        """Record the settings of a new study. Raises UserError if the study has others."""
        path, tree = self.folder / STUDY_FILE, parse_yaml(format_yaml(tree))
        with self.lock:
            if not path.exists():
                replace_text(path, format_yaml(tree))
            recorded = read_yaml(path)
        for name, before, after in find_changes(recorded, tree):
            raise UserError(
                f"the study {self.folder.name} has {name}={format_value(before)}, not {format_value(after)}: new "
                "trials could not be compared with its trials; -n NAME begins another study"
            )

    @contextmanager
    def take_trial(self, limit: int) -> Iterator[Any]:
        """Hold the lock of a trial in a block: of an interrupted one, or of a new one if there are not yet `limit`.

        The value is the trial of Optuna; None if there is no trial to train. A trial that is not finished in the block
        is trained again.
        """
        with ExitStack() as held:
            with self.lock:
                trials = self._study.get_trials(deepcopy=False)
                unfinished = [known for known in trials if not known.state.is_finished()]
                trial = None
                if interrupted := next((known for known in unfinished if self._try_lock(known.number, held)), None):
                    # No public attribute has the id of a trial.
                    trial = self.optuna.trial.Trial(self._study, interrupted._trial_id)
                elif len(trials) < limit and self._try_lock(len(trials), held):
                    trial = self._study.ask()
            yield trial

    def _try_lock(self, number: int, held: ExitStack) -> bool:
        """Hold the lock of a trial, and set its sampler; return False if another process holds the lock."""
        folder = self.get_folder(number)
        folder.mkdir(exist_ok=True)
        try:
            held.enter_context(FolderLock(folder, str(folder)))
        except UserError:
            return False
        seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
        # Unfinished trials count as bad ones, so that processes sample elsewhere.
        self._study.sampler = self.optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        return True

    def finish(self, trial: Any, value: float | None, reason: str) -> None:
        """Record the value of a trial, or for None the reason why it was pruned."""
        with self.lock:
            if value is None:
                trial.set_user_attr("reason", reason)
                self._study.tell(trial, state=self.optuna.trial.TrialState.PRUNED)
            else:
                self._study.tell(trial, value)

    def list_trials(self) -> list[TrialRecord]:
        """Return all trials, in order of their numbers."""
        return [_make_record(trial) for trial in self._study.get_trials(deepcopy=False)]

    def rank(self, trials: Iterable[TrialRecord]) -> list[TrialRecord]:
        """Return the complete ones of some trials, the best first."""
        complete = [trial for trial in trials if trial.value is not None]
        return sorted(complete, key=lambda trial: trial.value or 0.0, reverse=self.maximize)

    def get_folder(self, number: int) -> Path:
        """Return the folder of the runs of a trial."""
        return self.folder / str(number)


def _make_record(trial: Any) -> TrialRecord:
    """Return the record of a trial of Optuna."""
    finished, values = trial.state.is_finished(), trial.user_attrs.get("values")
    complete = trial.state.name == "COMPLETE" and values is not None  # they are lost in a journal that was damaged
    return TrialRecord(
        number=trial.number,
        state="complete" if complete else "pruned" if finished else "running",
        value=trial.value if complete else None,
        settings=values or {},
        reason=trial.user_attrs.get("reason", "its settings are lost" if finished and values is None else ""),
    )


def import_optuna() -> ModuleType:
    """Import Optuna and turn its own messages off. Raises UserError, with the command that installs it."""
    try:
        import optuna
        import optuna.storages.journal
    except ImportError as error:
        line = " ".join(str(error).split())
        raise UserError(f"tune needs the extra tune ({line}): {get_install_command('tune')}") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class _AppliedOperations:
    """A journal in memory, which Optuna reads."""

    def __init__(self, optuna: ModuleType):
        self._operations: list[Operation] = []
        self._storage = optuna.storages.JournalStorage(self)

    def read_logs(self, log_number_from: int) -> list[Operation]:
        """Return the operations from a number on, as Optuna requests them."""
        return self._operations[log_number_from:]

    def add(self, operation: Operation) -> bool:
        """Apply an operation after all earlier ones, and return whether that was possible."""
        self._operations.append(operation)
        try:
            self._storage.get_all_studies()  # reads what is new in the journal
        except Exception:  # Optuna raises errors of many kinds for an operation that is not of its form
            return False
        return True
