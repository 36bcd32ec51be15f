"""An evaluation actor of a run: it opens its own environments and builds its agents from the settings of the run."""

from __future__ import annotations

import numpy as np

from algorithm.adapters.curriculum import EnvironmentParameters
from algorithm.parts.agent_config import AgentConfigs
from algorithm.parts.make_env import Environments
from algorithm.parts.seeding import RunSeeds, seed_process
from algorithm.processes.collect import (
    ActorTask,
    catch_failure,
    make_receiving_learner,
    prepare_process,
    write_folder,
)
from algorithm.processes.collection import EvaluationReply, EvaluationRequest, Failure, ReceivingLearner, Weights
from algorithm.processes.evaluation_actor import EvaluationActor
from algorithm.processes.messages import LogRecord


class EvaluatorService:
    """A process of an evaluation actor, which replies with the results, or with a Failure instead of an exception.

    The first evaluation opens the environments.

    Args:
        task: the data from which it starts.
        replacements: the number of evaluation actors that ended before it.
    """

    def __init__(self, task: ActorTask, replacements: int):
        self.task, self.replacements = task, replacements
        self._actor: EvaluationActor | None = None

    def evaluate(self, weights: Weights, request: EvaluationRequest) -> EvaluationReply | Failure:
        """Play the episodes of a request with these weights. Return the outcome."""
        return catch_failure(lambda: self._evaluate(weights, request))

    def _evaluate(self, weights: Weights, request: EvaluationRequest) -> EvaluationReply:
        if self._actor is None:
            self._actor = make_evaluation_actor(self.task, self.replacements, prepare_process())
        return self._actor.evaluate(weights, request)


def make_evaluation_actor(task: ActorTask, replacements: int, log: list[LogRecord]) -> EvaluationActor:
    """Seed the process of an evaluation actor, and return the actor.

    Args:
        task: the data from which it starts.
        replacements: the number of evaluation actors that ended before it.
        log: logged messages, which the actor returns with its results.
    """
    settings, folder = task.settings, write_folder(task)
    n_actors, configs = settings.cluster.actors, AgentConfigs(settings)
    seed_process(RunSeeds(settings.base.seed, (n_actors, replacements)).process)
    parameters = EnvironmentParameters(settings.reset)
    adapter = Environments(settings, folder).defer_evaluation(parameters, n_actors)

    def make_learner(name: str) -> ReceivingLearner:
        # An evaluation draws from a generator of its own.
        rng = np.random.default_rng(settings.base.seed)
        return make_receiving_learner(configs.for_role(name), folder, adapter.roles[name], rng, "cpu")

    return EvaluationActor(adapter, settings.base.evaluate_greedy, parameters, make_learner, log)
