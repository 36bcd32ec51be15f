"""Names, shapes and order of the inputs and outputs of a model in Unity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from algorithm.adapters.wrappers import PREVIOUS_ACTION, PREVIOUS_REWARD, find_previous_kinds
from algorithm.errors import UserError
from algorithm.specs import ACTION_MASK, ObsSpec, Role

VERSION = 3.0  # the version of the names below: ModelApiVersion.MLAgents2_0
BATCH = "batch"  # name of the first axis, which may have any length
MASKS, MEMORY_IN, MEMORY_OUT = "action_masks", "recurrent_in", "recurrent_out"
CONTINUOUS, CONTINUOUS_SIZE, CONTINUOUS_MODE = (
    "continuous_actions",
    "continuous_action_output_shape",
    "deterministic_continuous_actions",
)
DISCRETE, DISCRETE_SIZES, DISCRETE_MODE = (
    "discrete_actions",
    "discrete_action_output_shape",
    "deterministic_discrete_actions",
)
VERSION_NUMBER, MEMORY_SIZE = "version_number", "memory_size"

Shape = tuple[int, ...]  # without the batch axis


@dataclass(frozen=True, kw_only=True)
class ObservationInput:
    """An observation as an input of the file.

    Attributes:
        name: Name of the observation.
        shape: Shape of the input.
        agent_shape: Shape of the observation for the agent's encoder.
        scale: Factor from the input to the observation: Unity's images range over [0, 1], uint8 images over [0, 255].
    """

    name: str
    shape: Shape
    agent_shape: Shape
    scale: float = 1.0

    @classmethod
    def of(cls, name: str, spec: ObsSpec) -> ObservationInput:
        """Return the input for an observation: tables and images keep their shapes, others become vectors."""
        shape = spec.shape
        if spec.env_shape is not None and len(spec.env_shape) == 2 and len(spec.shape) == 1 and not spec.n_values:
            shape = spec.env_shape
        image = len(spec.shape) == 3 and spec.dtype == "uint8"
        return cls(name=name, shape=shape, agent_shape=spec.shape, scale=spec.high if image else 1.0)


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The inputs and outputs of the model of one role.

    Attributes:
        sensors: Observations, in the order of the scene's sensors.
        continuous: Number of continuous actions.
        branches: Number of actions of each discrete branch.
        memory: Size of the memory: the agent's state, then the encoded previous action.
        previous: Size of the encoded previous action; 0 if the agent does not observe it.
    """

    sensors: tuple[ObservationInput, ...]
    continuous: int
    branches: tuple[int, ...]
    memory: int
    previous: int = 0

    @classmethod
    def of(cls, role: Role, state_size: int) -> Signature:
        """Return the signature of a role whose agent has a state of `state_size` values.

        Raises:
            UserError: If the agent observes its previous reward, which Unity does not pass to a model.
        """
        if "reward" in find_previous_kinds(role):
            raise UserError(
                f"this agent observes {PREVIOUS_REWARD} (base_config.observe_previous), but Unity passes no reward to "
                "a model: train without it"
            )
        observed = {name: spec for name, spec in role.obs_specs.items() if name not in (ACTION_MASK, PREVIOUS_ACTION)}
        action = role.action_spec
        previous = action.encoded_size if PREVIOUS_ACTION in role.obs_specs else 0
        sensors = tuple(ObservationInput.of(name, spec) for name, spec in observed.items())
        return cls(
            sensors=sensors,
            continuous=action.continuous,
            branches=action.branches,
            memory=state_size + previous,
            previous=previous,
        )

    def inputs(self) -> dict[str, Shape]:
        """Return the shape of each input by name, in order."""
        found = {f"obs_{index}": sensor.shape for index, sensor in enumerate(self.sensors)}
        if self.branches:
            found[MASKS] = (sum(self.branches),)
        if self.memory:
            found[MEMORY_IN] = (1, self.memory)
        return found

    def outputs(self) -> dict[str, Shape | np.ndarray]:
        """Return the shape of each computed output and the value of each constant, in the order of ML-Agents' files."""
        outputs: dict[str, Any] = {VERSION_NUMBER: [VERSION], MEMORY_SIZE: [self.memory]}
        if size := self.continuous:
            outputs |= {CONTINUOUS: (size,), CONTINUOUS_SIZE: [size], CONTINUOUS_MODE: (size,)}
        if count := len(self.branches):
            outputs |= {DISCRETE: (count,), DISCRETE_SIZES: [self.branches], DISCRETE_MODE: (count,)}
        if self.memory:
            outputs[MEMORY_OUT] = (1, self.memory)
        return {
            name: output if isinstance(output, tuple) else np.array(output, np.float32)
            for name, output in outputs.items()
        }

    def constants(self) -> dict[str, np.ndarray]:
        """Return the value of each constant output by name."""
        return {name: value for name, value in self.outputs().items() if isinstance(value, np.ndarray)}

    def computed_outputs(self) -> dict[str, Shape]:
        """Return the shape of each computed output by name, in order."""
        return {name: shape for name, shape in self.outputs().items() if isinstance(shape, tuple)}

    def make_feed(self, obs: dict[str, np.ndarray], memory: np.ndarray) -> dict[str, np.ndarray]:
        """Return the inputs of the file for an agent's observations {name: [n, ...]} and a memory [n, memory]."""
        n = len(memory)
        feed = {
            f"obs_{index}": (obs[sensor.name].astype(np.float32) / sensor.scale).reshape(n, *sensor.shape)
            for index, sensor in enumerate(self.sensors)
        }
        if self.branches:
            feed[MASKS] = np.asarray(obs.get(ACTION_MASK, np.ones((n, sum(self.branches)))), np.float32)
        if self.memory:
            feed[MEMORY_IN] = memory.reshape(n, 1, self.memory)
        return feed
