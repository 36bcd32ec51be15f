"""The player's side of the side channels: engine settings and parameters from the trainer, and statistics for it."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from uuid import UUID

import numpy as np

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
    """Yield the settings in a message as (`engine` or kind of parameter, name, numbers); skip other channels."""
    found = []
    while data:
        channel = UUID(bytes_le=data[:16])
        (length,) = struct.unpack_from("<i", data, 16)
        message, data = data[20 : 20 + length], data[20 + length :]
        if channel == ENGINE:
            (kind,) = struct.unpack_from("<i", message)
            name, numbers = ENGINE_SETTINGS[kind]
            found.append(("engine", name, list(struct.unpack_from(numbers, message, 4))))
        elif channel == PARAMETERS:
            found.append(_parameter(message))
    return found


def _parameter(message: bytes) -> tuple[str, str, list[float]]:
    """Read a number, or a sampler: its seed, then the numbers of its distribution."""
    (length,) = struct.unpack_from("<i", message)
    name, rest = message[4 : 4 + length].decode("ascii"), message[4 + length :]
    (sampler,) = struct.unpack_from("<i", rest)
    if not sampler:
        return "number", name, list(struct.unpack_from("<f", rest, 4))
    seed, kind = struct.unpack_from("<ii", rest, 4)
    skipped = 16 if SAMPLERS[kind] == "multirange" else 12  # a list starts with its length
    numbers = np.frombuffer(rest[skipped:], "<f4").tolist()
    return SAMPLERS[kind], name, [seed, *numbers]


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
        key = name.encode("ascii")
        message = struct.pack("<i", len(key)) + key + struct.pack("<fi", value, 0)
        data += STATISTICS.bytes_le + struct.pack("<i", len(message)) + message
    return data
