"""Evaluation: whole episodes that are played without learning from them, at once or by another process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import numpy as np

from algorithm.adapters.adapter import Adapter
from algorithm.agents.agent import Agent
from algorithm.rollout import Step
from algorithm.specs import Role
from algorithm.training.invalid_values import RunningEpisodes
from algorithm.training.metrics import format_number
from algorithm.training.student_t import compute_t_quantile

ShowEpisodes = Callable[[int, int, int], object]  # receives the episodes that have ended, all episodes, and the tick
MAX_IDLE_TICKS = 500  # successive ticks without a row after which evaluation does not wait for a lane


@dataclass(frozen=True)
class EvaluationResult:
    """The result of an evaluation, for one role or team.

    Attributes:
        returns: the undiscounted sum of the raw rewards of each episode.
        lengths: the number of executed decisions of each episode.
        greedy: whether actions were greedy; otherwise they were sampled.
        env_steps: env steps of the run at which the evaluation started; 0 outside of a run.
    """

    returns: list[float]
    lengths: list[int]
    greedy: bool = True
    lanes: list[int] = field(default_factory=list)
    env_steps: int = 0

    @property
    def mean(self) -> float:
        """Return the mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Return the standard deviation of the returns."""
        return float(np.std(self.returns))

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95% confidence interval of the mean return, by Student's t; unbounded for a single episode."""
        episodes = len(self.returns)
        if episodes == 1:
            return -inf, inf
        half_width = float(compute_t_quantile(episodes - 1) * np.std(self.returns, ddof=1) / np.sqrt(episodes))
        return self.mean - half_width, self.mean + half_width

    @property
    def length(self) -> float:
        """Return the mean length, in executed decisions."""
        return float(np.mean(self.lengths))

    def locate(self, number: int) -> tuple[int, int]:
        """Return the lane of an episode, and the number of the episode among those of the lane."""
        lane = self.lanes[number]
        return lane, self.lanes[:number].count(lane)

    def __str__(self) -> str:
        episodes = "in 1 episode"
        if len(self.returns) != 1:
            low, high = map(format_number, self.interval)
            episodes = f"(95% interval {low} to {high}) over {len(self.returns)} episodes"
        return f"return {format_number(self.mean)} {episodes}, {get_mode_name(self.greedy)}"


def get_mode_name(greedy: bool) -> str:
    """Return a word for the choice of actions, for messages."""
    return "greedy" if greedy else "sampled"


@dataclass(eq=False)
class Evaluator:
    """An evaluator, which plays episodes in a separate adapter.

    Every lane plays the same number of episodes, so that short episodes do not count more often. Evaluation changes
    nothing that is learned, and no generator that training draws from.

    Args:
        adapter: the environments.
        get_agent: returns the agent of a role.
        greedy: whether actions are greedy; otherwise they are sampled.
        before_tick: called before each tick; what it raises ends the evaluation.
    """

    adapter: Adapter
    get_agent: Callable[[str], Agent]
    greedy: bool
    before_tick: Callable[[], object] = lambda: None

    def play(self, episodes: int, seed: int, show: ShowEpisodes | None = None) -> dict[str, EvaluationResult]:
        """Play at least `episodes` episodes of each role that appears.

        There are fewer episodes if lanes never appear, or have no row for `MAX_IDLE_TICKS` ticks: evaluation does not
        wait for a lane without an agent.

        Args:
            episodes: the number of episodes of each role, or of each team if teams share an agent.
            seed: seeds the environments and the sampled actions.
            show: receives the progress after each tick; None for no one.

        Returns:
            {role or team: result}.

        Raises:
            InvalidEpisodes: the episodes of a lane have no end, or are not valid.
        """
        rng = np.random.default_rng(seed)
        counters: dict[str, _EpisodeCounter] = {}
        tick = 0
        with ExitStack() as stack:

            def get_counter(role: str) -> _EpisodeCounter:
                spec = self.adapter.roles[role]
                if role not in counters:
                    agent = stack.enter_context(_isolate_agent(self.get_agent(role), rng))
                    counters[role] = _EpisodeCounter(role, agent, spec, episodes, self.greedy)
                if spec.lanes > len(counters[role].finished):
                    counters[role].grow(spec)
                return counters[role]

            steps = self.adapter.reset(seed)
            while not any(map(_EpisodeCounter.count, counters.values())) or any(
                counter.is_waiting(tick) for counter in counters.values()
            ):
                tick += bool(steps)
                actions = {role: get_counter(role).act(step, tick) for role, step in steps.items()}
                self.before_tick()
                steps = self.adapter.step(actions)
                for role, lanes in self.adapter.list_hidden_lanes().items():  # which play in later episodes
                    get_counter(role).last_ticks[[*lanes]] = tick
                if show:
                    planned = sum(int(counter.quota.sum()) for counter in counters.values())
                    show(sum(map(_EpisodeCounter.count, counters.values())), planned, tick)
        return {
            team: result for counter in counters.values() for team, result in counter.results.items() if result.returns
        }


