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
from algorithm.training.episode_returns import EpisodeReturns
from algorithm.training.formatting import format_number
from algorithm.training.sanitize import StepSanitizer

MAX_IDLE_TICKS = 500  # ticks without a row after which a lane is not waited for
# Half the width of a 95% confidence interval, in standard errors, by the number of degrees of freedom (Student's t).
# In between, 1 / degrees is interpolated, which is right to two decimals.
DEGREES_OF_FREEDOM = np.array([1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 60, 120, np.inf])
T_QUANTILES = np.array(
    [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.306, 2.228, 2.131, 2.086, 2.042, 2.000, 1.980, 1.960]
)


@dataclass(frozen=True)
class EvaluationResult:
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
        quantile = np.interp(1 / (episodes - 1), 1 / DEGREES_OF_FREEDOM[::-1], T_QUANTILES[::-1])
        half_width = float(quantile * np.std(self.returns, ddof=1) / np.sqrt(episodes))
        return self.mean - half_width, self.mean + half_width

    @property
    def length(self) -> float:
        """Mean length in executed decisions."""
        return float(np.mean(self.lengths))

    def __str__(self) -> str:
        if len(self.returns) == 1:
            return f"return {format_number(self.mean)} in 1 episode, {get_mode_name(self.greedy)}"
        low, high = map(format_number, self.interval)
        return (
            f"return {format_number(self.mean)} (95% interval {low} to {high}) "
            f"over {len(self.returns)} episodes, {get_mode_name(self.greedy)}"
        )


def get_mode_name(greedy: bool) -> str:
    """Return how actions are chosen, in one word for messages."""
    return "greedy" if greedy else "sampled"


class Evaluator:
    """Plays episodes in an adapter of its own: the same number in every lane, so that short ones count no more.

    `get_agent` gives the agent of a role. Nothing that is learned or drawn afterwards depends on what is played here.
    """

    def __init__(self, adapter: Adapter, get_agent: Callable[[str], Agent], greedy: bool):
        self.adapter = adapter
        self.get_agent = get_agent
        self.greedy = greedy

    def play(self, episodes: int, seed: int) -> dict[str, EvaluationResult]:
        """Play at least `episodes` episodes of each role that appears; `seed` seeds simulators and samples.

        Teams that share an agent are roles of their own. There are fewer episodes if lanes never appear, or have no
        row for `PATIENCE` ticks: a lane without an agent is not waited for.
        """
        with ExitStack() as stack:
            return self._play(episodes, seed, stack)

    def _play(self, episodes: int, seed: int, stack: ExitStack) -> dict[str, EvaluationResult]:
        steps = self.adapter.reset(seed)
        rng = np.random.default_rng(seed)
        counters: dict[str, _EpisodeCounter] = {}
        tick = 0
        while not any(map(_EpisodeCounter.count, counters.values())) or any(
            counter.is_waiting(tick) for counter in counters.values()
        ):
            tick += bool(steps)
            actions = {}
            for role, step in steps.items():
                if role not in counters:
                    agent = stack.enter_context(_isolate_agent(self.get_agent(role), rng))
                    counters[role] = _EpisodeCounter(role, agent, self.adapter.roles[role], episodes, self.greedy)
                if self.adapter.roles[role].lanes > counters[role].role.lanes:
                    counters[role].grow(self.adapter.roles[role])
                actions[role] = counters[role].act(step, tick)
            steps = self.adapter.step(actions)
        return {
            team: result for counter in counters.values() for team, result in counter.results.items() if result.returns
        }


@contextmanager
def _isolate_agent(agent: Agent, rng: np.random.Generator) -> Iterator[Agent]:
    """Lend an agent that draws from `rng` and whose statistics stand still; give it back as it was."""
    training_rng, was_training = agent.rng, agent.policy.training
    agent.rng = rng
    agent.policy.eval()
    try:
        yield agent
    finally:
        agent.rng = training_rng
        agent.policy.train(was_training)


class _EpisodeCounter:
    """A count of the episodes that the lanes of one role have played, by team."""

    def __init__(self, name: str, agent: Agent, role: Role, episodes: int, greedy: bool):
        self.agent, self.name, self.episodes, self.greedy = agent, name, episodes, greedy
        self.results: dict[str, EvaluationResult] = {}
        self.memory = np.zeros((role.lanes, agent.state_size), np.float32)
        self.episode_returns = EpisodeReturns(role.lanes)
        self.sanitizer = StepSanitizer(name, self.episode_returns, role.action_spec.branches)
        self.finished = np.zeros(role.lanes, np.int64)  # episodes of each lane that count
        self.last_ticks = np.full(role.lanes, -MAX_IDLE_TICKS)  # the last tick of each lane
        self._divide_episodes(role)

    def count(self) -> int:
        """Return the number of episodes that count so far."""
        return int(self.finished.sum())

    def is_waiting(self, tick: int) -> bool:
        """Return whether a lane with a row in the last `PATIENCE` ticks has episodes left to play."""
        return bool(((self.finished < self.quota) & (tick - self.last_ticks < MAX_IDLE_TICKS)).any())

    def grow(self, role: Role) -> None:
        """Add lanes, up to those of `role`, and divide the episodes among all of them."""
        padding = (0, role.lanes - self.role.lanes)
        self.memory = np.pad(self.memory, (padding, (0, 0)))
        self.finished = np.pad(self.finished, padding)
        self.last_ticks = np.pad(self.last_ticks, padding, constant_values=-MAX_IDLE_TICKS)
        self.episode_returns.grow(role.lanes)
        self.sanitizer.grow(role.lanes)
        self._divide_episodes(role)

    def act(self, step: Step, tick: int) -> np.ndarray:
        """Take in one tick; the actions of its lanes. Episodes with NaN or infinity in them do not count."""
        self.last_ticks[step.lane] = tick
        step, counted = self.sanitizer(step)
        decision = (self.agent.greedy if self.greedy else self.agent.act)(step, step.select_memory(self.memory))
        self.memory[step.lane] = decision.memory
        self._add(step if counted is None else step.take(counted))
        return decision.action

    def _add(self, step: Step) -> None:
        for lane, episode_return, length in self.episode_returns.add(step):
            if self.finished[lane] < self.quota[lane]:
                self.finished[lane] += 1
                result = self.results[self.role.find_team(lane) or self.name]
                result.returns.append(episode_return)
                result.lengths.append(length)

    def _divide_episodes(self, role: Role) -> None:
        """Divide the episodes of each team among its lanes."""
        self.role, lanes = role, role.count_lanes_by_team(self.name)
        for team in lanes:
            self.results.setdefault(team, EvaluationResult([], [], self.greedy))
        teams = [role.find_team(lane) or self.name for lane in range(role.lanes)]
        self.quota = np.array([-(-self.episodes // lanes[team]) for team in teams])  # episodes that each lane plays
