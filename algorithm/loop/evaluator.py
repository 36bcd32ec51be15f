"""Playing whole episodes without learning from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from algorithm.adapters.adapter import Adapter
from algorithm.agents.agent import Agent
from algorithm.loop.scores import Scores
from algorithm.rollout import Decision, Step


@dataclass(frozen=True)
class Played:
    """Raw returns and lengths of evaluation episodes."""

    returns: list[float]
    lengths: list[int]

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns."""
        return float(np.std(self.returns))

    @property
    def length(self) -> float:
        """Mean length in executed decisions."""
        return float(np.mean(self.lengths))


class Evaluator:
    """Plays episodes in an adapter of its own: the same number in every lane, so that short ones count no more.

    `agent_of` gives the agent of a role.
    """

    def __init__(self, adapter: Adapter, agent_of: Callable[[str], Agent], greedy: bool):
        self.adapter = adapter
        self.agent_of = agent_of
        self.greedy = greedy

    def play(self, episodes: int, seed: int) -> dict[str, Played]:
        """At least `episodes` episodes of each role that appears; simulators and samples are seeded with `seed`."""
        steps = self.adapter.reset(seed)
        rng = np.random.default_rng(seed)
        tallies: dict[str, _Tally] = {}
        while not tallies or not all(tally.done for tally in tallies.values()):
            actions = {}
            for role, step in steps.items():
                agent = self.agent_of(role)
                if role not in tallies:
                    lanes = self.adapter.roles[role].lanes
                    tallies[role] = _Tally(lanes, -(-episodes // lanes), agent.state)
                tally = tallies[role]
                decision = self._decide(agent, step, step.recall(tally.memory), rng)
                tally.memory[step.lane] = decision.memory
                tally.add(step)
                actions[role] = decision.action
            steps = self.adapter.step(actions)
        return {role: Played(tally.returns, tally.lengths) for role, tally in tallies.items()}

    def _decide(self, agent: Agent, step: Step, memory: np.ndarray, rng: np.random.Generator) -> Decision:
        if self.greedy:
            return agent.greedy(step, memory)
        # Training draws from the agent's own generator; what it draws must not depend on when it is evaluated.
        training, agent.rng = agent.rng, rng
        try:
            return agent.act(step, memory)
        finally:
            agent.rng = training


class _Tally:
    """What one role's lanes have played."""

    def __init__(self, lanes: int, quota: int, state: int):
        self.memory = np.zeros((lanes, state), np.float32)
        self.scores = Scores(lanes)
        self.left = np.full(lanes, quota)
        self.returns: list[float] = []
        self.lengths: list[int] = []

    @property
    def done(self) -> bool:
        return not self.left.any()

    def add(self, step: Step) -> None:
        for lane, reward, length in self.scores.add(step):
            if self.left[lane]:
                self.left[lane] -= 1
                self.returns.append(reward)
                self.lengths.append(length)
