"""The interface of a simulator: specifications of observations and actions, and the roles of its agents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, TypeVar

import numpy as np

# The observation [sum of branches] that is 1 for allowed actions, all branches concatenated; no network reads it.
ACTION_MASK = "action_mask"
# Observations of an agent's team, which only a centralised critic reads: those of the other members have this prefix.
TEAM = "team/"
TEAM_PRESENT, TEAM_ACTION = f"{TEAM}present", f"{TEAM}action"

Value = TypeVar("Value")


@dataclass(frozen=True)
class ObsSpec:
    """One observation of one lane.

    Integers are observed as one-hot vectors, concatenated. An image has the shape [channels, rows, columns].
    """

    shape: tuple[int, ...]  # without the lane axis
    dtype: str = "float32"  # a name of numpy
    _: KW_ONLY
    env_shape: tuple[int, ...] | None = None  # of the environment's value, if it differs from `shape`
    n_values: tuple[int, ...] = ()  # of integers: the number of values of each
    start: tuple[int, ...] = ()  # of integers: the smallest value of each; empty for 0
    high: float = 1.0  # of an image: the largest value of its bytes, by which encoders divide
    rows: int = 0  # of entities: the largest number of rows, of which those of zeros are absent; 0: no entities

    @property
    def effective_env_shape(self) -> tuple[int, ...]:
        """The shape of the environment's value."""
        return self.shape if self.env_shape is None else self.env_shape

    def encode(self, env_values: Any) -> np.ndarray:
        """Return the observation [n, *shape] of the environment's values [n, *env_shape].

        Raises:
            ValueError: An integer is not one of the `n_values` from `start`.
        """
        if self.n_values:
            return self._one_hot(np.asarray(env_values, np.int64).reshape(-1, len(self.n_values)))
        values = np.asarray(env_values, self.dtype)
        if self.env_shape is None:
            return values
        if len(self.env_shape) == len(self.shape) == 3:  # an image with channels last; returns a view
            return values.transpose(0, 3, 1, 2)
        return values.reshape(-1, *self.shape)

    def _one_hot(self, values: np.ndarray) -> np.ndarray:
        n_values, start, offset = self._one_hot_layout
        index = values - start
        invalid = (index < 0) | (index >= n_values)
        if invalid.any():
            _, component = np.argwhere(invalid)[0]
            lowest, highest = start[component], start[component] + n_values[component] - 1
            raise ValueError(f"{values[invalid][0]} is not one of the integers from {lowest} to {highest}")
        encoded = np.zeros((len(values), *self.shape), self.dtype)
        encoded[np.arange(len(values))[:, None], index + offset] = 1
        return encoded

    @cached_property
    def _one_hot_layout(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n_values = np.array(self.n_values, np.int64)
        return n_values, np.array(self.start or 0 * n_values, np.int64), np.cumsum(n_values) - n_values


def drop_team(obs: Mapping[str, Value]) -> dict[str, Value]:
    """Return the observations, or their specs, of an agent without those of its team."""
    return {name: value for name, value in obs.items() if not name.startswith(TEAM)}


def select_observed(obs_specs: Mapping[str, ObsSpec]) -> dict[str, ObsSpec]:
    """Return the observations that an agent's network reads: all but the action mask and those of its team."""
    return {name: spec for name, spec in drop_team(obs_specs).items() if name != ACTION_MASK}


def split_observation(obs: Any, names: Iterable[str]) -> Mapping[str, Any]:
    """Return the parts of an environment's observation by name.

    Args:
        obs: The observation.
        names: The keys of a Dict, the indices of a Tuple as text, or the one name of an observation without parts.

    Raises:
        ValueError: There are several names, but the observation has no parts.
    """
    if isinstance(obs, Mapping):
        return obs
    names = tuple(names)
    if isinstance(obs, tuple) and set(names) <= set(map(str, range(len(obs)))):
        return {str(index): part for index, part in enumerate(obs)}
    if len(names) != 1:
        raise ValueError(f"expected an observation with the parts {', '.join(names)}, got {type(obs).__name__}")
    return {names[0]: obs}


@dataclass(frozen=True)
class ActionPart:
    """A leaf of an environment's action space: an array of bounded numbers, or of integers."""

    key: str | int | None  # in a Dict, or the index in a Tuple; None if the space is this leaf
    shape: tuple[int, ...]
    dtype: str
    _: KW_ONLY
    low: tuple[float, ...] = ()  # of bounded numbers, flattened
    high: tuple[float, ...] = ()  # of bounded numbers, flattened
    n_values: tuple[int, ...] = ()  # of integers: the number of values of each, flattened
    start: tuple[int, ...] = ()  # of integers: the smallest value of each, flattened

    @property
    def size(self) -> int:
        """The number of its elements."""
        return prod(self.shape)

    def to_env_units(self, columns: np.ndarray) -> np.ndarray:
        """Return its columns [n, size] of an action in the environment's units, [n, *shape]."""
        dtype, low, high, start = self._conversion_arrays
        if self.n_values:
            values = columns.astype(dtype) + start
        else:
            fraction = 0.5 * columns.astype(np.float64)
            # This form reaches both bounds exactly, and does not overflow if the bounds are large.
            values = low * (0.5 - fraction) + high * (0.5 + fraction)
            values = np.minimum(np.maximum(values, low), high)
            values = (values if dtype.kind == "f" else np.rint(values)).astype(dtype)
        return values.reshape(len(columns), *self.shape)

    def from_env_units(self, values: Any) -> np.ndarray:
        """Return its columns [n, size] of an action, given the environment's values [n, *shape]."""
        dtype, low, high, start = self._conversion_arrays
        if self.n_values:
            return (np.asarray(values, dtype).reshape(-1, self.size) - start).astype(np.float32)
        columns = np.asarray(values, np.float64).reshape(-1, self.size)
        return np.clip(2 * (columns - low) / (high - low) - 1, -1, 1).astype(np.float32)

    @cached_property
    def _conversion_arrays(self) -> tuple[np.dtype, np.ndarray, np.ndarray, np.ndarray]:
        dtype = np.dtype(self.dtype)
        return dtype, np.array(self.low), np.array(self.high), np.array(self.start, dtype)

    def __str__(self) -> str:
        prefix = "" if self.key is None else f"{self.key}: "
        if self.n_values:
            return prefix + " x ".join(f"one of {count}" for count in self.n_values)
        return f"{prefix}{list(self.shape)} {self.dtype} from {min(self.low):g} to {max(self.high):g}"


@dataclass(frozen=True)
class ActionSpec:
    """An action: continuous dimensions in [-1, 1], followed by one index for each discrete branch.

    Raw actions and actions are float32 arrays [n, size] in this order.
    """

    continuous: int = 0  # number of continuous dimensions
    branches: tuple[int, ...] = ()  # number of actions of each discrete branch
    parts: tuple[ActionPart, ...] = ()  # leaves of the environment's action space, in its order; empty without units

    @classmethod
    def from_parts(cls, parts: Iterable[ActionPart]) -> ActionSpec:
        """Return the action that consists of these parts."""
        parts = tuple(parts)
        branches = tuple(count for part in parts for count in part.n_values)
        return cls(sum(part.size for part in parts if not part.n_values), branches, parts)

    @property
    def size(self) -> int:
        """The number of columns of a raw action or an action."""
        return self.continuous + len(self.branches)

    @property
    def encoded_size(self) -> int:
        """The number of columns of `encode`."""
        return self.continuous + sum(self.branches)

    def encode(self, action: np.ndarray) -> np.ndarray:
        """Return actions [n, size] with one-hot branches, [n, encoded_size] float32."""
        one_hot = [
            np.eye(n, dtype=np.float32)[action[:, self.continuous + b].astype(int)] for b, n in enumerate(self.branches)
        ]
        return np.concatenate((action[:, : self.continuous], *one_hot), -1)

    def sample(self, rng: np.random.Generator, n: int, mask: np.ndarray | None = None) -> np.ndarray:
        """Return uniformly random actions [n, size], of those that are 1 in `mask` [n, sum of branches], if any."""
        columns = [rng.uniform(-1, 1, (n, self.continuous))]
        mask = np.ones((n, sum(self.branches))) if mask is None else mask
        for allowed in np.split(mask > 0, np.cumsum(self.branches)[:-1], -1) if self.branches else ():
            preference = rng.random(allowed.shape) + allowed  # allowed actions come first; a row may allow none
            columns.append(preference.argmax(-1)[:, None])
        return np.concatenate(columns, -1).astype(np.float32)

    def to_env_units(self, action: np.ndarray) -> Any:
        """Return actions [n, size] in the environment's units, batched as in Gymnasium.

        Returns:
            An array [n, *shape] for a space of one part, otherwise a dict or a tuple of such arrays. Without parts
            int64 [n] for a single discrete branch, otherwise the actions as they are.
        """
        if not self.parts:
            single = self.size == len(self.branches) == 1
            return action[:, 0].astype(np.int64) if single else action
        values = [part.to_env_units(action[:, columns]) for part, columns in self._part_columns]
        keys = [part.key for part in self.parts]
        if keys[0] is None:
            return values[0]
        return tuple(values) if isinstance(keys[0], int) else dict(zip(keys, values, strict=True))

    def from_env_units(self, values: Any) -> np.ndarray:
        """Return actions [n, size], given the environment's, batched as `to_env_units` returns them."""
        if not self.parts:
            return np.asarray(values, np.float32).reshape(-1, self.size)
        columns: dict[str, list[np.ndarray]] = {"continuous": [], "branches": []}
        for part in self.parts:
            value = values if part.key is None else values[part.key]
            columns["branches" if part.n_values else "continuous"].append(part.from_env_units(value))
        return np.concatenate([*columns["continuous"], *columns["branches"]], -1)

    @cached_property
    def _part_columns(self) -> list[tuple[ActionPart, slice]]:
        columns, ends = [], {"continuous": 0, "branches": self.continuous}
        for part in self.parts:
            kind = "branches" if part.n_values else "continuous"
            columns.append((part, slice(ends[kind], ends[kind] + part.size)))
            ends[kind] += part.size
        return columns

    def flatten_mask(self, env_mask: Any) -> np.ndarray:
        """Return the environment's mask of one lane with all branches concatenated, [sum of branches] uint8.

        Args:
            env_mask: A flat mask, or one array for each branch; None allows all actions.

        Raises:
            ValueError: The lengths differ from the sizes of the branches.
        """
        if env_mask is None:
            return np.ones(sum(self.branches), np.uint8)
        parts = [np.ravel(part) for part in env_mask] if isinstance(env_mask, (tuple, list)) else [np.ravel(env_mask)]
        sizes = [part.size for part in parts]
        is_flat = sum(sizes) == sum(self.branches) and (len(parts) == 1 or max(sizes) == 1)
        if not is_flat and sizes != list(self.branches):
            raise ValueError(
                f"the mask has {_join_sizes(sizes)} numbers, but the branches have {_join_sizes(self.branches)} actions"
            )
        return (np.concatenate(parts) > 0).astype(np.uint8)

    def __str__(self) -> str:
        if self.parts:
            return "; ".join(map(str, self.parts))
        parts = [f"{self.continuous} numbers from -1 to 1"] * bool(self.continuous)
        return "; ".join([*parts, *(f"one of {count}" for count in self.branches)])


def _join_sizes(sizes: Iterable[int]) -> str:
    return " and ".join(map(str, sizes)) or "none"


@dataclass(frozen=True)
class Role:
    """A kind of agent in a simulator."""

    lanes: int  # number of lanes so far
    obs_specs: Mapping[str, ObsSpec]  # of one lane
    action_spec: ActionSpec
    _: KW_ONLY
    # The team of each lane if several teams share the agent; metrics and goals are per team.
    teams: tuple[str, ...] = ()

    def with_lanes(self, lanes: int) -> Role:
        """Return the role with its first `lanes` lanes only."""
        return replace(self, lanes=lanes, teams=self.teams[:lanes])

    def count_lanes_by_team(self, name: str) -> dict[str, int]:
        """Return the number of lanes of each team; without teams, the number of all lanes by the role's `name`."""
        return dict(Counter(self.teams)) if self.teams else {name: self.lanes}

    def find_team(self, lane: int) -> str | None:
        """Return the team of a lane; None without teams."""
        return self.teams[lane] if self.teams else None
