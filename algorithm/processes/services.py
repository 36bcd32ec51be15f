"""Services of a run: the data from which they start, the weights that they receive, rollout actors and evaluation."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

import numpy as np
import torch

from algorithm.adapters.adapter import Adapter
from algorithm.adapters.curriculum import EnvironmentParameters
from algorithm.adapters.process_setup import prepare_worker
from algorithm.agents.agent import Agent
from algorithm.checkpointing.checkpoint import Manifest, PackedFolder, pack_folder, unpack_folder
from algorithm.config.loader import Settings
from algorithm.errors import UserError
from algorithm.parts.components_builder import get_agent_settings, make_agent, make_auxiliaries, make_explorer
from algorithm.parts.lock import make_temporary_folder
from algorithm.parts.make_env import Environments
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.seeding import TRAINING, RunSeeds
from algorithm.parts.torch_setup import choose_placement, configure_torch
from algorithm.processes.host import forward_log
from algorithm.rollout import Rollout
from algorithm.specs import Role
from algorithm.training.actor import Actor
from algorithm.training.batch_scheduler import BatchScheduler
from algorithm.training.components import AgentComponents, TrainingComponents
from algorithm.training.evaluator import EpisodePlan, Evaluator, Outcome
from algorithm.training.invalid_values import Episode
from algorithm.training.learner import Learner
from algorithm.training.timer import measure_cpu_seconds

Weights = Mapping[str, Mapping[str, np.ndarray]]  # by role: the arrays of `pack_weights`


@dataclass(frozen=True, kw_only=True)
class RunTask:
    """The data from which a service of a run starts on any machine.

    Attributes:
        paths: the run folder and the folder of the network's file, on the machine of the main process.
        code: the files with code in the run folder.
        make_env: `RunFolder.make_env`, pickled.
        env_steps: env steps of the run so far, from which the seed of the environments follows.
    """

    settings: Settings
    paths: tuple[Path, Path]
    code: PackedFolder
    make_env: bytes
    env_steps: int

    @classmethod
    def pack(cls, settings: Settings, folder: RunFolder, env_steps: int) -> RunTask:
        """Return the data from which the services of the run in `folder` start."""
        import cloudpickle  # which Gymnasium needs

        code: PackedFolder = {}
        demonstrations = [folder.path / Path(source).name for source in settings.demonstration.sources]
        for path in (*folder.path.glob("*.py"), folder.nn_from / settings.base.nn, *demonstrations):
            if path.is_file():
                code |= pack_folder(path.parent, [path.name])
        paths, make_env = (folder.path, folder.nn_from), cloudpickle.dumps(folder.make_env)
        return cls(settings=settings, paths=paths, code=code, make_env=make_env, env_steps=env_steps)

    def unpack(self) -> RunFolder:
        """Write the files to a folder that is removed with this process. Return it as a run folder."""
        path = make_temporary_folder("samara-actor-")
        unpack_folder(self.code, Manifest(path))
        folder = self.open_folder(path)
        if self.paths[0].is_dir():  # on the machine of the main process
            folder.log_folder = self.paths[0]
        return folder

    def open_folder(self, *paths: Path) -> RunFolder:
        """Return a run folder, by default the one on the machine of the main process."""
        folder = RunFolder(*(paths or self.paths))
        folder.make_env = pickle.loads(self.make_env)
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


def pack_weights(learner: Learner, with_targets: bool) -> dict[str, np.ndarray]:
    """Return copies of the trained parameters and of both kinds of running statistics, and the counts, by name.

    The counts are `updates` and `rows_seen`. The target networks are included if `with_targets` is True: actors need
    them only for TD errors.
    """
    names = ["all_parameters"] if with_targets else ["vector", "batch_statistics"]
    tensors = {name: getattr(learner.parameters, name) for name in ("statistics", *names)}
    arrays = {name: tensor.cpu().numpy().copy() for name, tensor in tensors.items()}
    return {"counts": np.array([learner.updates, learner.rows_seen]), **arrays}


class WeightReceiver(Learner):
    """A learner in another process, which receives its weights from the learner of the run, and never learns."""

    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Load the arrays of `pack_weights`, which are copied, and may be read-only."""
        for name, array in weights.items():
            target = torch.from_numpy(self._counts) if name == "counts" else getattr(self.parameters, name)
            target.copy_(torch.from_numpy(array))
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


@dataclass(frozen=True, kw_only=True)
class Experience:
    """The experience that an actor has collected for a request.

    Attributes:
        version: version of the weights that acted, the number of times that the learner had learned.
        rollouts: rollouts that were completed, with their roles; lanes are those of the actor.
        env_steps: executed decisions since the last request.
        active_lanes: {role: [lanes] bool}, the lanes that had a row in this iteration.
        waiting_seconds: seconds between the end of the last request and this one.
        seconds: seconds in which it was collected.
        cpu_seconds: CPU seconds of the actor and its child processes since the last request.
    """

    version: int
    rollouts: Sequence[tuple[str, Rollout]]
    env_steps: int
    episodes: Sequence[Episode]
    active_lanes: Mapping[str, np.ndarray]
    waiting_seconds: float
    seconds: float
    cpu_seconds: float
    statistics: Mapping[str, float] = field(default_factory=dict)


