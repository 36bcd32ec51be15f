"""The contract between a simulator and everything else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from algorithm.rollout import Step
from algorithm.specs import Role


def derive_seed(seed: int, restarts: int) -> int:
    """The seed of what is made anew for the `restarts`-th time: its episodes are not those of what it replaces."""
    return int(np.random.SeedSequence([seed, restarts]).generate_state(1)[0] >> 1)


class EnvironmentStartError(RuntimeError):
    """A simulator could not be started."""


class EnvironmentCrashed(EnvironmentStartError):
    """A simulator broke after it had started."""


class UnsupportedEnvironment(ValueError):
    """What was asked for does not exist, or has spaces that cannot be served."""


class UnsupportedObservations(UnsupportedEnvironment):
    """An observation with parts that no network can read, and parts that one can; `names` are the former."""

    def __init__(self, message: str, names: Sequence[str]):
        super().__init__(message)
        self.names = tuple(names)


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """The configuration of an adapter, the same for every simulator.

    `name` is an id, or the function `make` of an env.py; `args` are its keyword arguments. `timeout` is the number of
    seconds that an environment in a process may take for a step or a reset. Dimensions of an action that have no
    bounds range over [-unbounded_action_limit, unbounded_action_limit]. `wrappers` are applied to every single
    environment in their order, each a pair of `module:Wrapper` and its keyword arguments.
    """

    name: str | Callable[..., Any]
    n_envs: int = 1
    args: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    render: bool = False
    timeout: float | None = None
    unbounded_action_limit: float | None = None
    wrappers: Sequence[tuple[str, Mapping[str, Any]]] = ()
    ignore_observations: Collection[str] = ()


class Adapter(ABC):
    """A simulator, several copies of it perhaps, as lanes per role.

    The observations of a Step are good until the next call; whoever keeps them copies them.

    Actions come as float32 [n, size], continuous ones in [-1, 1] (`ActionSpec`). A role may appear after the start:
    it is in `roles` no later than its first Step is returned. So are lanes that are added to a role: `roles` then holds
    another Role for its name, existing lanes keep their numbers.
    """

    roles: Mapping[str, Role]
    restarts: int = 0  # how often a copy broke and was rebuilt

    @property
    def shared_agents(self) -> Mapping[str, str] | None:
        """Return the default agent of each role, for roles that may share agents; None if they never do."""
        return None

    @abstractmethod
    def reset(self, seed: int) -> dict[str, Step]:
        """Start an episode in every lane; the first Step of each role that is there.

        Raises EnvironmentStartError where the simulator does not start.
        """

    @abstractmethod
    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, Step]:
        """Execute the actions for the lanes of the last Step of each role; the next Step of each role with news.

        Where the last observation of a cut episode is known, it is shown as one more row before the next `first`.
        Raises EnvironmentCrashed where the simulator broke, which is of no use then until it is made anew.
        """

    def statistics(self) -> dict[str, float]:
        """Numbers that the simulator tells of itself beside rewards, since this was last asked; as a rule none."""
        return {}

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        """Let the simulator begin with the actions, where it is a process of its own. Raises nothing."""
        self._pending_actions = actions

    def receive(self) -> dict[str, Step]:
        """What comes of the actions that were sent: `step` in two halves, between which others may work."""
        return self.step(self._pending_actions)

    def state(self) -> dict[str, Any] | None:
        """Where every episode stands, as values that JSON holds; None where the simulator cannot tell."""
        return None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put every episode, and `roles`, where `state` says; the next call is `step`.

        Raises ValueError where the state is not of such a simulator.
        """
        raise ValueError(f"{type(self).__name__} cannot put episodes where they were")

    @abstractmethod
    def close(self) -> None:
        """End the simulator; calling it twice is harmless."""
