"""A learner of a run with several, in its own process: it builds its components from the settings of the run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from algorithm.checkpointing.checkpoint import Checkpoint, make_prefix
from algorithm.checkpointing.manifest import Manifest
from algorithm.checkpointing.writer import write_experience, write_learner_state
from algorithm.parts.agent_config import AgentConfigs
from algorithm.parts.components_builder import ComponentsBuilder
from algorithm.parts.seeding import RunSeeds, seed_process
from algorithm.processes.averaging_learner import make_learner_sharing
from algorithm.processes.collect import ActorTask, catch_failure, prepare_process, write_folder
from algorithm.processes.collection import Failure
from algorithm.processes.learner_group import GroupOptions, close_group
from algorithm.processes.learner_peers import BuildTask, LearnerFiles
from algorithm.processes.learning_round import Reply, Round, RoundReport, learn_round
from algorithm.processes.messages import LogRecord
from algorithm.processes.worker import refuse_lanes, refuse_role
from algorithm.processes.workers_runtime import RemoteEnvironments
from algorithm.training.components import TrainingComponents

AnyReply = TypeVar("AnyReply", bound=Reply)


class LearnerService:
    """A process of a learner other than learner 0, which replies to calls: with a Reply, or with a Failure.

    Args:
        task: the data from which it starts.
        rank: the number of the learner, from 1.
    """

    def __init__(self, task: ActorTask, rank: int):
        self.task, self.rank = task, rank
        self._log: list[LogRecord] = []

    def open(self) -> Reply | Failure:
        """Prepare the process."""
        return self._reply(self._open)

    def join(self, options: GroupOptions) -> Reply | Failure:
        """Connect with the other learners."""
        return self._reply(lambda: self._join(options))

    def build(self, task: BuildTask) -> Reply | Failure:
        """Build the components of all roles, while the other learners build theirs."""
        return self._reply(lambda: self._build(task))

    def learn(self, own: Round) -> RoundReport | Failure:
        """Make the updates of a round, while the other learners make them."""
        return self._reply(lambda: learn_round(self._training.by_role[own.role], own))

    def save(self, _: None) -> LearnerFiles | Failure:
        """Return the files of a checkpoint with the experience of this learner."""
        return self._reply(self._save)

    def _open(self) -> Reply:
        self._log = prepare_process()
        self._folder = write_folder(self.task)
        return Reply()

    def _join(self, options: GroupOptions) -> Reply:
        self._group = options.join(self.rank)
        return Reply()

    def _build(self, task: BuildTask) -> Reply:
        settings = self.task.settings
        seeds = RunSeeds(settings.base.seed, (self.rank, 0))
        seed_process(seeds.process)
        adapter = RemoteEnvironments(dict(task.roles))
        self._training = TrainingComponents(adapter, refuse_role, grow_components=refuse_lanes)
        with tempfile.TemporaryDirectory(dir=self._folder.path) as folder:
            checkpoint = _write_files(task.files, Path(folder), self.rank) if task.files else None
            sharing = make_learner_sharing(self._group)
            builder = ComponentsBuilder(
                AgentConfigs(settings), self._folder, checkpoint, lambda line: None, sharing, seeds
            )
            for name, role in task.roles:
                components = builder(name, role)
                if role.lanes > components.role.lanes:  # more actors than the checkpoint has lanes for
                    components = builder.grow(name, components, role)
                self._training.by_role[name] = components
            if checkpoint:
                checkpoint.restore_process(_NoEnvironments())
        return Reply()

    def _save(self) -> LearnerFiles:
        prefix = make_prefix(self.rank)
        try:
            with tempfile.TemporaryDirectory(dir=self._folder.path) as folder:
                manifest = Manifest(Path(folder))
                metadata = write_experience(self._training, _NoEnvironments(), manifest, prefix)
                for role, components in self._training.by_role.items():
                    write_learner_state(manifest, role, components.learner.own_state(), prefix)
                files = {name: np.fromfile(manifest.folder / name, np.uint8) for name in manifest.digests}
        except OSError as error:  # the next checkpoint tries again
            return LearnerFiles(error=error)
        return LearnerFiles(files=files, metadata=metadata)

    def _reply(self, call: Callable[[], AnyReply]) -> AnyReply | Failure:
        """Return the reply of `call` with the logged messages; after an exception, the others do not wait."""
        reply = catch_failure(call)
        if isinstance(reply, Failure):
            close_group()
            return reply
        reply = replace(reply, log=list(self._log))
        self._log.clear()
        return reply


def _write_files(files: Mapping[str, np.ndarray], folder: Path, rank: int) -> Checkpoint:
    """Write the files of a checkpoint to a folder. Return the checkpoint with the experience of a learner."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content.tofile(path)
    return Checkpoint(folder, rank)


class _NoEnvironments:
    """The actor of a checkpoint of a learner, which has no environments."""

    def state(self) -> None:
        """Return None."""

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore nothing."""
