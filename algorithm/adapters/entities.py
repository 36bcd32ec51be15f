"""A wrapper for observations with a variable number of rows, which become tables of a fixed size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

MASK_SUFFIX = "_mask"  # of the observation with the rows of another one that are present


class EntityBox(spaces.Box):
    """The space of a table [rows, features] in which a row of zeros is absent."""


class PadEntities(gymnasium.ObservationWrapper):
    """A wrapper that pads sequences of rows with zeros, for the encoder `Entities`.

    It converts each `Sequence` of Boxes [f] to a table [rows, f + 1], and each Box [n, f] of a Dict with an observation
    of its name and `_mask` [n] to a table [n, f + 1] without absent rows. The additional feature is 1 in rows that are
    present, so that a row of zeros is absent in no other case.

    Args:
        env: The environment.
        rows: Largest number of rows of each sequence, by name, or of all.

    Raises:
        ValueError: No observation is a sequence or has a mask, or a sequence is not of Boxes of one dimension; with an
            observation: more rows than `rows`.
    """

    def __init__(self, env: gymnasium.Env, rows: int | Mapping[str, int] = 0):
        super().__init__(env)
        space = env.observation_space
        self._is_dict = isinstance(space, spaces.Dict)
        parts: dict[str, Any] = dict(space.spaces) if isinstance(space, spaces.Dict) else {"obs": space}
        self._masks = {name: f"{name}{MASK_SUFFIX}" for name in parts if f"{name}{MASK_SUFFIX}" in parts}
        self._rows = {
            name: rows if isinstance(rows, int) else rows.get(name, 0)
            for name, part in parts.items()
            if isinstance(part, spaces.Sequence)
        }
        if not self._masks and not self._rows:
            raise ValueError("PadEntities: no observation is a Sequence, or has a mask of its name and _mask")
        converted = {name: self._convert_space(name, part) for name, part in parts.items()}
        converted = {name: part for name, part in converted.items() if name not in self._masks.values()}
        self.observation_space = spaces.Dict(converted) if self._is_dict else converted["obs"]

    def _convert_space(self, name: str, space: Any) -> Any:
        if name in self._rows:
            feature, rows = space.feature_space, self._rows[name]
            if not isinstance(feature, spaces.Box) or len(feature.shape) != 1:
                raise ValueError(f"PadEntities: {name!r} is a Sequence of {feature}; its rows must be Boxes [f]")
            if rows < 1:
                raise ValueError(f"PadEntities: set rows, the largest number of rows of {name!r}")
            return EntityBox(-np.inf, np.inf, (rows, feature.shape[0] + 1), np.float32)
        if name in self._masks:
            if len(space.shape) != 2:
                raise ValueError(f"PadEntities: {name!r} has a mask and the shape {space.shape}; it must be [rows, f]")
            return EntityBox(-np.inf, np.inf, (space.shape[0], space.shape[1] + 1), np.float32)
        return space

    def observation(self, observation: Any) -> Any:
        """Return the observation with tables. Raises ValueError for too many rows."""
        parts = dict(observation) if self._is_dict else {"obs": observation}
        for name, rows in self._rows.items():
            values = [np.asarray(row, np.float32) for row in parts[name]]
            if len(values) > rows:
                raise ValueError(f"{name!r} has {len(values)} rows, and PadEntities {rows}: increase its rows")
            table = self._make_table(name)
            for row, value in zip(table, values, strict=False):
                row[:-1], row[-1] = value, 1
            parts[name] = table
        for name, mask_name in self._masks.items():
            present = np.asarray(parts.pop(mask_name), bool)
            table = self._make_table(name)
            table[present, :-1], table[present, -1] = np.asarray(parts[name], np.float32)[present], 1
            parts[name] = table
        return parts if self._is_dict else parts["obs"]

    def _make_table(self, name: str) -> np.ndarray:
        space: Any = self.observation_space
        return np.zeros((space.spaces[name] if self._is_dict else space).shape, np.float32)
