"""Returns and lengths of episodes, as the simulator gave them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from algorithm.rollout import Step


def places(step: Step, lanes: int) -> np.ndarray | slice:
    """Where the lanes of `step` stand among all: plain slicing is several times faster where all are there."""
    return slice(None) if len(step.lane) == lanes else step.lane


class Scores:
    """The raw return and the executed decisions of the running episode of each lane."""

    def __init__(self, lanes: int):
        self.returns = np.zeros(lanes)
        self.lengths = np.zeros(lanes, np.int64)

    def grow(self, lanes: int) -> None:
        """Add lanes without an episode, up to `lanes` lanes."""
        more = (0, lanes - len(self.lengths))
        self.returns, self.lengths = np.pad(self.returns, more), np.pad(self.lengths, more)

    def state(self) -> dict[str, np.ndarray]:
        """Returns and lengths so far."""
        return {"returns": self.returns, "lengths": self.lengths}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `state` gave."""
        self.returns, self.lengths = state["returns"].copy(), state["lengths"].copy()

    def add(self, step: Step) -> list[tuple[int, float, int]]:
        """Take in one tick; lane, return and length of each episode that it ended."""
        lane = places(step, len(self.lengths))
        self.returns[lane] += step.reward
        over = step.first | step.final | ~step.alive
        finished = []
        if over.any():
            ended = step.lane[over & (self.lengths[lane] > 0)]
            finished = list(
                zip(ended.tolist(), self.returns[ended].tolist(), self.lengths[ended].tolist(), strict=True)
            )
            self.returns[ended] = 0
            self.lengths[ended] = 0
        self.lengths[lane] += ~step.final
        return finished

    def forget(self, lanes: np.ndarray) -> None:
        """Their episodes do not count."""
        self.returns[lanes] = 0
        self.lengths[lanes] = 0
