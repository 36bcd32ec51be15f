"""The contract between simulators and the rest of the program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from algorithm.adapters.curriculum import EnvironmentParameters
from algorithm.rollout import Step
from algorithm.specs import Role


def derive_seed(seed: int, restarts: int) -> int:
    """Return the seed of a simulator after its `restarts`-th restart, whose episodes differ from those before."""
    return int(np.random.SeedSequence([seed, restarts]).generate_state(1)[0] >> 1)


class SimulatorError(RuntimeError):
    """An error for a simulator that cannot be used; a subclass names when it failed."""


class EnvironmentStartError(SimulatorError):
    """An error for a simulator that does not start."""


class EnvironmentCrashed(SimulatorError):
    """An error for a simulator that failed after its start."""


class UnsupportedEnvironment(ValueError):
    """An error for an environment that does not exist, or has spaces or settings that are not supported."""


class UnsupportedObservations(UnsupportedEnvironment):
    """An error for observations of which `names` have a space that no network reads, while others can be read."""

    def __init__(self, message: str, names: Sequence[str]):
        super().__init__(message)
        self.names = tuple(names)


@dataclass(frozen=True)
class Recording:
    """A request for videos of episodes.

    Attributes:
        folder: Folder that receives the videos.
        episodes: {number of an environment: numbers of its episodes, from 0}.
    """

    folder: Path
    episodes: Mapping[int, Collection[int]]

    def get_path(self, env: int, episode: int) -> Path:
        """Return the file of a video, with the name that Gymnasium's RecordVideo gives it."""
        return self.folder / f"{self.get_prefix(env)}-episode-{episode}.mp4"

    def get_prefix(self, env: int) -> str:
        """Return the start of the names of all videos of an environment."""
        return f"environment-{env}"


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """The configuration of an adapter, the same record for every simulator.

    Attributes:
        name: Id of the environment, or the function `make` of an env.py; empty if the adapter has no use for it
            (`Adapter.needs_name`).
        n_envs: Number of environments.
        args: Keyword arguments of the environment.
        max_episode_steps: Number of steps after which an episode is truncated.
        render_mode: human: the environments are shown; rgb_array: they return pictures; None: neither.
        recording: Episodes of which videos are recorded, for an adapter that `supports_recording` in mode rgb_array.
        timeout: Seconds that an environment in a separate process may take for a step or a reset.
        unbounded_action_limit: Continuous dimensions without bounds range over [-limit, limit].
        wrappers: Wrappers of every single environment in their order, each a pair of `module:Wrapper` and its keyword
            arguments.
        ignore_observations: Names of observations to leave out.
        section: Values of the section of base_config that `Adapter.section` names.
        parameters: Environment parameters, for an adapter that `takes_parameters`.
        on_episode_end: Receives role and return of each episode, from an adapter that `takes_parameters`.
        log_folder: Folder for log files of the programs that the adapter starts; None for no log files.
        first_env: Number of the first environment among all open environments of the run, whose ports and log files
            follow from their numbers.
    """

    name: str | Callable[..., Any]
    n_envs: int = 1
    args: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    render_mode: str | None = None
    recording: Recording | None = None
    timeout: float | None = None
    unbounded_action_limit: float | None = None
    wrappers: Sequence[tuple[str, Mapping[str, Any]]] = ()
    ignore_observations: Collection[str] = ()
    section: Mapping[str, Any] = field(default_factory=dict)
    parameters: EnvironmentParameters | None = None
    on_episode_end: Callable[[str, float], None] | None = None
    log_folder: Path | None = None
    first_env: int = 0


@dataclass(frozen=True, kw_only=True)
class StartCheck:
    """A check of one thing that an adapter needs before it opens its environments.

    Attributes:
        name: Name of the check, for people.
        run: Function that returns a line about what it found. It raises SimulatorError with what to do.
        in_subprocess: Whether `run`, then a function of a module, may crash or hang and must run in a subprocess.
    """

    name: str
    run: Callable[[], str]
    in_subprocess: bool = False


