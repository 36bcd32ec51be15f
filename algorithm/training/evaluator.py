"""Playing whole episodes without learning from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf

import numpy as np

from algorithm.adapters.adapter import Adapter
from algorithm.agents.agent import Agent
from algorithm.rollout import Step
from algorithm.specs import Role
from algorithm.training.episode_returns import Scores
from algorithm.training.formatting import format_number
from algorithm.training.sanitize import Screen

PATIENCE = 500  # ticks without a row after which a lane is not waited for
# Half the width of a 95% confidence interval, in standard errors, by the number of degrees of freedom (Student's t).
# In between, 1 / degrees is interpolated, which is right to two decimals.
DEGREES = np.array([1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 60, 120, np.inf])
STUDENT = np.array([12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.306, 2.228, 2.131, 2.086, 2.042, 2.000, 1.980, 1.960])


@dataclass(frozen=True)
class Played:
    """Raw returns and lengths of evaluation episodes, and whether their actions were greedy or sampled."""

    returns: list[float]
    lengths: list[int]
    greedy: bool = True

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
        if len(self.returns) == 1:
            return f"return {format_number(self.mean)} in 1 episode, {mode_name(self.greedy)}"
        low, high = map(format_number, self.interval)
        return (
            f"return {format_number(self.mean)} (95% interval {low} to {high}) "
            f"over {len(self.returns)} episodes, {mode_name(self.greedy)}"
        )


def mode_name(greedy: bool) -> str:
    """Return how actions are chosen, in one word for messages."""
    return "greedy" if greedy else "sampled"


class Evaluator:
    """Plays episodes in an adapter of its own: the same number in every lane, so that short ones count no more.

    `agent_of` gives the agent of a role. Nothing that is learned or drawn afterwards depends on what is played here.
    """

    def __init__(self, adapter: Adapter, agent_of: Callable[[str], Agent], greedy: bool):
        self.adapter = adapter
        self.agent_of = agent_of
        self.greedy = greedy

    def play(self, episodes: int, seed: int) -> dict[str, Played]:
        """Play at least `episodes` episodes of each role that appears; `seed` seeds simulators and samples.

        Teams that share an agent are roles of their own. There are fewer episodes if lanes never appear, or have no
        row for `PATIENCE` ticks: a lane without an agent is not waited for.
        """
        with ExitStack() as lent:
            return self._play(episodes, seed, lent)

    def _play(self, episodes: int, seed: int, lent: ExitStack) -> dict[str, Played]:
        steps = self.adapter.reset(seed)
        rng = np.random.default_rng(seed)
        tallies: dict[str, _Tally] = {}
        tick = 0
        while not any(map(_Tally.count, tallies.values())) or any(t.waits(tick) for t in tallies.values()):
            tick += bool(steps)
            actions = {}
            for role, step in steps.items():
                if role not in tallies:
                    agent = lent.enter_context(_undisturbed(self.agent_of(role), rng))
                    tallies[role] = _Tally(role, agent, self.adapter.roles[role], episodes, self.greedy)
                if self.adapter.roles[role].lanes > tallies[role].role.lanes:
                    tallies[role].grow(self.adapter.roles[role])
                actions[role] = tallies[role].act(step, tick)
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
    """A count of the episodes that the lanes of one role have played, by team."""

    def __init__(self, name: str, agent: Agent, role: Role, episodes: int, greedy: bool):
        self.agent, self.name, self.episodes, self.greedy = agent, name, episodes, greedy
        self.played: dict[str, Played] = {}
        self.memory = np.zeros((role.lanes, agent.state), np.float32)
        self.scores = Scores(role.lanes)
        self.screen = Screen(name, self.scores, role.action_spec.branches)
        self.ended = np.zeros(role.lanes, np.int64)  # episodes of each lane that count
        self.shown_at = np.full(role.lanes, -PATIENCE)  # the last tick of each lane
        self._share(role)

    def count(self) -> int:
        """Return the number of episodes that count so far."""
        return int(self.ended.sum())

    def waits(self, tick: int) -> bool:
        """Return whether a lane with a row in the last `PATIENCE` ticks has episodes left to play."""
        return bool(((self.ended < self.each) & (tick - self.shown_at < PATIENCE)).any())

    def grow(self, role: Role) -> None:
        """Add lanes, up to those of `role`, and divide the episodes among all of them."""
        more = (0, role.lanes - self.role.lanes)
        self.memory = np.pad(self.memory, (more, (0, 0)))
        self.ended = np.pad(self.ended, more)
        self.shown_at = np.pad(self.shown_at, more, constant_values=-PATIENCE)
        self.scores.grow(role.lanes)
        self.screen.grow(role.lanes)
        self._share(role)

    def act(self, step: Step, tick: int) -> np.ndarray:
        """Take in one tick; the actions of its lanes. Episodes with NaN or infinity in them do not count."""
        self.shown_at[step.lane] = tick
        step, counted = self.screen(step)
        decision = (self.agent.greedy if self.greedy else self.agent.act)(step, step.recall(self.memory))
        self.memory[step.lane] = decision.memory
        self._add(step if counted is None else step.take(counted))
        return decision.action

    def _add(self, step: Step) -> None:
        for lane, reward, length in self.scores.add(step):
            if self.ended[lane] < self.each[lane]:
                self.ended[lane] += 1
                played = self.played[self.role.team(lane) or self.name]
                played.returns.append(reward)
                played.lengths.append(length)

    def _share(self, role: Role) -> None:
        """Divide the episodes of each team among its lanes."""
        self.role, lanes = role, role.lanes_by_team(self.name)
        for team in lanes:
            self.played.setdefault(team, Played([], [], self.greedy))
        teams = [role.team(lane) or self.name for lane in range(role.lanes)]
        self.each = np.array([-(-self.episodes // lanes[team]) for team in teams])  # episodes that each lane plays
