"""Evaluation on a cluster: a service plays episodes with the weights of one version, while training continues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from algorithm.adapters.curriculum import EnvironmentParameters
from algorithm.agents.agent import Agent
from algorithm.errors import UserError
from algorithm.parts.components_builder import get_agent_settings
from algorithm.parts.make_env import Environments
from algorithm.parts.seeding import RunSeeds, seed_process
from algorithm.processes.host import Failure
from algorithm.processes.service import Service, WeightReceiver, Weights, make_receiver
from algorithm.processes.supervisor import Lost, Supervisor
from algorithm.training.evaluator import EpisodePlan, Evaluations, Evaluator, Outcome
from algorithm.training.signals import raise_deferred


class EvaluatorService(Service):
    """An evaluation actor of a run, which plays episodes with the weights of each request.

    The first evaluation opens the environments.
    """

    _evaluator: Evaluator | None = None

    def evaluate(self, weights: Weights, plan: EpisodePlan, parameters: Mapping[str, Any]) -> Outcome:
        """Play the episodes of a plan with these weights. Return the outcome.

        Args:
            weights: the weights.
            plan: the episodes.
            parameters: the state of the environment parameters of training.
        """
        evaluator = self._evaluator = self._evaluator or self._open()
        self._weights = weights
        for role, learner in self._learners.items():
            learner.load_weights(weights[role])
        self._parameters.restore(parameters)
        return plan.play(evaluator)

    def _open(self) -> Evaluator:
        settings, self._folder = self.task.settings, self.task.unpack()
        n_actors = settings.cluster.actors
        seed_process(RunSeeds(settings.base.seed, (n_actors, self.replacements)).process)
        self._parameters = EnvironmentParameters(settings.reset)
        self._adapter = Environments(settings, self._folder).defer_evaluation(self._parameters, n_actors)
        self._learners: dict[str, WeightReceiver] = {}
        return Evaluator(self._adapter, self._get_agent, settings.base.evaluate_greedy)

    def _get_agent(self, role: str) -> Agent:
        """Return the agent of a role, which is built when the role first appears."""
        if role not in self._weights:
            raise UserError(f"role {role!r} appeared in an evaluation only, which only runtime LOCAL supports")
        if role not in self._learners:
            settings, spec = get_agent_settings(self.task.settings, role), self._adapter.roles[role]
            # An evaluation draws from a generator of its own.
            rng = np.random.default_rng(settings.base.seed)
            learner = self._learners[role] = make_receiver(settings, self._folder, spec, rng, "cpu")
            learner.load_weights(self._weights[role])
        return self._learners[role].agent


class RemoteEvaluations(Evaluations):
    """Evaluations by a service, which is replaced if it ends or hangs.

    Another process repeats the evaluation, with the same weights and seeds.

    Args:
        supervisor: supervises the service, which has been started.
        make_arguments: returns the arguments of `EvaluatorService.evaluate`, with the present weights, given the number
            of episodes that confirm the goal.
        timeout: time limit for an evaluation that confirms nothing, in seconds; others have more in proportion to their
            episodes.
    """

    is_concurrent = True

    def __init__(
        self, supervisor: Supervisor, make_arguments: Callable[[int], tuple[Any, EpisodePlan, Any]], timeout: float
    ):
        self.supervisor, self.make_arguments, self.timeout = supervisor, make_arguments, timeout

    def start(self, confirmation_episodes: int) -> None:
        self._arguments = self.make_arguments(confirmation_episodes)
        self._send()

    def receive(self, timeout: float) -> Outcome | None:
        for service, reply in self.supervisor.poll(timeout):
            if isinstance(reply, Lost):
                self.supervisor.replace(service, reply.reason, "another actor repeats the evaluation")
                self._send()
                return None
            if isinstance(reply, Failure):
                reply.raise_error()
            service.has_result = True
            return reply
        if timeout:  # a run that has ended waits for the results
            raise_deferred()
        return None

    def _send(self) -> None:
        plan = self._arguments[1]
        limit = self.timeout * (1 + plan.confirmation_episodes / plan.episodes)
        self.supervisor.call(self.supervisor.services[0], "evaluate", *self._arguments, timeout=limit)
