"""The player's side of the side channels: engine settings and parameters from the trainer, and statistics for it."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from uuid import UUID

import numpy as np
from mlagents_envs.side_channel import IncomingMessage, OutgoingMessage

ENGINE = UUID("e951342c-4f7e-11ea-b238-784f4387d1f7")
PARAMETERS = UUID("534c891e-810f-11ea-a9d0-822485860400")
STATISTICS = UUID("a1d8f7b7-cec8-50f9-b78b-d3e165a78520")
ENGINE_SETTINGS = (
    ("resolution", "<ii"),
    ("quality_level", "<i"),
    ("time_scale", "<f"),
    ("target_frame_rate", "<i"),
    ("capture_frame_rate", "<i"),
)
SAMPLERS = ("uniform", "gaussian", "multirange")


def read(data: bytes) -> list[tuple[str, str, list[float]]]:
    """Return the settings in a message as (`engine` or kind of parameter, name, numbers); skip other channels."""
    found = []
    while data:
        channel = UUID(bytes_le=data[:16])
        (length,) = struct.unpack_from("<i", data, 16)
        message, data = IncomingMessage(data[20 : 20 + length]), data[20 + length :]
        if channel == ENGINE:
            name, numbers = ENGINE_SETTINGS[message.read_int32()]
            found.append(("engine", name, list(struct.unpack_from(numbers, message.buffer, 4))))
        elif channel == PARAMETERS:
            found.append(_read_parameter(message))
    return found


def _read_parameter(message: IncomingMessage) -> tuple[str, str, list[float]]:
    """Read a number, or a sampler: its seed, then the numbers of its distribution."""
    name = message.read_string()
    if not message.read_int32():
        return "number", name, [message.read_float32()]
    seed, kind = message.read_int32(), SAMPLERS[message.read_int32()]
    numbers = message.read_float32_list() if kind == "multirange" else [message.read_float32() for _ in range(2)]
    return kind, name, [seed, *numbers]


def sample(kind: str, numbers: list[float], rng: np.random.Generator) -> float:
    """Return the value of a parameter at a reset."""
    if kind == "number":
        return numbers[0]
    if kind == "gaussian":
        return float(rng.normal(numbers[1], numbers[2]))
    ranges = np.array(numbers[1:]).reshape(-1, 2)
    widths = ranges[:, 1] - ranges[:, 0]
    low, high = ranges[rng.choice(len(ranges), p=widths / widths.sum() if widths.sum() else None)]
    return float(rng.uniform(low, high))


def write(statistics: Mapping[str, float]) -> bytes:
    """Return a message with statistics of the scene, to be averaged."""
    data = b""
    for name, value in statistics.items():
        message = OutgoingMessage()
        message.write_string(name)
        message.write_float32(value)
        message.write_int32(0)
        data += STATISTICS.bytes_le + struct.pack("<i", len(message.buffer)) + message.buffer
    return data
