"""Evaluation on a cluster: an actor plays episodes with the weights of one version, while training continues."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from typing import Any

from algorithm.adapters.adapter import Adapter, EnvironmentCrashed
from algorithm.agents.agent import Agent
from algorithm.checkpointing.checkpoint import Stateful
from algorithm.errors import UserError
from algorithm.processes.collection import EvaluationReply, EvaluationRequest, Failure, ReceivingLearner, Weights
from algorithm.processes.host import Host, ServiceLost, ServiceSpec
from algorithm.processes.messages import LogRecord
from algorithm.training.evaluator import EpisodePlan, Evaluations, Evaluator, Outcome
from algorithm.training.signals import raise_deferred

LOG = logging.getLogger(__name__)
MAX_ATTEMPTS = 3  # actors that play one evaluation, each after the end of the one before


class EvaluationActor:
    """An actor that plays evaluation episodes with the weights of each request.

    Args:
        adapter: the environments.
        greedy: whether actions are greedy; otherwise they are sampled.
        parameters: the environment parameters of the environments.
        make_learner: builds the learner of a role, whose agent plays.
        log: logged messages; each reply takes those since the last one.
    """

    def __init__(
        self,
        adapter: Adapter,
        greedy: bool,
        parameters: Stateful,
        make_learner: Callable[[str], ReceivingLearner],
        log: list[LogRecord],
    ):
        self.parameters, self.log = parameters, log
        self._evaluator = Evaluator(adapter, self._get_agent, greedy)
        self._make_learner = make_learner
        self._learners: dict[str, ReceivingLearner] = {}
        self._weights: Weights = {}

    def evaluate(self, weights: Weights, request: EvaluationRequest) -> EvaluationReply:
        """Play the episodes of a request with these weights. Return the outcome."""
        self._weights = weights
        for role, learner in self._learners.items():
            learner.load_weights(weights[role])
        self.parameters.restore(request.parameters)
        reply = EvaluationReply(outcome=request.plan.play(self._evaluator), log=list(self.log))
        self.log.clear()
        return reply

    def _get_agent(self, role: str) -> Agent:
        """Return the agent of a role, which is built when the role first appears."""
        if role not in self._weights:
            raise UserError(f"role {role!r} appeared in an evaluation only, which only runtime LOCAL supports")
        if role not in self._learners:
            learner = self._learners[role] = self._make_learner(role)
            learner.load_weights(self._weights[role])
        return self._learners[role].agent


class ActorEvaluations(Evaluations):
    """Evaluations on an actor, which is replaced if it ends or hangs.

    Another actor repeats the evaluation, with the same weights and seeds.

    Args:
        host: the system that runs the actor.
        spec: the service of the actor.
        handle: the handle of the actor, which has been started.
        publish: publishes the present weights, and returns the reference to them.
        make_request: returns the request of an evaluation with the given number of episodes that confirm the goal.
        timeout: time limit for an evaluation that confirms nothing, in seconds; others have more in proportion to their
            episodes.
    """

    is_concurrent = True

    def __init__(
        self,
        host: Host,
        spec: ServiceSpec,
        handle: Any,
        *,
        publish: Callable[[], Any],
        make_request: Callable[[int], EvaluationRequest],
        timeout: float,
    ):
        self.host, self.spec, self.timeout = host, spec, timeout
        self._publish, self._make_request = publish, make_request
        self._handle = handle
        self._replacements = self._attempts = 0
        self._weights: Any = None
        self._request: Any = None
        self._ticket: Hashable = None
        self._since = 0.0  # time of the request

    def start(self, confirmation_episodes: int) -> None:
        self._weights, self._request, self._attempts = self._publish(), self._make_request(confirmation_episodes), 0
        self._send()

    def receive(self, timeout: float) -> Outcome | None:
        if not self.host.wait([self._ticket], timeout):
            plan: EpisodePlan = self._request.plan
            limit = self.timeout * (1 + plan.confirmation_episodes / plan.episodes)
            if time.monotonic() - self._since > limit:
                self._replace(f"has not replied for {limit:g} s (cluster_config.evaluation_timeout)")
            elif timeout:  # a run that has ended waits for the results
                raise_deferred()
            return None
        try:
            reply = self.host.fetch(self._ticket)
        except ServiceLost as error:
            LOG.info(f"evaluation actor: {error.__cause__}")
            self._replace(f"ended ({error})")
            return None
        if isinstance(reply, Failure):
            reply.raise_error()
        for record in reply.log:
            LOG.log(record.level, f"evaluation actor: {record.text}")
        return reply.outcome

    def _send(self) -> None:
        self._ticket = self.host.call(self._handle, "evaluate", self._weights, self._request)
        self._since = time.monotonic()
        self._attempts += 1

    def _replace(self, reason: str) -> None:
        """Let another actor repeat the evaluation. Raises EnvironmentCrashed if too many have tried."""
        self.host.kill(self._handle)
        if self._attempts >= MAX_ATTEMPTS:
            raise EnvironmentCrashed(f"the evaluation actor {reason}, as {self._attempts - 1} before it")
        LOG.warning(f"the evaluation actor {reason}: another actor repeats the evaluation")
        self._replacements += 1
        self._handle = self.host.start(self.spec, self._replacements)
        self._send()