@contextmanager
def _isolate_agent(agent: Agent, rng: np.random.Generator) -> Iterator[Agent]:
    """Let an agent draw from `rng` and its policy be in evaluation mode, within the block."""
    training_rng, was_training = agent.rng, agent.policy.training
    agent.rng = rng
    agent.policy.eval()
    try:
        yield agent
    finally:
        agent.rng = training_rng
        agent.policy.train(was_training)


class _EpisodeCounter:
    """A counter of the episodes that the lanes of one role have played, with their results by team."""

    def __init__(self, name: str, agent: Agent, role: Role, episodes: int, greedy: bool):
        self.agent, self.name, self.episodes, self.greedy = agent, name, episodes, greedy
        self.results: dict[str, EvaluationResult] = {}
        self.memory = np.zeros((0, agent.state_size), np.float32)
        self.running = RunningEpisodes(name, 0, role.action_spec.branches)
        self.finished = np.zeros(0, np.int64)  # counted episodes of each lane
        self.last_ticks = np.zeros(0, np.int64)  # the last tick in which each lane had a row
        self.grow(role)

    def count(self) -> int:
        """Return the number of counted episodes."""
        return int(self.finished.sum())

    def is_waiting(self, tick: int) -> bool:
        """Return whether a lane with a row in the last `MAX_IDLE_TICKS` ticks has episodes left to play."""
        return bool(((self.finished < self.quota) & (tick - self.last_ticks < MAX_IDLE_TICKS)).any())

    def grow(self, role: Role) -> None:
        """Add lanes until there are as many as `role` has, and divide the episodes among all of them."""
        self.role, padding = role, (0, role.lanes - len(self.finished))
        self.memory = np.pad(self.memory, (padding, (0, 0)))
        self.finished = np.pad(self.finished, padding)
        self.last_ticks = np.pad(self.last_ticks, padding, constant_values=-MAX_IDLE_TICKS)
        self.running.grow(role.lanes)
        lanes = role.count_lanes_by_team(self.name)
        for team in lanes:
            self.results.setdefault(team, EvaluationResult([], [], self.greedy))
        teams = [role.find_team(lane) or self.name for lane in range(role.lanes)]
        self.quota = np.array([-(-self.episodes // lanes[team]) for team in teams])  # episodes that each lane plays

    def act(self, step: Step, tick: int) -> np.ndarray:
        """Return the actions [n, size] for one tick. Episodes with NaN or infinity in them are not counted."""
        self.last_ticks[step.lane] = tick
        step, counted = self.running(step)
        decision = (self.agent.greedy if self.greedy else self.agent.act)(step, step.select_memory(self.memory))
        self.memory[step.lane] = decision.memory
        for lane, episode_return, length in self.running.add(step if counted is None else step.take(counted)):
            if self.finished[lane] < self.quota[lane]:
                self.finished[lane] += 1
                result = self.results[self.role.find_team(lane) or self.name]
                result.returns.append(episode_return)
                result.lengths.append(length)
                result.lanes.append(lane)
        return decision.action


Results = Mapping[str, EvaluationResult]  # by role or team


class Outcome(NamedTuple):
    """The reported results of an evaluation, and those that decide whether the goal is confirmed, if it confirms it."""

    results: Results
    confirmation: Results | None = None


@dataclass(frozen=True, kw_only=True)
class EpisodePlan:
    """The episodes of an evaluation.

    The episodes that confirm a goal have other seeds than those that are reported. If they were reported, the mean
    would be too high: it is known only since it reached the goal.

    Attributes:
        episodes: the least number of reported episodes of each role.
        seed: seeds their environments and sampled actions.
        confirmation_episodes: the least number of episodes of each role that confirm the goal; 0: none.
        confirmation_seed: seeds theirs.
    """

    episodes: int
    seed: int
    confirmation_episodes: int
    confirmation_seed: int

    def play(self, evaluator: Evaluator) -> Outcome:
        """Play the episodes."""
        confirmation = None
        if self.confirmation_episodes:
            confirmation = evaluator.play(self.confirmation_episodes, self.confirmation_seed)
        return Outcome(results=evaluator.play(self.episodes, self.seed), confirmation=confirmation)


class Evaluations:
    """The evaluations of a run, each played in this process when it starts; a subclass plays them in another process.

    Both methods raise SimulatorError if evaluation is not possible.

    Args:
        play: plays an evaluation with the given number of episodes that confirm the goal.

    Attributes:
        is_concurrent: whether training continues between `start` and the result, so that the weights have changed when
            it is received.
    """

    is_concurrent = False

    def __init__(self, play: Callable[[int], Outcome]):
        self._play = play

    def start(self, confirmation_episodes: int) -> None:
        """Start an evaluation of the present weights; it confirms the goal with this number of episodes; 0: not."""
        self._outcome = self._play(confirmation_episodes)

    def receive(self, timeout: float) -> Outcome | None:
        """Return the outcome of the evaluation that was started; None if `timeout` seconds pass without it."""
        return self._outcome
