"""Decoding of a player's messages to Batches of agents, with images channels first.

Versions of Unity's package up to 2.x send images [rows, columns, channels], later ones [channels, rows, columns]; the
properties of a sensor's dimensions distinguish them.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from algorithm.adapters.adapter import EnvironmentCrashed
from algorithm.adapters.scenes.scene import Batch
from algorithm.adapters.unity import compat
from algorithm.specs import ACTION_MASK, ActionSpec, ObsSpec, Role

api = compat.load_api()

PNG_START = b"\x89PNG\r\n\x1a\n"


class Decoder:
    """A decoder of the agents of one behavior; `role` has the observations and actions of one agent.

    Sensors keep their names; a sensor without a name, or with the name of another sensor, is called `sensor_<index>`.
    Vectors are float32. A sequence of variable length becomes one vector, padded with zeros at the end. Images are
    [channels, rows, columns]: uint8 if they are sent compressed, float32 otherwise.
    """

    def __init__(self, parameters: Any, agent: Any):
        """Create a decoder from the description of a behavior, and the first message about one of its agents."""
        self.name = parameters.brain_name
        action = parameters.action_spec
        self._branches = tuple(action.discrete_branch_sizes)
        names = [observation.name for observation in agent.observations]
        names = [
            name if name and names.count(name) == 1 and name != ACTION_MASK else f"sensor_{index}"
            for index, name in enumerate(names)
        ]
        self._sensors = [_Sensor(name, self.name, sent) for name, sent in zip(names, agent.observations, strict=True)]
        specs = {sensor.name: sensor.spec for sensor in self._sensors}
        if self._branches:
            specs[ACTION_MASK] = ObsSpec((sum(self._branches),), "uint8")
        self.role = Role(1, specs, ActionSpec(action.num_continuous_actions, self._branches))

    def decode(self, agents: Sequence[Any]) -> tuple[Batch, Batch]:
        """Return the agents of a message that await a decision, and those whose episode ended.

        Raises:
            EnvironmentCrashed: For NaN, a shape that differs from the sensor's, or an image that cannot be decoded.
        """
        deciding = self.read_batch([agent for agent in agents if not agent.done])
        return deciding, self.read_batch([agent for agent in agents if agent.done])

    def read_batch(self, agents: list[Any]) -> Batch:
        """Return agents of a message, of which those whose episode ended count as unmasked. Raises as `decode` does."""
        for agent in agents:
            if len(agent.observations) != len(self._sensors):
                raise EnvironmentCrashed(
                    f"sent {len(agent.observations)} observations of an agent of {self.name!r}, "
                    f"which has {len(self._sensors)} sensors"
                )
        obs = {
            sensor.name: sensor.decode([agent.observations[index] for agent in agents])
            for index, sensor in enumerate(self._sensors)
        }
        if self._branches:
            obs[ACTION_MASK] = self._read_masks(agents)
        reward, group_reward = (
            np.array([getattr(agent, field) for agent in agents], np.float32) for field in ("reward", "group_reward")
        )
        _check_finite(reward, "a reward", self.name)
        _check_finite(group_reward, "a group reward", self.name)
        return Batch(
            agent=np.array([agent.id for agent in agents], np.int64),
            obs=obs,
            reward=reward + group_reward,
            interrupted=np.array([agent.max_step_reached for agent in agents], bool),
            group=np.array([agent.group_id for agent in agents], np.int64),
        )

    def _read_masks(self, agents: list[Any]) -> np.ndarray:
        """Return masks [n, actions] uint8, 1 for an allowed action; an agent without a mask, or at its end, has ones.

        A message has True for a forbidden action.
        """
        allowed = np.ones((len(agents), sum(self._branches)), np.uint8)
        for row, agent in zip(allowed, agents, strict=True):
            if len(agent.action_mask) == len(row) and not agent.done:
                row[:] = ~np.array(agent.action_mask, bool)
        return allowed


class _Sensor:
    """A sensor of a behavior."""

    def __init__(self, name: str, behavior: str, sent: Any):
        self.name, self._behavior = name, behavior
        self._sent_shape = shape = tuple(sent.shape)
        # Channels are the only dimension without translational equivariance.
        shifted = [bool(each & api.DimensionProperty.TRANSLATIONAL_EQUIVARIANCE) for each in sent.dimension_properties]
        self._is_channels_last = len(shape) == 3 and shifted != [False, True, True]
        self._shape = (shape[2], *shape[:2]) if self._is_channels_last else shape
        if len(shape) == 3 and sent.compression_type != api.NONE:
            self.spec = ObsSpec(self._shape, "uint8", high=255.0)
        else:
            is_variable = any(each & api.DimensionProperty.VARIABLE_SIZE for each in sent.dimension_properties[:1])
            table = ObsSpec((prod(shape),), env_shape=shape, rows=shape[0] if is_variable else 0)
            self.spec = table if len(shape) == 2 else ObsSpec(self._shape)

    def decode(self, observations: list[Any]) -> np.ndarray:
        """Return the observations [n, *shape] in the dtype of the spec."""
        if not observations:
            return np.zeros((0, *self.spec.shape), self.spec.dtype)
        for observation in observations:
            if tuple(observation.shape) != self._sent_shape:
                raise self._make_error(f"of shape {tuple(observation.shape)}, not {self._sent_shape}")
        if any(observation.compression_type != api.NONE for observation in observations):
            values = np.stack([self._decompress(observation) for observation in observations])
        else:
            values = self._decode_raw(observations)
        _check_finite(values, f"the sensor {self.name!r}", self._behavior)
        if self.spec.dtype == "uint8":
            values = np.rint(255 * values).astype(np.uint8)
        return values.reshape(len(values), *self.spec.shape)

    def _decode_raw(self, observations: list[Any]) -> np.ndarray:
        """Copy the numbers from the serialized messages, which avoids a Python object for each of them."""
        size = prod(self._sent_shape)
        rows, length = np.empty((len(observations), size), np.float32), 4 * size
        for values, observation in zip(rows, observations, strict=True):
            data = observation.float_data.SerializeToString()
            if not length <= len(data) <= length + 6:  # a tag and the length precede the numbers
                raise self._make_error(f"of {len(data) // 4} numbers, not {size}")
            values[:] = np.frombuffer(data, "<f4", offset=len(data) - length)
        rows = rows.reshape(-1, *self._sent_shape)
        return rows.transpose(0, 3, 1, 2) if self._is_channels_last else rows

    def _decompress(self, observation: Any) -> np.ndarray:
        """Return an image [channels, rows, columns] float32, in which byte k of a PNG is k / 255."""
        if observation.compression_type == api.NONE:
            return self._decode_raw([observation])[0]
        planes = self._decode_planes(observation.compressed_data)
        mapping = np.array(observation.compressed_channel_mapping)
        channels = self._shape[0]
        if mapping.size:
            planes = self._map_channels(planes, mapping)
        elif channels == 1:
            planes = planes[:3].mean(0, keepdims=True)
        image = planes[:channels] / np.float32(255)
        if image.shape != self._shape:
            raise self._make_error(f"that is an image of {image.shape}, not {self._shape}")
        return image

    def _decode_planes(self, data: bytes) -> np.ndarray:
        """Return the channels of consecutive PNGs, [channels, rows, columns] float32."""
        try:
            images = [np.asarray(api.Image.open(io.BytesIO(PNG_START + part))) for part in data.split(PNG_START)[1:]]
            return np.concatenate([np.atleast_3d(image) for image in images], -1).transpose(2, 0, 1).astype(np.float32)
        except (OSError, SyntaxError, ValueError) as error:  # from PIL, and for data without a PNG
            raise self._make_error(f"that is not a readable image: {error}") from error

    def _map_channels(self, planes: np.ndarray, mapping: np.ndarray) -> np.ndarray:
        """Average the planes that `mapping` assigns to the same channel; planes with -1 are left out."""
        if len(mapping) != len(planes):
            raise self._make_error(f"with {len(planes)} channels, of which it maps {len(mapping)}")
        return np.stack([planes[mapping == channel].mean(0) for channel in range(mapping.max() + 1)])

    def _make_error(self, what: str) -> EnvironmentCrashed:
        return EnvironmentCrashed(f"sent an observation {what}, from the sensor {self.name!r} of {self._behavior!r}")


def _check_finite(values: np.ndarray, what: str, behavior: str) -> None:
    if not np.isfinite(values).all():
        raise EnvironmentCrashed(f"sent NaN or infinity in {what} of {behavior!r}")
