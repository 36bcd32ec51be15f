"""The contract of a runtime: the processes in which a run acts and learns, as the main process uses them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from algorithm.adapters.adapter import Adapter
from algorithm.adapters.curriculum import EnvironmentParameters
from algorithm.agents.agent import LossResult
from algorithm.checkpointing.checkpoint import Checkpoint, Manifest, write_all
from algorithm.config.loader import Settings
from algorithm.errors import LearnerUnreachable, UserError
from algorithm.parts.components_builder import Sharing
from algorithm.parts.make_env import Environments
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.seeding import TRAINING, RunSeeds
from algorithm.rollout import Step
from algorithm.specs import Role
from algorithm.training.actor import Actor
from algorithm.training.components import Diverged, DivergenceDetector, TrainingComponents
from algorithm.training.evaluator import EpisodePlan, Evaluations, Evaluator
from algorithm.training.invalid_values import Episode
from algorithm.training.monitor import Monitor
from algorithm.training.progress import Counters
from algorithm.training.signals import DeferredSignals, raise_deferred


@dataclass(eq=False)
class Fleet(ABC):
    """The processes of a run. Its methods are called in the order in which they are listed here.

    Attributes:
        settings: the settings of the run.
        folder: the run folder.
        environments: its environments.
        parameters: its environment parameters.
        counters: its counters.
        adapter: the training environments, or their roles only if they are in other processes.
        sharing: what the learners of this process share with those of others; None without others.
        training: the components of this process.
        monitor: the monitor of the run, which has begun.
        divergence: ends a run that diverges.
    """

    settings: Settings
    folder: RunFolder
    environments: Environments
    parameters: EnvironmentParameters
    counters: Counters
    adapter: Adapter = field(init=False)
    sharing: Sharing | None = field(init=False, default=None)
    training: TrainingComponents = field(init=False)
    monitor: Monitor = field(init=False)
    divergence: DivergenceDetector = field(init=False)

    @classmethod
    def check(cls, settings: Settings) -> None:
        """Raise UserError for settings that do not fit the runtime. The default does nothing."""

    @abstractmethod
    def open(self, evaluates: bool) -> None:
        """Open the training environments, and start the other processes; `evaluates`: whether the run evaluates."""

    def build(self, roles: Mapping[str, Role], checkpoint: Checkpoint | None) -> AbstractContextManager[None]:
        """Return a context in which this process builds its components; other processes do so at the same time.

        Args:
            roles: the roles, in the order in which the block builds their components.
            checkpoint: the checkpoint of the run, if it has one.
        """
        return nullcontext()

    def start(self, training: TrainingComponents, checkpoint: Checkpoint | None) -> None:
        """Receive the components of this process, which are restored."""
        self.training = training

    def make_evaluations(self, adapter: Adapter, make_plan: Callable[[int], EpisodePlan]) -> Evaluations | None:
        """Return the evaluations of the run, by default in this process; None if nothing can be evaluated.

        Args:
            adapter: the evaluation environments of this process.
            make_plan: returns the episodes of an evaluation that starts now, with this number that confirm the goal.
        """
        if self.environments.find_evaluation_obstacle():
            return None
        greedy = self.settings.base.evaluate_greedy
        evaluator = Evaluator(adapter, lambda role: self.training.get(role, adapter).agent, greedy, raise_deferred)
        return Evaluations(lambda confirmation_episodes: make_plan(confirmation_episodes).play(evaluator))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the generators of this process and the state of its environments. The default restores nothing."""

    @abstractmethod
    def save(self, manifest: Manifest) -> dict[str, Any]:
        """Write learners, replays and incomplete rollouts to a checkpoint.

        Returns:
            What counters.json has about them.

        Raises:
            OSError: they cannot be written.
        """

    def collect_metrics(self) -> Mapping[str, float]:
        """Return the metrics of the runtime since the last call, by name."""
        return {}

    def run(self, monitor: Monitor, divergence: DivergenceDetector) -> None:
        """Train until the run is over, and save a final checkpoint.

        There is none if the run diverged, or if another learner is lost, whose experience would be missing.

        Raises:
            Diverged: too many successive updates were skipped.
            KeyboardInterrupt, Terminated: a signal has ended the run, after a complete tick or update.
            EnvironmentCrashed: too many processes have ended.
            Exception: another process has raised it.
        """
        self.monitor, self.divergence, finish = monitor, divergence, monitor.finish
        with DeferredSignals() as signals:
            try:
                is_over = monitor.do_due()  # a run that was stopped while its last weights were evaluated has ended
                while not is_over:
                    is_over = self.advance(signals)
                    signals.raise_pending()
                divergence.check()
            except (Diverged, LearnerUnreachable):
                finish = monitor.reporter.close  # logs the last metrics
                raise
            finally:
                signals.defer_all()
                self.settle()
                finish()

    @abstractmethod
    def advance(self, signals: DeferredSignals) -> bool:
        """Continue the run for a tick or an update. Return whether the run is over."""

    def record_update(self, role: str, result: LossResult) -> None:
        """Record the update of a role in this process."""
        self.monitor.record_update(role, result)
        self.divergence.count_update()

    def settle(self) -> None:
        """Complete the ticks that have begun, before the final checkpoint. The default does nothing."""

    @abstractmethod
    def close(self) -> None:
        """Close the environments and end all other processes, also if `open` has failed."""


