"""The start of a new run from the parameters of another run, also of another environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from algorithm.agents.agent import Agent
from algorithm.checkpointing.checkpoint import preserve_process_state
from algorithm.errors import UserError
from algorithm.networks.flat_parameters import State
from algorithm.networks.normalization import find_batch_norms
from algorithm.parts.components_builder import load_agent
from algorithm.parts.env_folder import RUNS
from algorithm.parts.run_folder import RunFolder
from algorithm.program import role_suffix
from algorithm.training.learner import Learner

SETTING = "base_config.initialize_from"


class WarmStart:
    """The parameters of another run, which the agents of a new run receive by role, name and shape.

    Their target networks become copies of their sources. Optimizers, counters, replay, statistics of returns and
    auxiliaries start with their initial values.

    Args:
        source: RUN or RUN@CHECKPOINT: the path of a run folder, also relative to runs/ or to `group`, and the env steps
            of a checkpoint, by default the best.
        group: the folder of the runs of the environment.
        log: receives lines for the user.

    Raises:
        UserError: there is no such run or checkpoint, or its roles cannot be read.
        CheckpointError: the checkpoint is damaged.
    """

    def __init__(self, source: str, group: Path, log: Callable[[str], None]):
        self.folder, which = find_run(source, group, SETTING)
        self._log = log
        self._settings, self._roles = self.folder.load_settings(), self.folder.read_roles()
        try:
            self._checkpoint = self.folder.read_checkpoint(which, log)
        except UserError as error:
            raise UserError(f"{SETTING} {source}: {str(error).removeprefix('--ckpt ')}") from error
        self.name = f"{self.folder}@{int(self._checkpoint.folder.name)}"

    def __call__(self, name: str, agent: Agent, learner: Learner) -> None:
        """Give the agent of a role, and its learner, the parameters of the same role, or of the only role of the run.

        Logs what was and what was not loaded.

        Raises:
            UserError: no parameter fits.
        """
        source = name if name in self._roles or len(self._roles) != 1 else next(iter(self._roles))
        if source not in self._roles or source not in self._checkpoint.roles:
            self._log(f"{SETTING}: {self.name} has no role {name}, which starts with new parameters")
            return
        with preserve_process_state():
            other = load_agent(self._settings, self.folder, self._checkpoint, source, self._roles[source])
        saved, new = _name_tensors(other), learner.parameters.state()
        loaded, missing = 0, []
        for path, value in _name_tensors(agent, new).items():
            source_value = saved.get(path)
            if source_value is not None and source_value.shape == value.shape:
                value.copy_(source_value)
                loaded += value.numel()
            else:
                other_shape = "" if source_value is None else f", there {list(source_value.shape)}"
                missing.append(f"{path} {list(value.shape)}{other_shape}")
        if not loaded:
            raise UserError(f"{SETTING}: no parameter of {self.name} fits {name}; it needs {', '.join(missing)}")
        del new["target_networks"]  # they become copies of their sources
        learner.parameters.load(new)
        suffix = role_suffix(name)
        self._log(f"parameters{suffix}: {loaded:,} values are from {self.name}")
        if missing:
            self._log(f"parameters{suffix}: new, since {self.name} has none of this shape: {', '.join(missing)}")


def find_run(source: str, group: Path, setting: str) -> tuple[RunFolder, str | None]:
    """Return the run that a setting names, and the checkpoint; None for the best. Raises UserError if it is missing."""
    name, at, which = source.rpartition("@")
    for path, checkpoint in ((source, None), (name, which)) if at else ((source, None),):
        for folder in (Path(path), RUNS / path, group / path):
            run = RunFolder(folder)
            if path and run.config_file.is_file():
                return run, checkpoint
    raise UserError(f"{setting} {source}: there is no such run; give its folder, as in runs/gym/cartpole/first")


def _name_tensors(agent: Agent, flat: State | None = None) -> dict[str, Tensor]:
    """Return the parameters and running statistics of an agent by path, or their views in the flat tensors `flat`."""
    named: dict[str, Tensor] = {}
    groups = {name: group.module for name, group in agent.groups.items()}
    for kind, modules in (("parameters", groups), ("statistics", agent.running_statistics())):
        for name, module in modules.items():
            own = module.named_parameters() if kind == "parameters" else module.named_buffers()
            named |= _view(name, dict(own), None if flat is None else flat[kind][name])
    for name, module in groups.items():
        if norms := {f"norm{number}": norm.running for number, norm in enumerate(find_batch_norms([module]))}:
            named |= _view(name, norms, None if flat is None else flat["batch_statistics"][name])
    return named


def _view(name: str, tensors: Mapping[str, Tensor], flat: Tensor | None) -> dict[str, Tensor]:
    """Return tensors, or their views in the flat tensor of all of them, by their path below `name`."""
    sizes = [tensor.numel() for tensor in tensors.values()]
    parts = tensors.values() if flat is None else flat.split(sizes)
    return {
        f"{name}.{path}": part.detach().view(tensor.shape)
        for (path, tensor), part in zip(tensors.items(), parts, strict=True)
    }
