"""A run on disk: runs/<environment>/<name>/ holds all that is needed to play or to go on."""

from __future__ import annotations

import inspect
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from algorithm.checkpointing.atomic_io import replace_text, resolve_inside, set_aside
from algorithm.checkpointing.checkpoint import WEIGHTS, Checkpoint
from algorithm.checkpointing.store import CheckpointStore
from algorithm.config.loader import Layer, Settings, Tree, read_yaml, resolve
from algorithm.config.yaml_text import dump
from algorithm.errors import UserError
from algorithm.networks import Blueprint
from algorithm.runs import roles
from algorithm.runs.config_history import ConfigHistory
from algorithm.runs.env_folder import (
    ORIGIN_FILE,
    RUNS,
    check_origin,
    describe_first_step,
    find_folder,
    get_run_group,
    is_file_name,
    is_run_of,
    locate_environment,
    make_unknown_error,
)
from algorithm.runs.lock import FolderLock
from algorithm.runs.replacing import RunReplacement
from algorithm.runs.user_code import has_file, import_file, locate_error
from algorithm.specs import Role
from algorithm.training.metrics_table import TABLE_FILE


def find_environment_folder(environment: str) -> Path:
    """Return the folder of a name or path: of a name, envs/<name> in the working directory, or alongside main.py.

    Raises UserError if it has no config.yaml.
    """
    environment = locate_environment(environment)
    folder = find_folder(environment)
    if folder is None:
        raise make_unknown_error(environment)
    return folder