class LocalFleet(Fleet):
    """The local runtime: one process repeats a tick until the monitor, which then does what is due, ends the run."""

    def open(self, evaluates: bool) -> None:
        self.adapter = self.environments.open_training(self.parameters)

    def start(self, training: TrainingComponents, checkpoint: Checkpoint | None) -> None:
        self.training = training
        seeds = RunSeeds(self.settings.base.seed)
        self._actor = Actor(training, seeds.get_seed(TRAINING, self.counters.env_steps))

    def restore(self, checkpoint: Checkpoint) -> None:
        checkpoint.restore_process(self._actor)

    def save(self, manifest: Manifest) -> dict[str, Any]:
        return write_all(self.training, self._actor, manifest)

    def collect_metrics(self) -> Mapping[str, float]:
        return self.environments.collect_metrics()

    def advance(self, signals: DeferredSignals) -> bool:
        self._actor.run_tick(self.record_update)
        return self.monitor.tick(self._actor)

    def close(self) -> None:
        if hasattr(self, "adapter"):
            self.adapter.close()


class RemoteLanes:
    """The lanes of several processes with the same roles, numbered from those of the first process on.

    Args:
        count: the number of processes.
        roles: the roles in each of them.
    """

    def __init__(self, count: int, roles: Mapping[str, Role]):
        self.roles = roles
        self._active = {name: np.zeros(count * role.lanes, bool) for name, role in roles.items()}

    def count_episodes(
        self, monitor: Monitor, process: int, episodes: Sequence[Episode], active_lanes: Mapping[str, np.ndarray]
    ) -> None:
        """Count the episodes that ended in a process.

        Args:
            monitor: counts them.
            process: the number of the process.
            episodes: the episodes, with the lanes of the process.
            active_lanes: the lanes of the process that had a row in this iteration, by role.
        """
        for role, active in active_lanes.items():
            self._active[role][process * len(active) :][: len(active)] = active
        if episodes:
            first = {name: process * role.lanes for name, role in self.roles.items()}
            placed = [replace(each, lane=first[each.role] + each.lane) for each in episodes]
            monitor.count_episodes(placed, self._active)


class RemoteEnvironments(Adapter):
    """Environments in other processes, of which this process has the roles only.

    In a checkpoint they stand for the actor: there is no state, and a run that is resumed starts new episodes, whose
    rollouts continue no earlier ones.
    """

    def __init__(self, roles: Mapping[str, Role]):
        self.roles = roles

    def reset(self, seed: int) -> dict[str, Step]:
        raise NotImplementedError("only other processes reset their environments")

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore nothing."""

    def close(self) -> None:
        """Do nothing: each process closes its environments."""


def list_learner_notes(settings: Settings, checkpoint: Checkpoint | None) -> Iterator[str]:
    """Yield a line if there are several learners, and one if their number differs from that of a checkpoint."""
    saved, learners = checkpoint.n_learners if checkpoint else settings.n_learners, settings.n_learners
    if learners > 1:
        divided = "the actors, batch_size, learning_starts and capacity" if uses_replay(settings) else "the actors"
        yield f"learners: {learners}, each with 1/{learners} of {divided}"
    if saved == learners:
        return
    first, last = min(saved, learners), max(saved, learners) - 1
    changed = f"learner {first}" if first == last else f"learners {first} to {last}"
    change = f"that of {changed} is not used" if saved > learners else f"there is none for {changed}"
    yield f"learners: {saved} -> {learners}; networks, optimizers, counters and saved experience are kept, but {change}"


def forbid_natural_steps(settings: Settings, users: str) -> None:
    """Raise UserError if the agent of a role has a natural step, which needs a whole batch in one process.

    Args:
        settings: the settings of the run.
        users: what does not support it, for the message.
    """
    for each in (settings, *settings.roles.values()):
        if getattr(each.agent, "trust_region", None) == "full":
            raise UserError(f"{each.agent_section}.trust_region full is not for {users}: use efficient or off")


def uses_replay(settings: Settings) -> bool:
    """Return whether the agents of all roles have a replay."""
    return all(each.agent.uses_replay for each in (settings, *settings.roles.values()))
