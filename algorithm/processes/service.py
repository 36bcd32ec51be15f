"""What the services of a run have in common: the data from which they start, and the weights that they receive."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from algorithm.adapters.adapter import Adapter
from algorithm.adapters.process_setup import prepare_worker
from algorithm.checkpointing.checkpoint import Manifest, PackedFolder, pack_folder, unpack_folder
from algorithm.config.loader import Settings
from algorithm.errors import UserError
from algorithm.parts.components_builder import make_agent, make_auxiliaries
from algorithm.parts.lock import make_temporary_folder
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.torch_setup import choose_placement, configure_torch
from algorithm.processes.host import forward_log
from algorithm.specs import Role
from algorithm.training.components import AgentComponents, TrainingComponents
from algorithm.training.learner import Learner

Weights = Mapping[str, np.ndarray]  # by role: the array of `pack_weights`


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

    def open(self) -> Any:
        """Prepare the service. Return the roles of its environments, if it opens any; the default does nothing."""


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


def make_fixed_training(adapter: Adapter) -> TrainingComponents:
    """Return the components of a service, without any role, in whose environments neither roles nor lanes appear."""
    return TrainingComponents(adapter, forbid_new_role, grow_components=_forbid_new_lanes)


def forbid_new_role(name: str, role: Role) -> NoReturn:
    """Raise UserError for a role that appears during a run, for which the main process has no parameters."""
    raise UserError(f"role {name!r} appeared after the start, which only runtime LOCAL supports")


def _forbid_new_lanes(name: str, components: AgentComponents, role: Role) -> NoReturn:
    """Raise UserError for lanes that are added during a run, which the main process does not know."""
    raise UserError(
        f"role {name!r} has {role.lanes} agents after {components.role.lanes} at the start, which only runtime "
        "LOCAL supports"
    )


def pack_weights(learner: Learner, with_targets: bool) -> np.ndarray:
    """Return trained parameters, both kinds of running statistics, `updates` and `rows_seen` as a flat float32 array.

    The target networks are included if `with_targets` is True: actors need them only for TD errors. The statistics of
    observations and the counters have 64 bits: each takes two values of the array, so that no bit is lost.
    """
    statistics = learner.parameters.statistics.double().cpu().numpy()
    counts = np.array([learner.updates, learner.rows_seen], np.int64)
    tensors = [tensor.cpu().numpy() for tensor in _list_tensors(learner, with_targets)]
    return np.concatenate([statistics.view(np.float32), counts.view(np.float32), *tensors])


def _list_tensors(learner: Learner, with_targets: bool) -> list[Tensor]:
    parameters = learner.parameters
    return [parameters.all_parameters] if with_targets else [parameters.vector, parameters.batch_statistics]


def pack_all_weights(by_role: Mapping[str, AgentComponents]) -> Weights:
    """Return the weights of all roles."""
    return {
        role: pack_weights(components.learner, components.scheduler.records_td_errors)
        for role, components in by_role.items()
    }


class WeightReceiver(Learner):
    """A learner in another process, which receives its weights from the learner of the run, and never learns."""

    def load_weights(self, weights: np.ndarray) -> None:
        """Load the array of `pack_weights`, which is copied, and may be read-only."""
        statistics = self.parameters.statistics
        wide, values = np.split(weights, [2 * (len(statistics) + len(self._counts))])
        statistics.copy_(torch.from_numpy(wide[: 2 * len(statistics)].view(np.float64)))
        self._counts[:] = wide[2 * len(statistics) :].view(np.int64)
        start = 0
        for tensor in _list_tensors(self, with_targets=len(values) == len(self.parameters.all_parameters)):
            tensor.copy_(torch.from_numpy(values[start : start + len(tensor)]))
            start += len(tensor)
        self._mark_outdated()


def make_receiver(
    settings: Settings, folder: RunFolder, role: Role, rng: np.random.Generator, device: str
) -> WeightReceiver:
    """Return a learner with a new agent, whose weights are received.

    Args:
        settings: the settings of the role.
        folder: the run folder, with the network.
        role: the role.
        rng: the generator of the agent's samples.
        device: the device of its networks.
    """
    agent = make_agent(settings, folder, role, rng)
    base = settings.base.model_copy(update={"device": device, "precision": "float32"})
    placement = choose_placement(base, agent, role)
    return WeightReceiver(agent, role, make_auxiliaries(settings), base.max_step, placement)
