"""What the services of a run have in common: the data from which they start, and what they do not support."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from algorithm.adapters.process_setup import prepare_worker
from algorithm.checkpointing.manifest import Manifest, PackedFolder, pack_folder, unpack_folder
from algorithm.config.loader import Settings
from algorithm.errors import UserError
from algorithm.parts.lock import make_temporary_folder
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.torch_setup import configure_torch
from algorithm.processes.host import forward_log
from algorithm.specs import Role
from algorithm.training.components import AgentComponents


@dataclass(frozen=True, kw_only=True)
class RunTask:
    """The data from which a service of a run starts on any machine.

    Attributes:
        settings: settings of the run.
        paths: the run folder and the folder of the network's file, on the machine of the main process.
        code: the files with code in the run folder.
        make_env: function that opens the environment instead of base_config.env_name, pickled; None without one.
        env_steps: env steps of the run so far, from which the seed of the environments follows.
    """

    settings: Settings
    paths: tuple[Path, Path]
    code: PackedFolder
    make_env: bytes | None
    env_steps: int

    @classmethod
    def pack(cls, settings: Settings, folder: RunFolder, env_steps: int) -> RunTask:
        """Return the data from which the services of the run in `folder` start."""
        code: PackedFolder = {}
        for path in (*folder.path.glob("*.py"), folder.nn_from / settings.base.nn):
            if path.is_file():
                code |= pack_folder(path.parent, [path.name])
        make_env = None
        if folder.make_env is not None:
            import cloudpickle  # which Gymnasium needs

            make_env = cloudpickle.dumps(folder.make_env)
        paths = (folder.path, folder.nn_from)
        return cls(settings=settings, paths=paths, code=code, make_env=make_env, env_steps=env_steps)

    def unpack(self) -> RunFolder:
        """Write the files to a folder that is removed with this process. Return it as a run folder."""
        path = make_temporary_folder("samara-actor-")
        unpack_folder(self.code, Manifest(path))
        return self._open(path)

    def open_folder(self) -> RunFolder:
        """Return the run folder itself, for a service on the machine of the main process."""
        return self._open(*self.paths)

    def _open(self, *paths: Path) -> RunFolder:
        folder = RunFolder(*paths)
        folder.make_env = pickle.loads(self.make_env) if self.make_env else None
        return folder


class Service:
    """A service of a run.

    Args:
        task: the data from which it starts.
        index: its number.
        replacements: the number of processes with this number that ended before it.
    """

    def __init__(self, task: RunTask, index: int, replacements: int):
        self.task, self.index, self.replacements = task, index, replacements


def start_service(service_class: Callable[..., Service], task: RunTask, *arguments: Any) -> Service:
    """Configure this process, and return its service, given the arguments after `task`."""
    prepare_worker()
    allow_read_only_arrays()
    configure_torch()
    forward_log()
    return service_class(task, *arguments)


def allow_read_only_arrays() -> None:
    """Suppress torch's warning about arrays that cannot be written, as all arrays of received messages are.

    Nothing writes to a weight array or to the arrays of a collected rollout.
    """
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def forbid_new_role(name: str, role: Role) -> NoReturn:
    """Raise UserError for a role that appears during a run, for which the main process has no parameters."""
    raise UserError(f"role {name!r} appeared after the start, which only runtime LOCAL supports")


def forbid_new_lanes(name: str, components: AgentComponents, role: Role) -> NoReturn:
    """Raise UserError for lanes that are added during a run, which the main process does not know."""
    raise UserError(
        f"role {name!r} has {role.lanes} agents after {components.role.lanes} at the start, which only runtime "
        "LOCAL supports"
    )