class CollectorService(Service):
    """A rollout actor of a run, which makes ticks but no updates.

    A request begins with the decision for the last received step, so that all rows of a rollout are decided with the
    weights of one request, if all lanes act in every tick.
    """

    def open(self) -> Mapping[str, Role]:
        """Open the environments and build the agents. Return the roles of the environments."""
        settings, folder = self.task.settings, self.task.unpack()
        seeds = RunSeeds(settings.base.seed, (self.index, self.replacements))
        seeds.seed_process()
        self._fraction_done = 0.0
        parameters = EnvironmentParameters(settings.reset, lambda: self._fraction_done)
        adapter = Environments(settings, folder).open_training(parameters, self.index * settings.base.n_envs)
        self.training = make_fixed_training(adapter)
        self._actor = Actor(self.training, seeds.get_seed(TRAINING, self.task.env_steps))
        for name, role in adapter.roles.items():  # those of Unity are known after the first reset
            self.training.by_role[name] = self._build_components(seeds, folder, name, role)
        self._has_undecided_step = False
        self._last_end = perf_counter()
        self._cpu_seconds = measure_cpu_seconds()  # at the end of the last request
        return dict(adapter.roles)

    def _build_components(self, seeds: RunSeeds, folder: RunFolder, name: str, role: Role) -> AgentComponents:
        """Return the components of a role, which act and do not learn."""
        settings = get_agent_settings(self.task.settings, name)
        cluster, rng = settings.cluster, np.random.default_rng(seeds.make_component_seeds(name).spawn(1)[0])
        device = settings.base.device if cluster.gpus_per_actor else "cpu"
        learner = make_receiver(settings, folder, role, rng, device)
        agent, auxiliaries = learner.agent, learner.auxiliaries.by_name
        explorer = make_explorer(settings, role, role.lanes, agent, auxiliaries, (self.index, cluster.actors))
        scheduler = ForwardOnly()
        scheduler.records_td_errors = agent.schedule.uses_replay and settings.replay.initial_priorities is not None
        return AgentComponents(role=role, agent=agent, scheduler=scheduler, learner=learner, explorer=explorer)

    def collect(self, weights: Weights, version: int, iterations: int, fraction_done: float) -> Experience:
        """Make ticks with these weights until at least one rollout is complete. Return the new experience.

        `iterations` is the number of completed iterations of the run; after each of them, no lane counts as active.
        `fraction_done` is the fraction of the run that is done, for curricula.
        """
        start, actor = perf_counter(), self._actor
        waiting_seconds = start - self._last_end
        for role, components in self.training.by_role.items():
            assert isinstance(components.learner, WeightReceiver)
            components.learner.load_weights(weights[role])
            components.learner.noise.resample()
        actor.set_iterations(iterations)
        self._fraction_done = fraction_done
        if self._has_undecided_step:
            actor.act()
            actor.receive()
        while not (rollouts := actor.complete_rollouts()):
            actor.act()
            actor.receive()
        self._has_undecided_step = True
        cpu_seconds_before, self._cpu_seconds = self._cpu_seconds, measure_cpu_seconds()
        experience = Experience(
            version=version,
            rollouts=[(role, self._record_td_errors(role, rollout)) for role, rollout in rollouts],
            env_steps=actor.env_steps,
            episodes=list(actor.episodes),
            active_lanes=dict(actor.active_lanes),
            waiting_seconds=waiting_seconds,
            seconds=perf_counter() - start,
            cpu_seconds=self._cpu_seconds - cpu_seconds_before,
            statistics=self.training.adapter.statistics(),
        )
        actor.env_steps = 0
        actor.episodes.clear()
        self._last_end = perf_counter()
        return experience

    def _record_td_errors(self, role: str, rollout: Rollout) -> Rollout:
        """Return a rollout with its TD errors, if its initial priorities follow from them.

        The learner computes them instead if rewards follow from records of auxiliaries, which only the learner has.
        """
        components = self.training.by_role[role]
        if components.scheduler.records_td_errors and not components.learner.auxiliaries.n_records:
            return components.learner.record_td_errors(rollout)
        return rollout


class ForwardOnly(BatchScheduler):
    """The scheduler of an actor, which has no replay and learns from nothing."""

    def __call__(self, rollout: Rollout) -> Iterator[Rollout]:
        return iter(())


class EvaluatorService(Service):
    """An evaluation actor of a run, which plays episodes with the weights of each request.

    The first evaluation opens the environments.
    """

    _evaluator: Evaluator | None = None

    def evaluate(self, weights: Weights, plan: EpisodePlan, parameters: Mapping[str, Any]) -> Outcome:
        """Play the episodes of a plan with these weights and environment parameters. Return the outcome."""
        evaluator = self._evaluator = self._evaluator or self._open()
        self._weights = weights
        self._parameters.restore(parameters)
        return plan.play(evaluator)

    def _open(self) -> Evaluator:
        settings, self._folder = self.task.settings, self.task.unpack()
        n_actors = settings.cluster.actors
        RunSeeds(settings.base.seed, (n_actors, self.replacements)).seed_process()
        self._parameters = EnvironmentParameters(settings.reset)
        self._adapter = Environments(settings, self._folder).defer_evaluation(self._parameters, n_actors)
        self._learners: dict[str, WeightReceiver] = {}
        return Evaluator(self._adapter, self._get_agent, settings.base.evaluate_greedy)

    def _get_agent(self, role: str) -> Agent:
        """Return the agent of a role with the present weights; it is built when the role first appears."""
        if role not in self._weights:
            raise UserError(f"role {role!r} appeared in an evaluation only, which only runtime LOCAL supports")
        if role not in self._learners:
            settings, spec = get_agent_settings(self.task.settings, role), self._adapter.roles[role]
            # An evaluation draws from a generator of its own.
            rng = np.random.default_rng(settings.base.seed)
            self._learners[role] = make_receiver(settings, self._folder, spec, rng, "cpu")
        self._learners[role].load_weights(self._weights[role])
        return self._learners[role].agent
