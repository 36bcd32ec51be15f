"""The folder of a run, runs/<environment>/<name>/, with all files that playing or resuming needs and compares with."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from algorithm.annotations import FixedOnResume, fold_case
from algorithm.atomic_io import replace_bytes, replace_text, set_aside
from algorithm.config.loader import Settings, find_failure, iterate_annotations, normalize_layer, resolve
from algorithm.config.registry import make_agent_defaults
from algorithm.config.yaml_layers import Layer, Tree, format_value, format_yaml, load_defaults, merge, read_yaml
from algorithm.errors import UserError
from algorithm.parts import user_code
from algorithm.parts.env_folder import (
    CONFIG_FILE,
    RUNS,
    advise_training,
    check_format,
    check_origin,
    find_folder,
    get_run_group,
    is_file_name,
    is_run_of,
    locate_environment,
    make_unknown_error,
    write_origin,
)
from algorithm.parts.lock import FolderLock
from algorithm.records_io import RecordError, read_json, write_json
from algorithm.specs import Role
from algorithm.training.metrics import TABLE_FILE

if TYPE_CHECKING:  # imports of torch, which finding a run does not need
    from algorithm.checkpointing.checkpoint import Checkpoint
    from algorithm.checkpointing.store import CheckpointStore


def find_environment_folder(environment: str) -> Path:
    """Return the folder of an environment, given its name or its path. Raises UserError if it has no config.yaml."""
    environment = locate_environment(environment)
    folder = find_folder(environment)
    if folder is None:
        raise make_unknown_error(environment)
    return folder


def format_run_name(name: str, start: float) -> str:
    """Return `name` with {time} and <time> replaced by the start time, in seconds since the epoch.

    Raises:
        UserError: The result is not the name of a folder.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(start))
    filled = name.replace("{time}", stamp).replace("<time>", stamp)
    if not is_file_name(filled) or "{" in filled:
        raise UserError(
            f"run name {name!r}: use a plain folder name, with {{time}} for the start time; "
            "the environment's folder is put before it automatically"
        )
    return filled


ROLES_FILE = "roles.json"  # in a run folder: the roles
MINARI = "minari:"  # before the name of a dataset, a source of demonstrations that is no file