class Adapter(ABC):
    """A simulator with one or several environments, whose agents are presented as lanes of roles.

    A lane is the slot of one agent: row i of a Step belongs to lane `step.lane[i]` of its role. A role may appear after
    the start; `roles` contains it no later than its first Step is returned. A role may also get further lanes: `roles`
    then holds another Role under its name, and the existing lanes keep their numbers.

    The arrays of a Step are valid until the next call; copy them to keep them longer. Actions are float32
    [rows, size], continuous dimensions in [-1, 1] (`ActionSpec`).

    The class attributes and class methods describe an adapter that has not been opened yet; their defaults suit
    a simulator in Python.
    """

    needs_name: ClassVar[bool] = True  # whether base_config.env_name names the environment
    section: ClassVar[str | None] = None  # the section of base_config with settings of this adapter only
    takes_parameters: ClassVar[bool] = False  # whether the adapter passes reset_config to the environments
    unsupported_settings: ClassVar[Mapping[str, str]] = {}  # names in base_config, each with what to use instead
    starts_programs: ClassVar[bool] = False  # whether environments are programs with windows, which doctor avoids
    supports_recording: ClassVar[bool] = False  # whether videos of its episodes can be recorded
    packages: ClassVar[Sequence[str]] = ()  # distributions that only the processes of its environments import

    roles: Mapping[str, Role]
    restarts: int = 0  # number of environments that failed and were started again
    last_error: str = ""  # the error of the last of these, in one line
    supports_groups: bool = False  # whether its environments, one lane each, step between `send` and `receive`

    @classmethod
    def count_evaluation_envs(cls, config: EnvConfig, episodes: int) -> int:
        """Return the number of environments for an evaluation of `episodes` episodes, given training's `config`.

        The default is one for each episode, since environments in one process cost little.
        """
        return episodes

    @classmethod
    def find_evaluation_obstacle(cls, config: EnvConfig) -> str | None:
        """Return why no second adapter can be open during training, as evaluation needs it; None if one can."""
        return None

    @classmethod
    def list_start_checks(cls, config: EnvConfig | None) -> Sequence[StartCheck]:
        """Return what can be checked before the environments of `config` are opened.

        With None, return what can be checked for any environment of this adapter.
        """
        return ()

    @staticmethod
    def rename_metrics(values: Mapping[str, float]) -> Mapping[str, Mapping[str, float]]:
        """Return metrics by the names that users of the simulator know, by role. The default returns none."""
        return {}

    @property
    def shared_agents(self) -> Mapping[str, str] | None:
        """Return the default agent of each role, for roles that may share agents; None if they never do."""
        return None

    @abstractmethod
    def reset(self, seed: int) -> dict[str, Step]:
        """Start an episode in every lane and return the first Step of each role that exists.

        Raises:
            EnvironmentStartError: If the simulator does not start.
        """

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, Step]:
        """Execute actions for the lanes of the last Step of each role, and return the next Step of each role with rows.

        If the last observation of a truncated episode is known, it is one more row before the next `first` row. An
        adapter implements this method, or `send` and `receive`.

        Raises:
            EnvironmentCrashed: If the simulator failed; it cannot be used any more.
        """
        self.send(actions)
        return self.receive()

    def statistics(self) -> dict[str, float]:
        """Return the metrics that the simulator has reported since the last call, in addition to rewards."""
        return {}

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        """Start the execution of actions, the first half of `step`. A simulator in this process waits for `receive`.

        Raises:
            EnvironmentCrashed: If the simulator failed; it cannot be used any more.
        """
        self._pending_actions = actions

    def receive(self) -> dict[str, Step]:
        """Return the Steps that follow the actions of `send`, the second half of `step`; raise what `step` raises."""
        return self.step(self._pending_actions)

    def list_hidden_lanes(self) -> Mapping[str, Collection[int]]:
        """Return the lanes of each role for which opponents acted since the last Steps; agents play them later."""
        return {}

    def find_goal_rewards(self) -> Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]] | None:
        """Return a function of achieved and desired goals [n, ...] -> rewards [n] and terminations [n] bool.

        None if the environments do not define the rewards of other goals.
        """
        return None

    def state(self) -> dict[str, Any] | None:
        """Return the state of every episode as JSON values; None if the simulator cannot save it."""
        return None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore every episode, and `roles`, from what `state` returned; the next call is `step`.

        Raises:
            ValueError: If the state belongs to another kind of simulator.
        """
        raise ValueError(f"{type(self).__name__} cannot restore the state of episodes")

    @abstractmethod
    def close(self) -> None:
        """Close the simulator. A second call does nothing."""
