"""A run on disk: runs/<environment>/<name>/ holds all that is needed to play or to go on."""

from __future__ import annotations

import importlib.util
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from algorithm.experiment.errors import UserError
from algorithm.experiment.settings import Settings, Tree, read_yaml, resolve
from algorithm.loop.checkpoint import WEIGHTS, Checkpoint, Checkpoints
from algorithm.loop.files import replace
from algorithm.networks import Blueprint
from algorithm.specs import ActionSpec, ObsSpec, Role

BESIDE_MAIN = Path(__file__).resolve().parents[2] / "envs"
RUNS = Path("runs")


def environment_folder(name: str) -> Path:
    """The folder envs/<name>, looked for in the working directory and then beside main.py."""
    for place in (Path("envs"), BESIDE_MAIN):
        folder = place / name
        if (folder / "config.yaml").is_file():
            return folder
    known = sorted({path.parent.relative_to(BESIDE_MAIN).as_posix() for path in BESIDE_MAIN.rglob("config.yaml")})
    raise UserError(f"no environment folder {name!r} with a config.yaml under ./envs; there is {', '.join(known)}")


def run_name(name: str, start: float) -> str:
    """`name` with {time} and <time> replaced by the start time. Raises UserError for what is no folder name."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(start))
    name = name.replace("{time}", stamp).replace("<time>", stamp)
    if not name or name.startswith(".") or any(sign in name for sign in '/\\:*?"<>|'):
        raise UserError(
            f"run name {name!r}: use a plain folder name; the environment's folder comes before it by itself"
        )
    return name


class RunFolder:
    """runs/<environment>/<name>/."""

    def __init__(self, path: Path):
        self.path = path

    @classmethod
    def create(cls, environment: str, source: Path, name: str, tree: Tree) -> RunFolder:
        """Make the folder with the resolved settings and the code of the environment's folder `source`.

        Raises UserError where a run of this name exists.
        """
        folder = cls(RUNS / environment / name)
        if (folder.path / "config.yaml").exists():
            raise UserError(f"run {folder.path} exists already; choose another name with -n")
        folder.path.mkdir(parents=True, exist_ok=True)
        for code in source.glob("*.py"):
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
            replace(history / f"{env_steps:012d}.yaml", _dump(tree))
        if not self.config.exists() or read_yaml(self.config) != tree:
            replace(self.config, _dump(tree))

    def last_settings(self) -> Tree:
        """What the run went by when it last went on; nothing where it never did."""
        history = sorted((self.path / "configs").glob("*.yaml"))
        return read_yaml(history[-1]) if history else {}

    def discard(self) -> None:
        """Remove a run that never began to learn, so that its name is free again."""
        if not self.checkpoints(keep=1):
            shutil.rmtree(self.path)

    @classmethod
    def find(cls, environment: str, name: str | None) -> RunFolder:
        """The run `name` of an environment, or its latest one. Raises UserError where there is none."""
        place = RUNS / environment
        runs = [path.parent for path in place.glob("*/config.yaml")]
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

    def settings(self, layers: Sequence[tuple[str, Tree]] = ()) -> Settings:
        """What the run goes by, with `layers` on top."""
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

    def blueprint(self, settings: Settings) -> Blueprint | None:
        """The blueprint of the run's own nn.py; None where it has none."""
        path = self.path / settings.base.nn
        if not path.is_file():
            if settings.base.nn != "nn.py":
                raise UserError(f"base_config.nn: there is no {settings.base.nn} in the environment's folder")
            return None
        blueprint = getattr(_module(path), "blueprint", None)
        if callable(blueprint):
            try:
                blueprint = blueprint(**settings.nn)
            except TypeError as error:
                raise UserError(f"nn_config does not fit {path}: {error}") from error
        elif settings.nn:
            raise UserError(f"nn_config: blueprint in {path} takes none, since it is not a function")
        if not isinstance(blueprint, Blueprint):
            raise UserError(f"{path}: expected `blueprint`, a Blueprint or a function that returns one")
        return blueprint

    def environment(self, settings: Settings) -> str | Callable[..., Any]:
        """The environment's id, or `make` of the run's own env.py."""
        name = settings.base.env_name
        if name is None:
            raise UserError("base_config.env_name is not set: name the environment, for example CartPole-v1")
        if not name.endswith(".py"):
            return name
        path = self.path / name
        if not path.is_file():
            raise UserError(f"base_config.env_name: there is no {name} in the environment's folder")
        make = getattr(_module(path), "make", None)
        if not callable(make):
            raise UserError(f"{path}: expected a function make(**env_args) that returns a gymnasium.Env")
        return make

    def add_role(self, name: str, role: Role) -> None:
        """Remember what a role observes and does, so that a player needs no simulator."""
        roles = self.roles()
        if name not in roles:
            text = json.dumps({key: asdict(value) for key, value in {**roles, name: role}.items()}, indent=1)
            replace(self.path / "roles.json", text)

    def roles(self) -> Mapping[str, Role]:
        """The roles that have appeared in this run."""
        path = self.path / "roles.json"
        if not path.exists():
            return {}
        return {
            name: Role(
                role["lanes"],
                {key: ObsSpec(tuple(spec["shape"]), spec["dtype"]) for key, spec in role["obs_specs"].items()},
                ActionSpec(**{key: tuple(v) if isinstance(v, list) else v for key, v in role["action_spec"].items()}),
            )
            for name, role in json.loads(path.read_text(encoding="utf-8")).items()
        }


def _dump(tree: Tree) -> str:
    return yaml.safe_dump(tree, sort_keys=False)


def _module(path: Path) -> ModuleType:
    """Import a file of an environment's folder. Raises UserError where it breaks."""
    spec = importlib.util.spec_from_file_location(f"samara_environment_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{path}: {type(error).__name__}: {error}") from error
    return module