class RunFolder:
    """A folder runs/<environment>/<name>/.

    Paths are absolute, since an environment may change the working directory; `str` returns the path as it was given.

    Args:
        path: Path of the folder.
        nn_from: Folder of the network's file; by default the run folder, which has its own copy.
    """

    def __init__(self, path: Path, nn_from: Path | None = None):
        self.given_path = path
        self.path = self.log_folder = path.absolute()  # log files of programs may be in another folder
        self.config_file = self.path / CONFIG_FILE  # the run's settings
        self.nn_from = (nn_from or path).absolute()
        self._runs = RUNS.absolute()
        self._replaced = self.path.with_name(f".{self.path.name}")  # the name of a run never starts with a dot
        self.lock = FolderLock(self.path, str(path))  # a process holds it during training
        self.make_env: Callable[..., Any] | None = None  # opens the environment instead of base_config.env_name
        self._configs = self.path / "configs"  # folder of files <env steps>.yaml: the settings used from there on
        self._roles_file = self.path / ROLES_FILE
        self._roles: Mapping[str, Role] | None = None  # None: not read yet

    def __str__(self) -> str:
        return str(self.given_path)

    @classmethod
    def create(cls, environment: str, source: Path | None, name: str, tree: Tree) -> RunFolder:
        """Create the folder of a new run.

        Args:
            environment: Name of the environment.
            source: Folder of the environment, whose code is copied, as files of demonstrations are; None without one.
            name: Name of the run.
            tree: Settings of the run.

        Raises:
            UserError: A run of this name exists, or a source of demonstrations is missing.
        """
        cls.check_name_free(environment, name)
        folder = cls(RUNS / get_run_group(environment) / name)
        files = [path for path in source.glob("*.py") if user_code.has_file(path)] if source else []
        files += find_demonstrations(tree["demonstration_config"]["sources"], source)
        folder.path.mkdir(parents=True)
        try:
            write_origin(folder.path, environment)
            for path in files:
                shutil.copy2(path, folder.path / path.name)
            folder.record_settings(tree, env_steps=0)
        except BaseException:  # Ctrl-C too
            folder.remove()
            raise
        return folder

    @staticmethod
    def check_name_free(environment: str, name: str) -> None:
        """Raise UserError if a run of this name exists."""
        path = RUNS / get_run_group(environment) / name
        check_origin(path, environment)
        if path.exists():
            raise UserError(
                f"run {path} exists already; --resume continues it, --force replaces it, -n gives another name"
            )

    @classmethod
    def find_replaceable(cls, environment: str, name: str) -> RunFolder | None:
        """Return the run of this name; None if it does not exist.

        Raises:
            UserError: The folder is not a run, or the run is in training.
        """
        folder = cls(RUNS / get_run_group(environment) / name)
        if not folder.path.exists():
            return None
        if folder.path.is_symlink():
            raise UserError(
                f"{folder} is a link to {folder.path.resolve()}, and --force replaces no folder elsewhere: remove the "
                "link, or give another name with -n"
            )
        check_origin(folder.given_path, environment)
        if not folder.config_file.is_file():
            raise UserError(f"{folder} is not a run (it has no {CONFIG_FILE}), so --force keeps it; use another name")
        with folder.lock:
            return folder

    @classmethod
    def find(cls, environment: str, name: str | None) -> RunFolder:
        """Return the run `name` of an environment, or the latest run for None. Raises UserError if there is none."""
        group = RUNS / get_run_group(environment)
        runs = [path.parent for path in group.glob(f"[!.]*/{CONFIG_FILE}") if is_run_of(path.parent, environment)]
        if name is not None:
            run = group / name
            check_origin(run, environment)
            if run not in runs:
                names = ", ".join(path.name for path in runs) or "none"
                raise UserError(f"there is no run {name!r} under {group}; the runs are: {names}")
        elif runs:
            run = max(runs, key=lambda path: (path / CONFIG_FILE).stat().st_mtime)
        else:
            raise UserError(f"there is no run under {group} yet; {advise_training(environment)}")
        check_format(run)
        return cls(run)

    def load_settings(self, *layers: Layer) -> Settings:
        """Return the settings of the run with `layers` on top. Raises UserError for a folder of another format."""
        check_format(self.path)
        return resolve([(str(self.config_file), read_yaml(self.config_file)), *layers])

    def read_last_settings(self) -> Tree:
        """Return the settings that the run used last; empty if they are not known."""
        files = self._list_configs()
        return normalize_layer(read_yaml(files[-1])) if files else {}

    def read_all_settings(self, log: Callable[[str], None]) -> list[tuple[int, Tree]]:
        """Return the settings of the run, oldest first, each with the env steps from which it used them.

        `log` receives a line for each damaged file.
        """
        found = []
        for path in self._list_configs():
            try:
                found.append((int(path.stem), read_yaml(path)))
            except UserError as error:
                log(" ".join(str(error).split()))
        return found

    def record_settings(self, tree: Tree, env_steps: int) -> None:
        """Write the settings that the run uses from `env_steps` on, if they are new, and config.yaml."""
        self._configs.mkdir(exist_ok=True)
        for path in self._list_configs():
            if int(path.stem) > env_steps:  # belongs to checkpoints that were set aside
                path.unlink()
        files, text = self._list_configs(), format_yaml(tree)
        # Texts are compared first, since YAML is slow to read.
        if not files or (files[-1].read_bytes() != text.encode() and self.read_last_settings() != tree):
            replace_text(self._configs / f"{env_steps:012d}.yaml", text)
        if not self.config_file.exists() or read_yaml(self.config_file) != tree:
            replace_text(self.config_file, text)

    def recover(self, log: Callable[[str], None]) -> None:
        """Set aside damaged files, which a resumed run writes again; `log` receives a line for each file."""
        for path in self._list_configs():
            try:
                read_yaml(path)
            except UserError as error:
                log(f"{' '.join(str(error).split())}: it is set aside as {set_aside(path).name}")
        if not self._list_configs():
            log(f"{self._configs} has no settings to compare with: config.yaml is used as it is")
        try:
            if not self.read_roles() and self.checkpoints(keep=1):
                log(f"{self._roles_file} is missing: it is written again")
        except UserError as error:
            log(str(error))
            set_aside(self._roles_file)

    def _list_configs(self) -> list[Path]:
        """Return the files of settings, oldest first."""
        return sorted(path for path in self._configs.glob("*.yaml") if path.stem.isdecimal())

    def has_learned(self) -> bool:
        """Return whether the run is kept when it ends: it has a checkpoint, or metrics and replaces no other run."""
        has_metrics = (self.path / TABLE_FILE).exists() and not self.is_replacement
        return has_metrics or bool(self.checkpoints(keep=1))

    @property
    def is_replacement(self) -> bool:
        """Whether an old run of this name is set aside until this one has a checkpoint."""
        return self._replaced.exists()

    def set_aside(self) -> None:
        """Rename the folder, so that a new run can replace this one."""
        self.path.rename(self._replaced)

    def settle(self) -> bool:
        """Keep the run and remove the one that it replaces, if it has learned; otherwise remove it.

        Returns:
            Whether it is kept.
        """
        is_kept = self.has_learned()
        if not is_kept:
            self.remove()
        elif self.is_replacement:
            shutil.rmtree(self._replaced)
        return is_kept

    def remove(self) -> None:
        """Remove the run, put back the one that it replaces, if any, and remove empty parent folders below runs/."""
        if self.path.exists():  # not if the process was killed between the two
            shutil.rmtree(self.path)
        if self.is_replacement:
            self._replaced.rename(self.path)
        with suppress(OSError):  # raised for the first folder that is not empty
            for parent in self.path.parents:
                if self._runs in (parent, *parent.parents):
                    parent.rmdir()

    def checkpoints(self, keep: int) -> CheckpointStore:
        """Return the checkpoints of the run, of which `keep` are kept."""
        from algorithm.checkpointing.store import CheckpointStore

        return CheckpointStore(self.path / "checkpoints", keep)

    def find_latest(self, log: Callable[[str], None] = print) -> Checkpoint:
        """Return the newest checkpoint with readable weights; `log` receives a line for each unreadable one.

        Raises:
            UserError: There is no checkpoint.
            CheckpointError: No checkpoint can be read.
        """
        from algorithm.checkpointing.checkpoint import WEIGHTS

        checkpoint = self.checkpoints(keep=1).latest(log, WEIGHTS)
        if checkpoint is None:
            raise UserError(f"{self} has no checkpoint yet")
        return checkpoint

    def find_best(self, log: Callable[[str], None] = print) -> Checkpoint:
        """Return the checkpoint with the best evaluation, or the newest if none was evaluated or teams share an agent.

        Once the goal was confirmed, it is the checkpoint that confirmed it or a better one. Raises UserError if there
        is no checkpoint.
        """
        if self.has_teams:
            return self.find_latest(log)
        checkpoints = self.checkpoints(keep=1)
        checkpoints.best.recover(checkpoints.list_all(), log)
        return checkpoints.best.checkpoint or self.find_latest(log)

    def read_checkpoint(self, which: str | None, log: Callable[[str], None] = print) -> Checkpoint:
        """Return a checkpoint in memory, by its env steps or its folder in the run folder; the best for None.

        Raises:
            UserError: There is no such checkpoint.
            CheckpointError: It is damaged.
        """
        from algorithm.checkpointing.checkpoint import CheckpointError

        while True:
            present = self.checkpoints(keep=1).list_all()
            try:
                return self._find_checkpoint(which, log).hold()
            except CheckpointError:
                if all(checkpoint.folder.is_dir() for checkpoint in present):
                    raise  # otherwise the run is in training and has removed what was to be read

    def _find_checkpoint(self, which: str | None, log: Callable[[str], None]) -> Checkpoint:
        from algorithm.checkpointing.checkpoint import WEIGHTS

        if which is None:
            return self.find_best(log)
        checkpoints = self.checkpoints(keep=1)
        try:
            checkpoint = checkpoints.find(which)
        except ValueError as error:
            raise UserError(f"--ckpt {which}: {error}") from error
        if checkpoint is None:
            available = [str(int(checkpoint.folder.name)) for checkpoint in checkpoints.list_all()]
            raise UserError(f"--ckpt {which}: there is no such checkpoint; {self} has {', '.join(available) or 'none'}")
        checkpoint.check(WEIGHTS)
        return checkpoint

    def copy_network(self, name: str) -> None:
        """Copy the network's file `name` from `nn_from` to the run folder, and use it from there.

        Raises UserError if it is missing.
        """
        source = user_code.resolve_file(self.nn_from, name, "base_config.nn")
        if not user_code.has_file(source):
            raise UserError(f"--use-env-nn: there is no {name} in {self.nn_from}")
        replace_bytes(self.path / name, source.read_bytes())
        self.nn_from = self.path

    @property
    def has_teams(self) -> bool:
        """Whether teams share an agent, so that the mean return does not depend on its weights.

        False if the roles cannot be read, since a run can be played without them.
        """
        try:
            roles = self.read_roles()
        except UserError:
            return False
        return any(len(role.count_lanes_by_team(name)) > 1 for name, role in roles.items())

    def read_roles(self) -> Mapping[str, Role]:
        """Return the roles that have appeared in this run. Raises UserError if they cannot be read."""
        if self._roles is None:
            try:
                self._roles = read_json(self._roles_file, dict[str, Role]) or {}
            except RecordError as error:
                raise UserError(f"{error}, or of another version of this program: --resume writes it again") from error
        return self._roles

    def check_role(self, name: str, role: Role) -> None:
        """Raise UserError if a role was recorded with other observations or actions; its lanes may have changed."""
        recorded = self.read_roles().get(name)
        if recorded and (recorded.obs_specs, recorded.action_spec) != (role.obs_specs, role.action_spec):
            before, now = describe_specs(recorded), describe_specs(role)
            raise UserError(f"{self.path} was created for {before}; the environment has {now}: train a new run")

    def add_role(self, name: str, role: Role) -> None:
        """Record a role, so that playing needs no simulator to build its agent, and its largest number of lanes."""
        roles = self.read_roles()
        if name not in roles or roles[name].lanes < role.lanes:
            self._roles = {**roles, name: role}
            write_json(self._roles_file, {name: asdict(role) for name, role in self._roles.items()}, is_sealed=True)


