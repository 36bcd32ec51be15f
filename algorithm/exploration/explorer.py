"""The contract of explorers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from algorithm.agents.agent import Agent
from algorithm.rollout import Decision, Step

# Observations {name: [n, ...]}, k raw actions for each, [n, k, size] -> the novelty of each, [n, k].
Novelty = Callable[[Mapping[str, np.ndarray], np.ndarray], np.ndarray]


class Explorer(ABC):
    """A rule that chooses the actions instead of the agent while experience is collected.

    The constructor receives the role and the explorer's settings: keyword arguments if they are a mapping, otherwise
    one argument. It raises ValueError for invalid settings.

    Attributes:
        LANE_ARRAYS: Names of the attributes that are arrays [lanes, ...], which checkpoints contain.
    """

    LANE_ARRAYS: ClassVar[tuple[str, ...]] = ()

    def connect(self, agent: Agent, novelties: Mapping[str, Novelty]) -> None:
        """Keep what the explorer needs of the agent and its auxiliaries. Called once, before `act`.

        Args:
            agent: The agent.
            novelties: The auxiliaries that compute the novelty of actions, by name.

        Raises:
            ValueError: The explorer does not suit the agent, or an auxiliary is missing.
        """

    def grow(self, lanes: int, initial_lanes: int) -> None:
        """Increase the number of lanes. Added lanes have the value 0 in `LANE_ARRAYS`.

        Args:
            lanes: The new number of lanes.
            initial_lanes: The number of lanes when the first experience was stored.
        """
        for name in self.LANE_ARRAYS:
            values = getattr(self, name)
            setattr(self, name, np.pad(values, [(0, lanes - len(values)), *[(0, 0)] * (values.ndim - 1)]))

    def select_lanes(self, lanes: Sequence[int]) -> None:
        """Keep these lanes, which are numbered from 0 from now on.

        Called once, before `act`, in a run with several workers: the explorer was built for the lanes of all workers.
        """
        for name in self.LANE_ARRAYS:
            setattr(self, name, getattr(self, name)[list(lanes)])

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs, in values of JSON."""
        return {name: getattr(self, name).tolist() for name in self.LANE_ARRAYS}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        for name in self.LANE_ARRAYS:
            values = getattr(self, name)
            setattr(self, name, np.array(state[name], values.dtype).reshape(values.shape))

    @abstractmethod
    def act(self, agent: Agent, step: Step, memory: np.ndarray) -> Decision:
        """Choose actions.

        Args:
            agent: The agent.
            step: The lanes that await an action.
            memory: The agent's memory [n, state_size] of these lanes.

        Returns:
            The actions. `behavior` holds the statistics of the distribution that they were drawn from.
        """


def check_count(name: str, value: object) -> None:
    """Raise ValueError if the setting `name` is not an integer above 0."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be an integer, at least 1")
