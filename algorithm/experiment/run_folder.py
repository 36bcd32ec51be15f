"""A run on disk: runs/<environment>/<name>/ holds all that is needed to play or to go on."""

from __future__ import annotations

import inspect
import shutil
import time
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from algorithm.experiment import roles
from algorithm.experiment.environments import BESIDE_MAIN, HERE, environment_name, environments, is_file_name
from algorithm.experiment.errors import UserError
from algorithm.experiment.settings import Layer, Settings, Tree, read_yaml, resolve
from algorithm.experiment.user_code import has_file, import_file, locate
from algorithm.experiment.yaml_text import dump
from algorithm.loop.checkpoint import WEIGHTS, Checkpoint, CheckpointError
from algorithm.loop.checkpoints import Checkpoints
from algorithm.loop.files import replace
from algorithm.networks import Blueprint
from algorithm.specs import Role

RUNS = Path("runs")


def environment_folder(name: str) -> Path:
    """The folder envs/<name>, looked for in the working directory and then beside main.py."""
    name = environment_name(name)
    for place in (HERE, BESIDE_MAIN):
        folder = place / name
        if (folder / "config.yaml").is_file():
            return folder
    known = environments()
    near = get_close_matches(name, known, 1)
    there = f"did you mean {near[0]}?" if near else f"there is {', '.join(known)}"
    raise UserError(f"no environment folder {name!r} with a config.yaml under ./envs; {there}")