def find_demonstrations(sources: Sequence[str], source_folder: Path | None) -> list[Path]:
    """Return the files of demonstrations of new runs: their paths as given, or in the folder of the environment.

    Raises UserError for a file that does not exist, and for two of the same name.
    """
    found: dict[str, Path] = {}
    for source in filter(is_demonstration_file, sources):
        candidates = [Path(source), *([source_folder / source] if source_folder else [])]
        path = next((each for each in candidates if each.is_file()), None)
        if path is None:
            raise UserError(f"demonstration_config.sources: there is no file {source}")
        if path.name in found:
            raise UserError(f"demonstration_config.sources: two files have the name {path.name}; rename one of them")
        found[path.name] = path
    return list(found.values())


def is_demonstration_file(source: str) -> bool:
    """Return whether a source of demonstrations is a file, which the run folder has a copy of."""
    return not source.startswith(MINARI)


def describe_specs(role: Role) -> str:
    """Return the observations and actions of a role, for messages."""
    observed = ", ".join(
        f"{name} {list(spec.shape)}{f' of {list(spec.env_shape)}' if spec.env_shape is not None else ''} {spec.dtype}"
        for name, spec in role.obs_specs.items()
    )
    return f"observations {observed}, actions {role.action_spec}"


def list_changes(last: Tree, settings: Settings) -> list[str]:
    """Return a line for each setting that differs from the settings that a run used last.

    Args:
        last: Settings that the run used last; empty if they are not known, which gives no line.
        settings: Settings of the run's config.yaml, which may have been edited, with the command line on top.

    Raises:
        UserError: A change is not possible, or has no effect.
    """
    if not last:
        return []
    defaults = load_defaults() | make_agent_defaults(settings.base.algorithm)
    last = merge(defaults, last)  # an older version of this program may have written it without some settings
    lines = _list_section_changes(last, settings.tree, settings, "")
    old_roles, new_roles = last.get("ma_config") or {}, settings.tree["ma_config"]
    for role in {**old_roles, **new_roles}:
        old, new = old_roles.get(role) or {}, new_roles.get(role) or {}
        lines += _list_section_changes(old, new, settings.for_role(role), f"ma_config.{role}.")
    return lines


def _list_section_changes(old: Mapping[str, Any], new: Mapping[str, Any], settings: Settings, prefix: str) -> list[str]:
    """Return a line for each difference between two trees, without the sections of roles."""
    lines = []
    for path, before, after in find_changes({**old, "ma_config": {}}, {**new, "ma_config": {}}):
        line = f"{prefix}{path}: {format_value(before)} -> {format_value(after)}"
        for note, owner in iterate_annotations(settings, path):
            if isinstance(note, FixedOnResume) and note.forbids(before, after, owner):
                raise UserError(f"{line} is not possible with --resume: {note.reason}; train a new run instead")
        if failure := find_failure(settings, path):
            raise UserError(f"{line} {failure}")
        lines.append(line)
    return lines


def find_changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield path, old and new value of every setting that differs.

    A missing setting has the value null; words match without case.
    """
    for key in {**old, **new}:
        path, before, after = f"{prefix}{key}", old.get(key), new.get(key)
        if all(value is None or isinstance(value, Mapping) for value in (before, after)):
            yield from find_changes(before or {}, after or {}, f"{path}.")
        elif fold_case(before) != fold_case(after):
            yield path, before, after
