"""Playing whole episodes without learning from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf

import numpy as np

from algorithm.adapters.adapter import Adapter
from algorithm.agents.agent import Agent
from algorithm.loop.scores import Scores
from algorithm.loop.screen import Screen
from algorithm.rollout import Step
from algorithm.specs import Role

# Half the width of a 95% confidence interval, in standard errors, by the number of degrees of freedom (Student's t).
# In between, 1 / degrees is interpolated, which is right to two decimals.
DEGREES = np.array([1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 60, 120, np.inf])
STUDENT = np.array([12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.306, 2.228, 2.131, 2.086, 2.042, 2.000, 1.980, 1.960])


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
    def interval(self) -> tuple[float, float]:
        """95% confidence interval of the mean return, by Student's t; unbounded with one episode."""
        episodes = len(self.returns)
        if episodes == 1:
            return -inf, inf
        quantile = np.interp(1 / (episodes - 1), 1 / DEGREES[::-1], STUDENT[::-1])
        half = float(quantile * np.std(self.returns, ddof=1) / np.sqrt(episodes))
        return self.mean - half, self.mean + half

    @property
    def length(self) -> float:
        """Mean length in executed decisions."""
        return float(np.mean(self.lengths))

    def __str__(self) -> str:
        low, high = self.interval
        return f"return {self.mean:.1f} (95% interval {low:.1f} to {high:.1f}) over {len(self.returns)} episodes"


class Evaluator:
    """Plays episodes in an adapter of its own: the same number in every lane, so that short ones count no more.

    `agent_of` gives the agent of a role. Nothing that is learned or drawn afterwards depends on what is played here.
    """

    def __init__(self, adapter: Adapter, agent_of: Callable[[str], Agent], greedy: bool):
        self.adapter = adapter
        self.agent_of = agent_of
        self.greedy = greedy

    def play(self, episodes: int, seed: int) -> dict[str, Played]:
        """At least `episodes` episodes of each role that appears; simulators and samples are seeded with `seed`.

        Teams that share an agent are roles of their own. Fewer where lanes never appear: nothing is waited for from a
        lane that has no agent.
        """
        with ExitStack() as lent:
            return self._play(episodes, seed, lent)

    def _play(self, episodes: int, seed: int, lent: ExitStack) -> dict[str, Played]:
        steps = self.adapter.reset(seed)
        rng = np.random.default_rng(seed)
        tallies: dict[str, _Tally] = {}
        while not tallies or not all(tally.done for tally in tallies.values()):
            actions = {}
            for role, step in steps.items():
                if role not in tallies:
                    agent = lent.enter_context(_undisturbed(self.agent_of(role), rng))
                    tallies[role] = _Tally(role, agent, self.adapter.roles[role], episodes)
                actions[role] = tallies[role].act(step, self.greedy)
            steps = self.adapter.step(actions)
        return {team: played for tally in tallies.values() for team, played in tally.played.items() if played.returns}


@contextmanager
def _undisturbed(agent: Agent, rng: np.random.Generator) -> Iterator[Agent]:
    """Lend an agent that draws from `rng` and whose statistics stand still; give it back as it was."""
    training, learning = agent.rng, agent.policy.training
    agent.rng = rng
    agent.policy.eval()
    try:
        yield agent
    finally:
        agent.rng = training
        agent.policy.train(learning)


class _Tally:
    """What one role's lanes have played, by team."""

    def __init__(self, name: str, agent: Agent, role: Role, episodes: int):
        self.agent, self.name, self.role = agent, name, role
        lanes = role.lanes_by_team(name)
        self.played = {team: Played([], []) for team in lanes}
        self.memory = np.zeros((role.lanes, agent.state), np.float32)
        self.scores = Scores(role.lanes)
        self.screen = Screen(name, self.scores, role.action_spec.branches)
        self.left = np.array([-(-episodes // lanes[role.team(lane) or name]) for lane in range(role.lanes)])
        self.seen = np.zeros(role.lanes, bool)

    @property
    def done(self) -> bool:
        return not self.left[self.seen].any()

    def act(self, step: Step, greedy: bool) -> np.ndarray:
        """Take in one tick; the actions of its lanes. Episodes with NaN or infinity in them do not count."""
        self.seen[step.lane] = True
        step, counted = self.screen(step)
        decision = (self.agent.greedy if greedy else self.agent.act)(step, step.recall(self.memory))
        self.memory[step.lane] = decision.memory
        self._add(step if counted is None else step.take(counted))
        return decision.action

    def _add(self, step: Step) -> None:
        for lane, reward, length in self.scores.add(step):
            if self.left[lane]:
                self.left[lane] -= 1
                played = self.played[self.role.team(lane) or self.name]
                played.returns.append(reward)
                played.lengths.append(length)
