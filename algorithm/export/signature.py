"""What Unity hands to a brain and what it reads of it: names, shapes and order of inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from algorithm.adapters.wrappers.previous_action_reward import PREVIOUS_ACTION, PREVIOUS_REWARD, find_previous_kinds
from algorithm.errors import UserError
from algorithm.specs import ACTION_MASK, ObsSpec, Role

VERSION = 3.0  # of the names below: ModelApiVersion.MLAgents2_0
BATCH = "batch"  # the name of the first axis, which is of any length
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

Shape = tuple[int, ...]  # without the batch


@dataclass(frozen=True)
class ObservationInput:
    """One observation: its shape in the file, and the numbers by which the agent's own differ from it.

    An image of bytes comes as 0..1, whose `scale` is what 1 stands for.
    """

    name: str
    shape: Shape
    agent_shape: Shape  # as the agent's encoders take it
    scale: float = 1.0

    @classmethod
    def of(cls, name: str, spec: ObsSpec) -> ObservationInput:
        """Of an observation: a table of numbers has its rows, an image its channels first, the rest is a vector."""
        table = spec.env_shape is not None and len(spec.env_shape) == 2 and len(spec.shape) == 1 and not spec.n_values
        image = len(spec.shape) == 3 and spec.dtype == "uint8"
        return cls(name, spec.env_shape if table else spec.shape, spec.shape, spec.high if image else 1.0)


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of one role's brain. The memory is the agent's, then the `previous` action, encoded."""

    sensors: tuple[ObservationInput, ...]
    continuous: int
    branches: tuple[int, ...]
    memory: int
    previous: int = 0  # numbers of the memory that are the previous action

    @classmethod
    def of(cls, role: Role, state: int) -> Signature:
        """Of a role whose agent remembers `state` numbers. Raises UserError for what Unity cannot tell an agent."""
        if "reward" in find_previous_kinds(role):
            raise UserError(
                f"this agent observes {PREVIOUS_REWARD} (base_config.observe_previous), and Unity tells a model no "
                "reward: train without it"
            )
        observed = {name: spec for name, spec in role.obs_specs.items() if name not in (ACTION_MASK, PREVIOUS_ACTION)}
        action = role.action_spec
        previous = action.encoded_size if PREVIOUS_ACTION in role.obs_specs else 0
        sensors = tuple(ObservationInput.of(name, spec) for name, spec in observed.items())
        return cls(sensors, action.continuous, action.branches, state + previous, previous)

    def inputs(self) -> dict[str, Shape]:
        """Shapes by name, in order."""
        found = {f"obs_{index}": sensor.shape for index, sensor in enumerate(self.sensors)}
        if self.branches:
            found[MASKS] = (sum(self.branches),)
        if self.memory:
            found[MEMORY_IN] = (1, self.memory)
        return found

    def constants(self) -> dict[str, np.ndarray]:
        """What the file says of itself."""
        found = {VERSION_NUMBER: [VERSION], MEMORY_SIZE: [float(self.memory)]}
        if self.continuous:
            found[CONTINUOUS_SIZE] = [float(self.continuous)]
        arrays = {name: np.array(value, np.float32) for name, value in found.items()}
        if self.branches:
            arrays[DISCRETE_SIZES] = np.array([self.branches], np.float32)
        return arrays

    def computed_outputs(self) -> dict[str, Shape]:
        """What is computed: shapes by name, in order."""
        found: dict[str, Shape] = {}
        if self.continuous:
            found |= {CONTINUOUS: (self.continuous,), CONTINUOUS_MODE: (self.continuous,)}
        if self.branches:
            found |= {DISCRETE: (len(self.branches),), DISCRETE_MODE: (len(self.branches),)}
        if self.memory:
            found[MEMORY_OUT] = (1, self.memory)
        return found

    def make_feed(self, obs: dict[str, np.ndarray], memory: np.ndarray) -> dict[str, np.ndarray]:
        """Observations {name: [n, *own]} of an agent, and a memory [n, memory], as the file takes them."""
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


# The order of ML-Agents' own files.
ORDER = (
    VERSION_NUMBER,
    MEMORY_SIZE,
    CONTINUOUS,
    CONTINUOUS_SIZE,
    CONTINUOUS_MODE,
    DISCRETE,
    DISCRETE_SIZES,
    DISCRETE_MODE,
    MEMORY_OUT,
)
