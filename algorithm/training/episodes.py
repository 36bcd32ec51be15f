"""The returns and lengths of episodes, as the environment rewards them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from algorithm.rollout import Step


@dataclass(frozen=True, kw_only=True)
class Episode:
    """A finished episode.

    Attributes:
        role: the role.
        lane: the lane in which it was played.
        episode_return: the undiscounted sum of its raw rewards.
        length: the number of its executed decisions.
        team: the team of the lane, if several teams share the agent of the role.
    """

    role: str
    lane: int
    episode_return: float
    length: int
    team: str | None = None


def get_lane_index(step: Step, lanes: int) -> np.ndarray | slice:
    """Return the index of the lanes of `step` in arrays [lanes, ...]: a slice, which is faster, if all are present."""
    return slice(None) if len(step.lane) == lanes else step.lane


class EpisodeReturns:
    """The raw return and the number of executed decisions of the running episode of each lane.

    Attributes:
        discarded: [lanes], the number of episodes of each lane that were discarded since one of it was finished.
        discarded_in_row: the number of episodes that were discarded since any lane finished one.
    """

    def __init__(self, lanes: int):
        self.returns = np.zeros(lanes)
        self.lengths = np.zeros(lanes, np.int64)
        self.discarded = np.zeros(lanes, np.int64)
        self.discarded_in_row = 0

    def grow(self, lanes: int) -> None:
        """Add lanes without an episode, so that there are `lanes` lanes."""
        padding = (0, lanes - len(self.lengths))
        self.returns, self.lengths = np.pad(self.returns, padding), np.pad(self.lengths, padding)
        self.discarded = np.pad(self.discarded, padding)

    def state(self) -> dict[str, np.ndarray]:
        """Return everything, for a checkpoint."""
        return {
            "returns": self.returns,
            "lengths": self.lengths,
            "discarded": self.discarded,
            "discarded_in_row": np.array([self.discarded_in_row]),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore what `state` returned."""
        self.returns, self.lengths = state["returns"].copy(), state["lengths"].copy()
        self.discarded, self.discarded_in_row = state["discarded"].copy(), int(state["discarded_in_row"][0])

    def add(self, step: Step) -> list[tuple[int, float, int]]:
        """Add one tick. Return lane, return and length of each episode that it ended."""
        lane = get_lane_index(step, len(self.lengths))
        self.returns[lane] += step.reward
        finished = []
        n_bootstrap = np.count_nonzero(step.is_bootstrap_row)
        if n_bootstrap or np.count_nonzero(step.first) or np.count_nonzero(step.alive) < len(step.lane):
            is_over = step.first | step.is_bootstrap_row | ~step.alive
            ended = step.lane[is_over & (self.lengths[lane] > 0)]
            finished = list(
                zip(ended.tolist(), self.returns[ended].tolist(), self.lengths[ended].tolist(), strict=True)
            )
            self.returns[ended] = 0
            self.lengths[ended] = 0
            if finished:
                self.discarded[ended] = self.discarded_in_row = 0
        self.lengths[lane] += ~step.is_bootstrap_row if n_bootstrap else 1
        return finished

    def discard(self, lanes: np.ndarray, *, episodes: np.ndarray) -> None:
        """Discard the running episodes of `lanes` (numbers of lanes): they are not finished.

        Args:
            lanes: the lanes.
            episodes: those among them whose episode was not discarded before.
        """
        self.returns[lanes] = 0
        self.lengths[lanes] = 0
        self.discarded[episodes] += 1
        self.discarded_in_row += len(episodes)
