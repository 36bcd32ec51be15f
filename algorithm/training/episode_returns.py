"""Returns and lengths of episodes, as the simulator gave them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from algorithm.rollout import Step


def get_lane_index(step: Step, lanes: int) -> np.ndarray | slice:
    """Where the lanes of `step` stand among all: plain slicing is several times faster where all are there."""
    return slice(None) if len(step.lane) == lanes else step.lane


class EpisodeReturns:
    """The raw return and the executed decisions of the running episode of each lane."""

    def __init__(self, lanes: int):
        self.returns = np.zeros(lanes)
        self.lengths = np.zeros(lanes, np.int64)

    def grow(self, lanes: int) -> None:
        """Add lanes without an episode, up to `lanes` lanes."""
        padding = (0, lanes - len(self.lengths))
        self.returns, self.lengths = np.pad(self.returns, padding), np.pad(self.lengths, padding)

    def state(self) -> dict[str, np.ndarray]:
        """Returns and lengths so far."""
        return {"returns": self.returns, "lengths": self.lengths}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `state` gave."""
        self.returns, self.lengths = state["returns"].copy(), state["lengths"].copy()

    def add(self, step: Step) -> list[tuple[int, float, int]]:
        """Take in one tick; lane, return and length of each episode that it ended."""
        lane = get_lane_index(step, len(self.lengths))
        self.returns[lane] += step.reward
        is_over = step.first | step.is_bootstrap_row | ~step.alive
        finished = []
        if is_over.any():
            ended = step.lane[is_over & (self.lengths[lane] > 0)]
            finished = list(
                zip(ended.tolist(), self.returns[ended].tolist(), self.lengths[ended].tolist(), strict=True)
            )
            self.returns[ended] = 0
            self.lengths[ended] = 0
        self.lengths[lane] += ~step.is_bootstrap_row
        return finished

    def reset(self, lanes: np.ndarray) -> None:
        """Their episodes do not count."""
        self.returns[lanes] = 0
        self.lengths[lanes] = 0
