"""One open scene: ML-Agents' client, what the engine is set to, and what the scene is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.adapters.adapter import EnvironmentStartError
from algorithm.adapters.unity.behavior import BehaviorReader
from algorithm.adapters.unity.client import PlayerQuit, UnityClient, api
from algorithm.adapters.unity.curriculum import Gaussian, MultiRange, Uniform, Value
from algorithm.adapters.unity.launch import LaunchConfig, PlayerExited
from algorithm.adapters.unity.os_process import find_player
from algorithm.adapters.unity.ports import EDITOR_PORT
from algorithm.adapters.unity.statistics import SceneStatistics

ANY_PORT = 0  # the port of a player that may have any


class Simulation:
    """The `number`-th copy of what `launch` says, open from the start; `parameters` are those of the first episodes.

    Raises EnvironmentStartError where it does not open, EnvironmentCrashed later on; it is of no use then.
    """

    def __init__(self, launch: LaunchConfig, number: int, seed: int, parameters: Mapping[str, Value]):
        self._seed = seed
        self._engine, self._parameters, self._statistics = (
            api.EngineConfigurationChannel(),
            api.EnvironmentParametersChannel(),
            api.StatsSideChannel(),
        )
        editor = launch.path is None
        log_file = _choose_log_file(launch, number)
        self._client = UnityClient(
            None if editor else find_player(Path(launch.path or "")),
            port=_choose_port(launch, number),
            start_limit=None if editor else launch.timeout,
            limit=launch.timeout,
            arguments=_make_arguments(launch, log_file),
            seed=seed,
            log=log_file,
            channels=[self._engine, self._parameters, self._statistics],
        )
        self._engine.set_configuration_parameters(**vars(launch.engine))
        self.set_parameters(parameters.items())

    @property
    def behavior_names(self) -> Iterable[str]:
        """The behaviors that have appeared."""
        return self._client.behavior_specs.keys()

    def make_reader(self, name: str) -> BehaviorReader:
        """How one of them is read."""
        return BehaviorReader(self._client.behavior_specs[name], self._client.list_compressed(name))

    def set_parameters(self, parameters: Iterable[tuple[str, Value]]) -> None:
        """Set environment parameters; the scene hears of them with the next step or reset."""
        for name, value in parameters:
            if isinstance(value, Uniform):
                self._parameters.set_uniform_sampler_parameters(name, value.low, value.high, self._seed)
            elif isinstance(value, Gaussian):
                self._parameters.set_gaussian_sampler_parameters(name, value.mean, value.std, self._seed)
            elif isinstance(value, MultiRange):
                self._parameters.set_multirangeuniform_sampler_parameters(name, list(value.intervals), self._seed)
            else:
                self._parameters.set_float_parameter(name, value)

    def reset(self) -> None:
        """Start every episode anew."""
        self._client.reset()

    def set_actions(self, behavior: str, continuous: np.ndarray, discrete: np.ndarray) -> None:
        """What the agents that await a decision do at the next step."""
        self._client.set_actions(behavior, api.ActionTuple(continuous, discrete))

    def step(self) -> None:
        """Go on until some agent needs a decision, or its episode ended."""
        self._client.step()

    def get_steps(self, behavior: str) -> tuple[Any, Any]:
        """ML-Agents' DecisionSteps and TerminalSteps."""
        return self._client.get_steps(behavior)

    def statistics(self) -> SceneStatistics:
        """What the scene told of itself since this was last asked."""
        statistics = self._statistics.get_and_reset_stats()
        return {
            name: [(value, aggregation.value) for value, aggregation in values] for name, values in statistics.items()
        }

    def close(self) -> None:
        """End the scene."""
        self._client.close()


def make_player_exited(error: Exception) -> PlayerExited:
    """Why a scene is of no use any more, in one line."""
    is_known = isinstance(error, EnvironmentStartError)
    reason = str(error) if is_known else f"{type(error).__name__}: {error}"
    return PlayerExited(" ".join(reason.split()), isinstance(error, PlayerQuit))


def _choose_port(launch: LaunchConfig, number: int) -> int:
    if launch.path is None:
        return EDITOR_PORT if launch.port is None else launch.port
    return ANY_PORT if launch.port is None else launch.port + launch.first_number + number


def _choose_log_file(launch: LaunchConfig, number: int) -> Path | None:
    """Return the file of a player's log, named as by ML-Agents; None for the editor, which has its own."""
    if launch.log_folder is None or launch.path is None:
        return None
    folder = Path(launch.log_folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"Player-{launch.first_number + number}.log"


def _make_arguments(launch: LaunchConfig, log: Path | None) -> list[str]:
    """What a player is told on its command line."""
    graphics = ["-nographics", "-batchmode"] if launch.no_graphics else []
    return [*graphics, *(["-logFile", str(log)] if log else []), *launch.additional_args]
