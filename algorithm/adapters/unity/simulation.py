"""The simulation of one scene in its process: ML-Agents' client, its settings, and its agents as plain arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.adapters.adapter import SimulatorError
from algorithm.adapters.curriculum import Gaussian, MultiRange, Uniform, Value
from algorithm.adapters.unity.client import PlayerQuit, UnityClient, api
from algorithm.adapters.unity.launch import LaunchConfig, find_player
from algorithm.adapters.unity.scene_tick import AgentSpecs, Batch, PlayerExited, SceneTick
from algorithm.specs import ACTION_MASK, ActionSpec, ObsSpec

MAX_IDLE_TICKS = 1000  # consecutive ticks in which no agent requests a decision


class Simulation:
    """One open scene with its behaviors."""

    def __init__(self, launch: LaunchConfig, number: int, seed: int, parameters: Mapping[str, Value]):
        """Open scene `number` of a launch configuration, with the environment parameters of the first episodes.

        The seed is that of the scene and of the samplers of its parameters. Raises EnvironmentStartError if the scene
        does not open.
        """
        self._seed = seed
        self._parameters, self._statistics = api.EnvironmentParametersChannel(), api.StatsSideChannel()
        engine = api.EngineConfigurationChannel()
        log_file = launch.make_log_file(number)
        self._client = UnityClient(
            None if launch.path is None else find_player(Path(launch.path)),
            port=launch.get_port(number),
            start_limit=None if launch.path is None else launch.timeout,
            limit=launch.timeout,
            arguments=launch.make_arguments(log_file),
            seed=seed,
            log=log_file,
            channels=[engine, self._parameters, self._statistics],
        )
        self._readers: dict[str, BehaviorReader] = {}
        engine.set_configuration_parameters(**vars(launch.engine))
        self._set_parameters(parameters)

    def start(self) -> SceneTick:
        """Start all episodes and return the first tick in which an agent requests a decision.

        Raises:
            EnvironmentCrashed: If the player fails.
            RuntimeError: If no agent requests a decision in `MAX_IDLE_TICKS` ticks.
        """
        self._client.reset()
        for _ in range(MAX_IDLE_TICKS):
            tick = self._read_tick()
            if any(len(decisions) for decisions, _ in tick.batches.values()):
                tick.agent_specs = {name: reader.agent_specs for name, reader in self._readers.items()}
                return tick
            self._client.step()
        raise RuntimeError(
            f"no agent requested a decision in {MAX_IDLE_TICKS} ticks; does any agent have a Decision Requester?"
        )

    def step(self, actions: Mapping[str, np.ndarray], parameters: Mapping[str, Value]) -> SceneTick:
        """Execute actions {behavior: [n, size]} and return the next tick; `parameters` are those that have changed.

        Agents that await a decision are in the order of the last tick. Raises EnvironmentCrashed if the player fails.
        """
        self._set_parameters(parameters)
        for name, behavior_actions in actions.items():
            n_continuous = self._readers[name].agent_specs.action_spec.continuous
            continuous, discrete = np.split(behavior_actions, [n_continuous], axis=1)
            self._client.set_actions(name, api.ActionTuple(np.clip(continuous, -1, 1), discrete.astype(np.int32)))
        self._client.step()
        return self._read_tick()

    def close(self) -> None:
        """Close the scene."""
        self._client.close()

    def _set_parameters(self, parameters: Mapping[str, Value]) -> None:
        """Set environment parameters, which the scene receives with the next step or reset."""
        for name, value in parameters.items():
            if isinstance(value, Uniform):
                self._parameters.set_uniform_sampler_parameters(name, value.low, value.high, self._seed)
            elif isinstance(value, Gaussian):
                self._parameters.set_gaussian_sampler_parameters(name, value.mean, value.std, self._seed)
            elif isinstance(value, MultiRange):
                self._parameters.set_multirangeuniform_sampler_parameters(name, list(value.intervals), self._seed)
            else:
                self._parameters.set_float_parameter(name, value)

    def _read_tick(self) -> SceneTick:
        statistics = {
            name: [(value, aggregation.value) for value, aggregation in values]
            for name, values in self._statistics.get_and_reset_stats().items()
        }
        tick = SceneTick({}, statistics=statistics)
        for name, spec in self._client.behavior_specs.items():
            if name not in self._readers:
                self._readers[name] = BehaviorReader(spec, self._client.list_compressed(name))
                tick.agent_specs[name] = self._readers[name].agent_specs
            decisions, terminals = self._client.get_steps(name)
            reader = self._readers[name]
            tick.batches[name] = reader.read_decisions(decisions), reader.read_terminals(terminals)
        return tick


def make_player_exited(error: Exception) -> PlayerExited:
    """Return the reason, in one line, why a scene that raised `error` can no longer be used."""
    is_known = isinstance(error, SimulatorError)
    reason = str(error) if is_known else f"{type(error).__name__}: {error}"
    return PlayerExited(" ".join(reason.split()), isinstance(error, PlayerQuit))


class BehaviorReader:
    """A reader of the steps of one behavior, by the specification that the scene sent.

    Sensors keep their names; a sensor without a name, or with the name of another sensor, is called `sensor_<index>`.
    Vectors are float32. A sequence of variable length becomes one vector, padded with zeros at the end. Images are
    [channels, rows, columns]: uint8 if they are sent compressed, float32 otherwise.
    """

    def __init__(self, spec: Any, compressed: Sequence[bool]):
        """Create a reader, from ML-Agents' BehaviorSpec and, for each sensor, whether it sends compressed images."""
        self._branches = tuple(spec.action_spec.discrete_branches)
        action = ActionSpec(int(spec.action_spec.continuous_size), self._branches)
        names = [sensor.name for sensor in spec.observation_specs]
        self._names = [
            name if name and names.count(name) == 1 and name != ACTION_MASK else f"sensor_{index}"
            for index, name in enumerate(names)
        ]
        specs = {
            name: _make_obs_spec(tuple(sensor.shape), is_compressed)
            for name, sensor, is_compressed in zip(self._names, spec.observation_specs, compressed, strict=True)
        }
        if action.branches:
            specs[ACTION_MASK] = ObsSpec((sum(action.branches),), "uint8")
        self.agent_specs = AgentSpecs(specs, action)

    def read_decisions(self, steps: Any) -> Batch:
        """Return the agents that await a decision, from ML-Agents' DecisionSteps."""
        return self._read_batch(steps, np.zeros(len(steps), bool), steps.action_mask)

    def read_terminals(self, steps: Any) -> Batch:
        """Return the agents whose episode ended, from ML-Agents' TerminalSteps."""
        return self._read_batch(steps, np.array(steps.interrupted, bool), None)

    def _read_batch(self, steps: Any, interrupted: np.ndarray, masks: list[np.ndarray] | None) -> Batch:
        obs = {}
        for name, values in zip(self._names, steps.obs, strict=True):
            spec = self.agent_specs.obs_specs[name]
            array = np.rint(255 * values) if spec.dtype == "uint8" else values
            obs[name] = np.asarray(array, spec.dtype).reshape(len(steps), *spec.shape)
        if self._branches:
            obs[ACTION_MASK] = np.ones((len(steps), sum(self._branches)), np.uint8)
            if masks is not None:  # they are True if forbidden
                obs[ACTION_MASK] = (~np.concatenate(masks, -1)).astype(np.uint8)
        reward = np.asarray(steps.reward, np.float32) + np.asarray(steps.group_reward, np.float32)
        return Batch(agent=np.asarray(steps.agent_id, np.int64), obs=obs, reward=reward, interrupted=interrupted)


def _make_obs_spec(shape: tuple[int, ...], is_compressed: bool) -> ObsSpec:
    """Return the spec of one sensor: rank 1 is a vector, 2 a sequence of variable length, 3 an image."""
    if len(shape) == 3 and is_compressed:
        return ObsSpec(shape, "uint8", high=255.0)
    if len(shape) == 2:
        return ObsSpec((prod(shape),), env_shape=shape)
    return ObsSpec(shape)
