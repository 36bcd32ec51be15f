"""How often a goal is confirmed by policies that are worse than it, and how much too high the reported mean is.

A policy that does not change has normally distributed returns, with a mean below or above the goal. Its runs are
simulated with the check of `algorithm.training.monitor`, and with confirmations of equal length, each 20 episodes
after the last, whose own mean is reported.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from algorithm.training.evaluator import EvaluationResult
from algorithm.training.monitor import GoalCheck
from algorithm.training.progress import WINDOW, RecentEpisodes

EPISODES = 20  # of an evaluation
DISTANCES = (-0.5, -0.25, -0.1, 0.0, 0.25)  # mean of the policy minus the goal, in standard deviations of the returns


@dataclass
class PolicyHistory:
    """The training episodes of one role, as `GoalCheck` reads them."""

    recent: RecentEpisodes = field(default_factory=RecentEpisodes)
    failed_confirmations: int = 0

    def collect_recent(self) -> Mapping[str, RecentEpisodes]:
        """Return the last training episodes by role."""
        return {"agent": self.recent}


@dataclass(frozen=True, kw_only=True)
class Run:
    """The end of a run: the mean that it reports (None: no confirmation), and its training and evaluation episodes."""

    reported: float | None
    training_episodes: int
    evaluation_episodes: int


def simulate(distance: float, limit: int, grows: bool, rng: np.random.Generator) -> Run:
    """Return the end of the run of a policy with at most `limit` training episodes.

    Args:
        distance: mean return of the policy; the goal is 0, the standard deviation of returns 1.
        limit: the number of training episodes.
        grows: whether each confirmation is longer than the last, and other episodes are reported.
        rng: draws the returns.
    """
    history, played = PolicyHistory(), 0
    goal = GoalCheck(history, 0.0, EPISODES)  # type: ignore[arg-type]  # it reads no more than PolicyHistory has
    for number, episode_return in enumerate(rng.normal(distance, 1.0, limit), 1):
        history.recent.add(episode_return, 1)
        if not goal.is_met():
            continue
        length = goal.confirmation_episodes
        returns = rng.normal(distance, 1.0, length).tolist()
        is_confirmed = goal.confirm({"agent": EvaluationResult(returns, [1] * length)})
        played += length
        if grows:
            returns = rng.normal(distance, 1.0, EPISODES).tolist()
            played += EPISODES
        if is_confirmed:
            return Run(reported=float(np.mean(returns)), training_episodes=number, evaluation_episodes=played)
        if not grows:
            history.failed_confirmations, history.recent.awaited = 0, WINDOW
    return Run(reported=None, training_episodes=limit, evaluation_episodes=played)


def describe(distance: float, runs: list[Run]) -> str:
    """Return table cells: the share of confirmed runs, the error of their reported mean, and the median episodes."""
    reported = [run.reported for run in runs if run.reported is not None]
    error = f"{np.mean(reported) - distance:+.2f}" if reported else "-"
    training = np.median([run.training_episodes for run in runs])
    evaluation = np.median([run.evaluation_episodes for run in runs])
    return f"{100 * len(reported) / len(runs):.1f}% | {error} | {training:,.0f} | {evaluation:,.0f}"


def main() -> None:
    """Print a line for each policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--episodes", type=int, default=2000, help="training episodes of a run that is not confirmed")
    options = parser.parse_args()
    cells = "confirmed | error of the mean | training episodes | evaluation episodes"
    print(f"| policy - goal | equal: {cells} | growing: {cells} |")
    print(f"| ---: {'| ---: ' * 8}|")
    for distance in DISTANCES:
        results = []
        for grows in (False, True):
            rng = np.random.default_rng(0)
            runs = [simulate(distance, options.episodes, grows, rng) for _ in range(options.runs)]
            results.append(describe(distance, runs))
        print(f"| {distance:+.2f} | {' | '.join(results)} |")


if __name__ == "__main__":
    main()
