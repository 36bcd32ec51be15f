"""Decoding of a player's messages to ML-Agents' DecisionSteps and TerminalSteps, with images channels first.

Versions of Unity's package up to 2.x send images [rows, columns, channels], later ones [channels, rows, columns]; the
properties of a sensor's dimensions distinguish them.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from algorithm.adapters.adapter import EnvironmentCrashed
from algorithm.adapters.unity import compat

api = compat.load_api()

PNG_START = b"\x89PNG\r\n\x1a\n"


class Decoder:
    """A decoder of the agents of one behavior.

    Attributes:
        spec: BehaviorSpec, with images [channels, rows, columns].
        compressed: For each sensor, whether it sends PNGs, whose bytes k are decoded to k / 255.
    """

    def __init__(self, name: str, parameters: Any, agent: Any):
        self.name = name
        sent = api.behavior_spec_from_proto(parameters, agent)
        self._decision_sensors, self._terminal_sensors = (
            [_Sensor(name, index, spec) for index, spec in enumerate(sent.observation_specs)] for _ in range(2)
        )
        self.compressed = [observation.compression_type != api.NONE for observation in agent.observations]
        self.spec = sent._replace(observation_specs=[sensor.spec for sensor in self._decision_sensors])

    def decode(self, agents: Sequence[Any]) -> tuple[Any, Any]:
        """Return the DecisionSteps and the TerminalSteps of the agents in a message.

        Raises:
            EnvironmentCrashed: For NaN, a shape that differs from the sensor's, or an image that cannot be decoded.
        """
        deciding = [agent for agent in agents if not agent.done]
        ended = [agent for agent in agents if agent.done]
        decisions = api.DecisionSteps(
            self._decode_obs(deciding, self._decision_sensors),
            *self._read_rewards(deciding),
            self._read_masks(deciding),
            *self._read_groups(deciding),
        )
        interrupted = np.array([agent.max_step_reached for agent in ended], bool)
        reward, ids = self._read_rewards(ended)
        return decisions, api.TerminalSteps(
            self._decode_obs(ended, self._terminal_sensors), reward, interrupted, ids, *self._read_groups(ended)
        )

    def _decode_obs(self, agents: list[Any], sensors: list[_Sensor]) -> list[np.ndarray]:
        for agent in agents:
            if len(agent.observations) != len(sensors):
                raise EnvironmentCrashed(
                    f"sent {len(agent.observations)} observations of an agent of {self.name!r}, "
                    f"which has {len(sensors)} sensors"
                )
        return [sensor.decode([agent.observations[sensor.index] for agent in agents]) for sensor in sensors]

    def _read_rewards(self, agents: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        reward = np.array([agent.reward for agent in agents], np.float32)
        _check_finite(reward, "a reward", self.name)
        return reward, np.array([agent.id for agent in agents], np.int32)

    def _read_groups(self, agents: list[Any]) -> tuple[list[int], np.ndarray]:
        reward = np.array([agent.group_reward for agent in agents], np.float32)
        _check_finite(reward, "a group reward", self.name)
        return [agent.group_id for agent in agents], reward

    def _read_masks(self, agents: list[Any]) -> list[np.ndarray] | None:
        """Return a mask [n, actions] for each branch, True for a forbidden action; False without a mask."""
        branches = self.spec.action_spec.discrete_branches
        if not branches:
            return None
        forbidden = np.zeros((len(agents), sum(branches)), bool)
        for row, agent in zip(forbidden, agents, strict=True):
            if len(agent.action_mask) == len(row):
                row[:] = agent.action_mask
        return np.split(forbidden, np.cumsum(branches)[:-1], axis=1)


class _Sensor:
    """A sensor of a behavior, decoded into an array that the next message overwrites, which saves allocations."""

    def __init__(self, behavior: str, index: int, spec: Any):
        self.index = index
        self._behavior = behavior
        self._sent_shape = spec.shape
        self._is_image = len(spec.shape) == 3
        self._is_channels_last = self._is_image and not _is_channels_first(spec)
        self._size = int(np.prod(spec.shape))
        self._buffer = np.empty((0, self._size), np.float32)
        self.spec = spec
        if self._is_channels_last:
            properties = spec.dimension_property
            self.spec = spec._replace(
                shape=(spec.shape[2], *spec.shape[:2]), dimension_property=(properties[2], *properties[:2])
            )

    def decode(self, observations: list[Any]) -> np.ndarray:
        """Return the observations [n, *shape] float32."""
        if not observations:
            return np.zeros((0, *self.spec.shape), np.float32)
        for observation in observations:
            if tuple(observation.shape) != self._sent_shape:
                raise self._make_error(f"of shape {tuple(observation.shape)}, not {self._sent_shape}")
        if any(observation.compression_type != api.NONE for observation in observations):
            values = np.stack([self._decompress(observation) for observation in observations])
        else:
            values = self._decode_raw(observations)
        _check_finite(values, f"the sensor {self.spec.name!r}", self._behavior)
        return values

    def _decode_raw(self, observations: list[Any]) -> np.ndarray:
        """Copy the numbers from the serialized messages, which avoids a Python object for each of them."""
        if len(self._buffer) < len(observations):
            self._buffer = np.empty((len(observations), self._size), np.float32)
        length = 4 * self._size
        for values, observation in zip(self._buffer, observations, strict=False):
            data = observation.float_data.SerializeToString()
            if not length <= len(data) <= length + 6:  # a tag and the length precede the numbers
                raise self._make_error(f"of {len(data) // 4} numbers, not {self._size}")
            values[:] = np.frombuffer(data, "<f4", offset=len(data) - length)
        rows = self._buffer[: len(observations)].reshape(-1, *self._sent_shape)
        return rows.transpose(0, 3, 1, 2) if self._is_channels_last else rows

    def _decompress(self, observation: Any) -> np.ndarray:
        if observation.compression_type == api.NONE:
            return self._decode_raw([observation])[0].copy()
        planes = self._decode_planes(observation.compressed_data)
        mapping = np.array(observation.compressed_channel_mapping)
        channels = self.spec.shape[0]
        if mapping.size:
            planes = self._map_channels(planes, mapping)
        elif channels == 1:
            planes = planes[:3].mean(0, keepdims=True)
        image = planes[:channels] / np.float32(255)
        if image.shape != self.spec.shape:
            raise self._make_error(f"that is an image of {image.shape}, not {self.spec.shape}")
        return image

    def _decode_planes(self, data: bytes) -> np.ndarray:
        """Return the channels of consecutive PNGs, [channels, rows, columns] float32."""
        from PIL import Image

        try:
            images = [np.asarray(Image.open(io.BytesIO(PNG_START + part))) for part in data.split(PNG_START)[1:]]
            return np.concatenate([np.atleast_3d(image) for image in images], -1).transpose(2, 0, 1).astype(np.float32)
        except (OSError, SyntaxError, ValueError) as error:  # from PIL, and for data without a PNG
            raise self._make_error(f"that is not a readable image: {error}") from error

    def _map_channels(self, planes: np.ndarray, mapping: np.ndarray) -> np.ndarray:
        """Average the planes that `mapping` assigns to the same channel; planes with -1 are left out."""
        if len(mapping) != len(planes):
            raise self._make_error(f"with {len(planes)} channels, of which it maps {len(mapping)}")
        return np.stack([planes[mapping == channel].mean(0) for channel in range(mapping.max() + 1)])

    def _make_error(self, what: str) -> EnvironmentCrashed:
        return EnvironmentCrashed(
            f"sent an observation {what}, from the sensor {self.spec.name!r} of {self._behavior!r}"
        )


def _is_channels_first(spec: Any) -> bool:
    """Return whether the first dimension is the only one without translational equivariance, as for channels."""
    shifted = [bool(each & api.DimensionProperty.TRANSLATIONAL_EQUIVARIANCE) for each in spec.dimension_property]
    return shifted == [False, True, True]


def _check_finite(values: np.ndarray, what: str, behavior: str) -> None:
    if not np.isfinite(values).all():
        raise EnvironmentCrashed(f"sent NaN or infinity in {what} of {behavior!r}")
