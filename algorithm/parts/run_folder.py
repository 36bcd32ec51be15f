"""The folder of a run, runs/<environment>/<name>/, with all files that playing or resuming needs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from algorithm.atomic_io import replace_bytes, replace_text, set_aside
from algorithm.config.loader import Settings, resolve
from algorithm.config.yaml_layers import Layer, Tree, format_yaml, read_yaml
from algorithm.errors import UserError
from algorithm.parts import user_code
from algorithm.parts.env_folder import (
    CONFIG_FILE,
    RUNS,
    check_format,
    check_origin,
    find_folder,
    find_run_path,
    get_run_group,
    is_file_name,
    locate_environment,
    make_unknown_error,
    write_origin,
)
from algorithm.parts.lock import FolderLock, RunReplacement
from algorithm.parts.run_records import ConfigHistory, check_specs, read_roles, write_roles
from algorithm.specs import Role
from algorithm.training.metrics import TABLE_FILE

if TYPE_CHECKING:  # imports of torch, which finding a run does not need
    from algorithm.checkpointing.checkpoint import Checkpoint
    from algorithm.checkpointing.store import CheckpointStore
    from algorithm.networks import Blueprint


def find_environment_folder(environment: str) -> Path:
    """Return the folder of an environment.

    Args:
        environment: Name of a folder below envs/ of the working directory or of the project, or a path.

    Raises:
        UserError: The folder has no config.yaml.
    """
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


class RunFolder:
    """A folder runs/<environment>/<name>/.

    Paths are absolute, since an environment may change the working directory; `str` returns the path as it was given.

    Args:
        path: Path of the folder.
        nn_from: Folder of the network's file; by default the run folder, which has its own copy.
    """

    def __init__(self, path: Path, nn_from: Path | None = None):
        self.given_path = path
        self.path = path.absolute()
        self.nn_from = (nn_from or path).absolute()
        self.replacement = RunReplacement(self.path, RUNS.absolute())
        self.lock = FolderLock(self.path, str(path))  # a process holds it during training
        self.make_env: Callable[..., Any] | None = None  # opens the environment instead of base_config.env_name
        self.history = ConfigHistory(self.path / "configs")
        self._roles_file = self.path / "roles.json"
        self._roles: Mapping[str, Role] | None = None  # None: not read yet

    def __str__(self) -> str:
        return str(self.given_path)

    @classmethod
    def create(cls, environment: str, source: Path | None, name: str, tree: Tree) -> RunFolder:
        """Create the folder of a new run.

        Args:
            environment: Name of the environment.
            source: Folder of the environment, whose code is copied; None without one.
            name: Name of the run.
            tree: Settings of the run.

        Raises:
            UserError: A run of this name exists.
        """
        cls.check_name_free(environment, name)
        folder = cls(RUNS / get_run_group(environment) / name)
        files = [path for path in source.glob("*.py") if user_code.has_file(path)] if source else []
        folder.path.mkdir(parents=True)
        try:
            write_origin(folder.path, environment)
            for code in files:
                shutil.copy2(code, folder.path / code.name)
            folder.record_settings(tree, env_steps=0)
        except BaseException:  # Ctrl-C too
            folder.replacement.restore()
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
        return cls(find_run_path(environment, name))

    @property
    def config_file(self) -> Path:
        """The path of the file with the run's settings."""
        return self.path / CONFIG_FILE

    def load_settings(self, *layers: Layer) -> Settings:
        """Return the settings of the run with `layers` on top. Raises UserError for a folder of another format."""
        check_format(self.path)
        return resolve([(str(self.config_file), read_yaml(self.config_file)), *layers])

    def record_settings(self, tree: Tree, env_steps: int) -> None:
        """Write the settings that the run uses from `env_steps` on: config.yaml, and the history if they are new."""
        self.history.record(tree, env_steps)
        if not self.config_file.exists() or read_yaml(self.config_file) != tree:
            replace_text(self.config_file, format_yaml(tree))

    def recover(self, log: Callable[[str], None]) -> None:
        """Set aside damaged files, which a resumed run writes again; `log` receives a line for each file."""
        self.history.recover(log)
        try:
            if not self.read_roles() and self.checkpoints(keep=1):
                log(f"{self._roles_file} is missing: it is written again")
        except UserError as error:
            log(str(error))
            set_aside(self._roles_file)

    def has_learned(self) -> bool:
        """Return whether the run is kept when it ends: it has a checkpoint, or metrics and replaces no other run."""
        has_metrics = (self.path / TABLE_FILE).exists() and not self.replacement.has_backup
        return has_metrics or bool(self.checkpoints(keep=1))

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

    def find_checkpoint(self, which: str | None, log: Callable[[str], None]) -> Checkpoint:
        """Return a checkpoint by its env steps or its folder in the run folder; the best for None.

        Raises:
            UserError: There is no such checkpoint.
            CheckpointError: It is damaged.
        """
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

    def load_blueprint(self, name: str, arguments: Mapping[str, Any]) -> Blueprint | None:
        """Return the blueprint of the run's network, as `user_code.load_blueprint` does."""
        return user_code.load_blueprint(self.nn_from, name, arguments)

    def copy_network(self, name: str) -> None:
        """Copy the network's file `name` from `nn_from` to the run folder. Raises UserError if it is missing."""
        source = user_code.find_network_file(self.nn_from, name)
        if not user_code.has_file(source):
            raise UserError(f"--use-env-nn: there is no {name} in {self.nn_from}")
        replace_bytes(self.path / name, source.read_bytes())

    def load_environment(self, name: str | None) -> str | Callable[..., Any]:
        """Return the environment's id or maker, as `user_code.load_environment` does, unless `make_env` is set."""
        return self.make_env or user_code.load_environment(self.path, name)

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
            self._roles = read_roles(self._roles_file)
        return self._roles

    def check_role(self, name: str, role: Role | None) -> Role:
        """Return a role; the recorded one if it has not appeared yet. Raises UserError if the two differ."""
        recorded = self.read_roles().get(name)
        if role is None:
            assert recorded is not None, name  # roles of a checkpoint are recorded
            return recorded
        if recorded:
            check_specs(self.path, recorded, role)
        return role

    def add_role(self, name: str, role: Role) -> None:
        """Record a role, so that playing needs no simulator to build its agent, and its largest number of lanes."""
        roles = self.read_roles()
        if name not in roles or roles[name].lanes < role.lanes:
            self._roles = {**roles, name: role}
            write_roles(self._roles_file, self._roles)
