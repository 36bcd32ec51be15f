"""The contract of a task: its behaviors, their sensors, and the agents with news."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

FLAT, VARIABLE_LENGTH = (1,), (4, 1)  # dimension properties: none, and a variable number of rows
IMAGE = {"hwc": (2, 2, 1), "chw": (1, 2, 2)}


class Sensor(NamedTuple):
    """A sensor; `properties` and `goal` are defined by ML-Agents, `png` sends an image compressed."""

    name: str
    shape: tuple[int, ...]
    properties: tuple[int, ...] = FLAT
    goal: bool = False
    png: bool = False


@dataclass(frozen=True)
class Behavior:
    """A behavior, with its sensors in the order in which they are sent."""

    sensors: tuple[Sensor, ...]
    continuous: int = 0
    branches: tuple[int, ...] = ()


class Action(NamedTuple):
    """The action of one agent."""

    continuous: list[float]
    discrete: list[int]


@dataclass(slots=True)
class News:
    """An agent that needs a decision, or whose episode ended; rewards are those since its last decision.

    An observation is an array, or the bytes of the PNGs. In `mask`, the branches are concatenated; True is forbidden.
    """

    agent: int
    obs: tuple[np.ndarray | bytes, ...]
    reward: float = 0.0
    done: bool = False
    interrupted: bool = False
    mask: list[bool] = field(default_factory=list)
    group: int = 0
    group_reward: float = 0.0


class Task(ABC):
    """A scene. `parameters` are the environment parameters that the trainer has set so far."""

    behaviors: Mapping[str, Behavior]

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.parameters: dict[str, float] = {}

    @abstractmethod
    def reset(self) -> dict[str, list[News]]:
        """Reset all episodes and return the agents that await a decision."""

    @abstractmethod
    def step(self, actions: Mapping[str, Mapping[int, Action]]) -> dict[str, list[News]]:
        """Execute the actions of the agents that awaited one, by behavior and id, and return the next tick."""

    def statistics(self) -> dict[str, float]:
        """Return statistics of the scene, which are sent at every tick."""
        return {}