def format_run_name(name: str, start: float) -> str:
    """`name` with {time} and <time> replaced by the start time. Raises UserError for what is no folder name."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(start))
    filled = name.replace("{time}", stamp).replace("<time>", stamp)
    if not is_file_name(filled) or "{" in filled:
        raise UserError(
            f"run name {name!r}: use a plain folder name, {{time}} in it for the start time; "
            "the environment's folder comes before it by itself"
        )
    return filled


class RunFolder:
    """runs/<environment>/<name>/. Its network comes from `nn_from`: by default its own copy of nn.py.

    Paths are absolute, since an environment may change the working directory; as text it is the path that was given.
    """

    def __init__(self, path: Path, nn_from: Path | None = None):
        self.given_path = path
        self.path = path.absolute()
        self.nn_from = (nn_from or path).absolute()
        self.replacement = RunReplacement(self.path, RUNS.absolute())
        self.lock = FolderLock(self.path, str(path))  # held while a process trains in it
        self.history = ConfigHistory(self.path / "configs")
        self._roles = self.path / "roles.json"

    def __str__(self) -> str:
        return str(self.given_path)

    @classmethod
    def create(cls, environment: str, source: Path, name: str, tree: Tree) -> RunFolder:
        """Make the folder with the resolved settings and the code of the environment's folder `source`.

        Raises UserError where a run of this name exists.
        """
        cls.check_name_free(environment, name)
        folder = cls(RUNS / get_run_group(environment) / name)
        files = [path for path in source.glob("*.py") if has_file(path)]
        folder.path.mkdir(parents=True)
        try:
            (folder.path / ORIGIN_FILE).write_text(f"{environment}\n", encoding="utf-8")
            for code in files:
                shutil.copy2(code, folder.path / code.name)
            folder.record_settings(tree, env_steps=0)
        except BaseException:  # Ctrl-C too
            folder.replacement.restore()
            raise
        return folder

    def record_settings(self, tree: Tree, env_steps: int) -> None:
        """Write what the run goes by from `env_steps` on: config.yaml, and configs/<env_steps>.yaml where it is new."""
        self.history.record(tree, env_steps)
        if not self.config_file.exists() or read_yaml(self.config_file) != tree:
            replace_text(self.config_file, dump(tree))

    def read_last_settings(self) -> Tree:
        """What the run went by when it last went on; nothing where it never did."""
        return self.history.read_last()

    def recover(self, log: Callable[[str], None]) -> None:
        """Set aside damaged records, which a resumed run writes again; `log` gets a line for each, and each missing."""
        self.history.recover(log)
        try:
            if not self.read_roles() and self.checkpoints(keep=1):
                log(f"{self._roles} is missing: it is written again")
        except UserError as error:
            log(str(error))
            set_aside(self._roles)

    def has_learned(self) -> bool:
        """Return whether metrics or a checkpoint of the run exist."""
        return (self.path / TABLE_FILE).exists() or bool(self.checkpoints(keep=1))

    @staticmethod
    def check_name_free(environment: str, name: str) -> None:
        """Raises UserError where a run of this name exists."""
        path = RUNS / get_run_group(environment) / name
        check_origin(path, environment)
        if path.exists():
            raise UserError(
                f"run {path} exists already; --resume goes on with it, --force replaces it, -n gives another name"
            )

    @classmethod
    def find_replaceable(cls, environment: str, name: str) -> RunFolder | None:
        """Return the run of this name; None if there is none.

        Raises UserError for a folder that is no run, and for a run in training.
        """
        folder = cls(RUNS / get_run_group(environment) / name)
        if not folder.path.exists():
            return None
        check_origin(folder.given_path, environment)
        if not folder.config_file.is_file():
            raise UserError(f"{folder} is no run (it has no config.yaml), so --force leaves it; use another name")
        with folder.lock:
            return folder

    @classmethod
    def find(cls, environment: str, name: str | None) -> RunFolder:
        """The run `name` of an environment, or its latest one. Raises UserError where there is none."""
        group_folder = RUNS / get_run_group(environment)
        runs = [path.parent for path in group_folder.glob("[!.]*/config.yaml") if is_run_of(path.parent, environment)]
        if name is None:
            if not runs:
                raise UserError(f"there is no run under {group_folder} yet; {describe_first_step(environment)}")
            return cls(max(runs, key=lambda path: (path / "config.yaml").stat().st_mtime))
        check_origin(group_folder / name, environment)
        if group_folder / name not in runs:
            raise UserError(
                f"there is no run {name!r} under {group_folder}; there is {', '.join(p.name for p in runs) or 'none'}"
            )
        return cls(group_folder / name)

    @property
    def config_file(self) -> Path:
        """The file of its settings."""
        return self.path / "config.yaml"

    def load_settings(self, *layers: Layer) -> Settings:
        """What the run goes by, under `layers`."""
        return resolve([(str(self.config_file), read_yaml(self.config_file)), *layers])

    def checkpoints(self, keep: int) -> CheckpointStore:
        """The run's checkpoints."""
        return CheckpointStore(self.path / "checkpoints", keep)

    def find_latest(self, log: Callable[[str], None] = print) -> Checkpoint:
        """The newest checkpoint whose weights can be read; `log` is told of those that cannot.

        Raises UserError where there is no checkpoint, CheckpointError where none can be read.
        """
        checkpoint = self.checkpoints(keep=1).latest(log, WEIGHTS)
        if checkpoint is None:
            raise UserError(f"{self} has no checkpoint yet")
        return checkpoint

    def find_best(self, log: Callable[[str], None] = print) -> Checkpoint:
        """Return the checkpoint to play: the checkpoint with the best evaluation, or the newest if none was evaluated.

        It is the newest, too, where teams share an agent. Once the goal was confirmed, it is the one that confirmed it
        or a better one. Raises UserError where there is none.
        """
        if self.has_teams:
            return self.find_latest(log)
        checkpoints = self.checkpoints(keep=1)
        checkpoints.best.recover(checkpoints.list_all(), log)
        return checkpoints.best.checkpoint or self.find_latest(log)

    def find_checkpoint(self, which: str | None, log: Callable[[str], None]) -> Checkpoint:
        """Return a checkpoint by its env steps or its folder in the run folder; the best for None.

        Raises UserError if there is none, CheckpointError if it is damaged.
        """
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

    def load_blueprint(self, settings: Settings) -> Blueprint | None:
        """The blueprint that nn.py holds; None where there is no nn.py. Raises UserError where it breaks."""
        path = _resolve_file(self.nn_from, settings.base.nn, "base_config.nn")
        if not has_file(path):
            if settings.base.nn != "nn.py":
                raise UserError(f"base_config.nn: there is no {settings.base.nn} in {self.nn_from}")
            if settings.nn:
                raise UserError(f"nn_config: there is no nn.py in {self.nn_from} whose blueprint would take it")
            return None
        blueprint = getattr(import_file(path), "blueprint", None)
        if callable(blueprint):
            blueprint = _call_blueprint(blueprint, settings.nn, path)
        elif settings.nn:
            raise UserError(f"nn_config: blueprint in {path} takes none, since it is not a function")
        if not isinstance(blueprint, Blueprint):
            raise UserError(f"{path}: expected `blueprint`, a Blueprint or a function that returns one")
        return blueprint

    def copy_network(self, settings: Settings) -> None:
        """Make the file that the network comes from the run's own. Raises UserError where there is none."""
        source = _resolve_file(self.nn_from, settings.base.nn, "base_config.nn")
        if not has_file(source):
            raise UserError(f"--use_env_nn: there is no {settings.base.nn} in {self.nn_from}")
        shutil.copy2(source, self.path / settings.base.nn)

    def load_environment(self, settings: Settings) -> str | Callable[..., Any]:
        """The environment's id, or `make` of the run's own env.py."""
        name = settings.base.env_name
        if name is None:
            raise UserError("base_config.env_name is not set: name the environment, for example CartPole-v1")
        if not name.endswith(".py"):
            return name
        path = _resolve_file(self.path, name, "base_config.env_name")
        if not has_file(path):
            raise UserError(f"base_config.env_name: there is no {name} in the environment's folder")
        make = getattr(import_file(path), "make", None)
        if not callable(make):
            raise UserError(f"{path}: expected a function make(**env_args) that returns a gymnasium.Env")
        return make

    @property
    def has_teams(self) -> bool:
        """Whether teams share an agent, so that their mean return says nothing about its weights.

        False where the roles cannot be read: a run is played without them.
        """
        try:
            known = self.read_roles()
        except UserError:
            return False
        return any(len(role.count_lanes_by_team(name)) > 1 for name, role in known.items())

    def add_role(self, name: str, role: Role) -> None:
        """Record the spaces of a role, so that a player needs no simulator, and its largest number of lanes so far."""
        known = self.read_roles()
        if name not in known or known[name].lanes < role.lanes:
            roles.write_roles(self._roles, {**known, name: role})

    def read_roles(self) -> Mapping[str, Role]:
        """Return the roles that have appeared in this run. Raises UserError if they cannot be read."""
        return roles.read_roles(self._roles)


def _resolve_file(folder: Path, name: str, setting: str) -> Path:
    """Return the file of a folder that `setting` names. Raises UserError for one outside of it."""
    try:
        return resolve_inside(folder, Path(name))
    except ValueError as error:
        raise UserError(f"{setting}: {name} is refused: {error}") from error


def _call_blueprint(blueprint: Callable[..., Any], nn_config: Mapping[str, Any], path: Path) -> Any:
    """What the function `blueprint` returns. Raises UserError where it does not take `nn_config`, or breaks."""
    try:
        inspect.signature(blueprint).bind(**nn_config)
    except (TypeError, ValueError) as error:
        raise UserError(f"nn_config does not fit {path}: {error}") from error
    try:
        return blueprint(**nn_config)
    except (Exception, SystemExit) as error:  # whatever is in it
        raise locate_error(path, error) from error