def run_name(name: str, start: float) -> str:
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
    """runs/<environment>/<name>/. Its network comes from `nn_from`: its own copy of nn.py, unless told otherwise."""

    def __init__(self, path: Path, nn_from: Path | None = None):
        self.path = path
        self.nn_from = nn_from or path

    @classmethod
    def create(cls, environment: str, source: Path, name: str, tree: Tree) -> RunFolder:
        """Make the folder with the resolved settings and the code of the environment's folder `source`.

        Raises UserError where a run of this name exists.
        """
        cls.free(environment, name)
        folder = cls(RUNS / environment / name)
        files = [path for path in source.glob("*.py") if has_file(path)]
        folder.path.mkdir(parents=True)
        for code in files:
            shutil.copy2(code, folder.path / code.name)
        folder.record(tree, env_steps=0)
        return folder

    def record(self, tree: Tree, env_steps: int) -> None:
        """Write what the run goes by from `env_steps` on: config.yaml, and configs/<env_steps>.yaml where it is new."""
        history = self.path / "configs"
        history.mkdir(exist_ok=True)
        for path in history.glob("*.yaml"):
            if int(path.stem) > env_steps:  # of a way that is not gone on with
                path.unlink()
        if self.last_settings() != tree:
            replace(history / f"{env_steps:012d}.yaml", dump(tree))
        if not self.config.exists() or read_yaml(self.config) != tree:
            replace(self.config, dump(tree))

    def last_settings(self) -> Tree:
        """What the run went by when it last went on; nothing where it never did."""
        history = sorted((self.path / "configs").glob("*.yaml"))
        return read_yaml(history[-1]) if history else {}

    def discard(self) -> None:
        """Remove a run that never began to learn, so that its name is free again, or that of the run it replaced."""
        if not self.checkpoints(keep=1):
            shutil.rmtree(self.path)
            if self._replaced.exists():
                self._replaced.rename(self.path)

    def forget_replaced(self) -> None:
        """The run has begun: remove the one it replaced."""
        if self._replaced.exists():
            shutil.rmtree(self._replaced)

    @property
    def _replaced(self) -> Path:
        """Where the run stands that this one replaces; a run's own name never starts with a dot."""
        return self.path.with_name(f".{self.path.name}")

    @staticmethod
    def free(environment: str, name: str) -> None:
        """Raises UserError where a run of this name exists."""
        path = RUNS / environment / name
        if path.exists():
            raise UserError(
                f"run {path} exists already; --resume goes on with it, --force replaces it, -n gives another name"
            )

    @classmethod
    def set_aside(cls, environment: str, name: str) -> None:
        """Make way for a run that replaces one of this name. Raises UserError for a folder that is no run."""
        folder = cls(RUNS / environment / name)
        if folder.path.exists():
            if not (folder.path / "config.yaml").is_file():
                raise UserError(
                    f"{folder.path} is no run (it has no config.yaml), so --force leaves it; use another name"
                )
            folder.forget_replaced()
            folder.path.rename(folder._replaced)

    @classmethod
    def find(cls, environment: str, name: str | None) -> RunFolder:
        """The run `name` of an environment, or its latest one. Raises UserError where there is none."""
        place = RUNS / environment
        runs = [path.parent for path in place.glob("[!.]*/config.yaml")]
        if name is None:
            if not runs:
                raise UserError(f"there is no run under {place} yet; train one with: python main.py {environment}")
            return cls(max(runs, key=lambda path: (path / "config.yaml").stat().st_mtime))
        if place / name not in runs:
            raise UserError(
                f"there is no run {name!r} under {place}; there is {', '.join(p.name for p in runs) or 'none'}"
            )
        return cls(place / name)

    @property
    def config(self) -> Path:
        """The file of its settings."""
        return self.path / "config.yaml"

    def settings(self, *layers: Layer) -> Settings:
        """What the run goes by, under `layers`."""
        return resolve([(str(self.config), read_yaml(self.config)), *layers])

    def checkpoints(self, keep: int) -> Checkpoints:
        """The run's checkpoints."""
        return Checkpoints(self.path / "checkpoints", keep)

    def latest(self, say: Callable[[str], None] = print) -> Checkpoint:
        """The newest checkpoint whose weights can be read; `say` is told of those that cannot.

        Raises UserError where there is no checkpoint, CheckpointError where none can be read.
        """
        checkpoint = self.checkpoints(keep=1).latest(say, WEIGHTS)
        if checkpoint is None:
            raise UserError(f"{self.path} has no checkpoint yet")
        return checkpoint

    def best(self, say: Callable[[str], None] = print) -> Checkpoint:
        """What is played: the checkpoint that did best on held-out episodes, or the newest where none was evaluated.

        Once the goal was confirmed, it is the one that confirmed it or a better one. Raises UserError where there is
        none.
        """
        best = self.checkpoints(keep=1).best.checkpoint
        if best:
            try:
                best.check(WEIGHTS)
                return best
            except CheckpointError as error:
                say(f"{error}: the newest checkpoint is used instead of the best")
        return self.latest(say)

    def checkpoint(self, which: str | None, say: Callable[[str], None]) -> Checkpoint:
        """A checkpoint by its env steps or its folder; the best for None. Raises UserError where there is none."""
        if which is None:
            return self.best(say)
        folder = self.path / "checkpoints"
        path = folder / f"{int(which):012d}" if which.isdecimal() else Path(which)
        if (path / "counters.json").is_file():
            return Checkpoint(path)
        there = [str(int(other.name)) for other in sorted(folder.glob("*")) if other.name.isdecimal()]
        raise UserError(f"--ckpt {which}: there is no such checkpoint; {self.path} has {', '.join(there) or 'none'}")

    def blueprint(self, settings: Settings) -> Blueprint | None:
        """The blueprint that nn.py holds; None where there is no nn.py. Raises UserError where it breaks."""
        path = self.nn_from / settings.base.nn
        if not has_file(path):
            if settings.base.nn != "nn.py":
                raise UserError(f"base_config.nn: there is no {settings.base.nn} in {self.nn_from}")
            if settings.nn:
                raise UserError(f"nn_config: there is no nn.py in {self.nn_from} whose blueprint would take it")
            return None
        blueprint = getattr(import_file(path), "blueprint", None)
        if callable(blueprint):
            blueprint = _call(blueprint, settings.nn, path)
        elif settings.nn:
            raise UserError(f"nn_config: blueprint in {path} takes none, since it is not a function")
        if not isinstance(blueprint, Blueprint):
            raise UserError(f"{path}: expected `blueprint`, a Blueprint or a function that returns one")
        return blueprint

    def adopt_network(self, settings: Settings) -> None:
        """Make the file that the network comes from the run's own. Raises UserError where there is none."""
        source = self.nn_from / settings.base.nn
        if not has_file(source):
            raise UserError(f"--use_env_nn: there is no {settings.base.nn} in {self.nn_from}")
        shutil.copy2(source, self.path / settings.base.nn)

    def environment(self, settings: Settings) -> str | Callable[..., Any]:
        """The environment's id, or `make` of the run's own env.py."""
        name = settings.base.env_name
        if name is None:
            raise UserError("base_config.env_name is not set: name the environment, for example CartPole-v1")
        if not name.endswith(".py"):
            return name
        path = self.path / name
        if not has_file(path):
            raise UserError(f"base_config.env_name: there is no {name} in the environment's folder")
        make = getattr(import_file(path), "make", None)
        if not callable(make):
            raise UserError(f"{path}: expected a function make(**env_args) that returns a gymnasium.Env")
        return make

    def add_role(self, name: str, role: Role) -> None:
        """Remember what a role observes and does, so that a player needs no simulator."""
        known = self.roles()
        if name not in known:
            roles.write(self.path / "roles.json", {**known, name: role})

    def roles(self) -> Mapping[str, Role]:
        """The roles that have appeared in this run. Raises UserError where another version wrote them."""
        return roles.read(self.path / "roles.json")


def _call(blueprint: Callable[..., Any], nn_config: Mapping[str, Any], path: Path) -> Any:
    """What the function `blueprint` returns. Raises UserError where it does not take `nn_config`, or breaks."""
    try:
        inspect.signature(blueprint).bind(**nn_config)
    except (TypeError, ValueError) as error:
        raise UserError(f"nn_config does not fit {path}: {error}") from error
    try:
        return blueprint(**nn_config)
    except (Exception, SystemExit) as error:  # whatever is in it
        raise locate(path, error) from error
