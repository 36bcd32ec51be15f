"""The contract of exploration around `act`."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from algorithm.agents.agent import Agent
from algorithm.rollout import Decision, Step


class Explorer(ABC):
    """Chooses instead of the agent while experience is collected.

    Made from its role and its settings, `Explorer(role, ...)`: keyword arguments where these are a mapping, otherwise
    one argument. Raises ValueError for settings that cannot be.
    """

    def grow(self, lanes: int, initial_lanes: int) -> None:
        """Choose in `lanes` lanes from now on, more than before. An explorer with values per lane extends them.

        `initial_lanes` is the number of lanes when the first experience was stored.
        """

    @abstractmethod
    def act(self, agent: Agent, step: Step, memory: np.ndarray) -> Decision:
        """A Decision whose `behavior` holds the statistics of what is executed."""
