"""What a simulator offers: observations, actions, and the roles that agents play in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

DEFAULT_ROLE = "agent"  # the role in a simulator that names none
# The observation that tells which actions are allowed (1), those of all branches side by side; no network reads it.
ACTION_MASK = "action_mask"


def role_suffix(role: str) -> str:
    """` of <role>` for a sentence; nothing where the simulator names no roles."""
    return "" if role == DEFAULT_ROLE else f" of {role}"


@dataclass(frozen=True)
class ObsSpec:
    """One observation of one lane: its shape without the lane axis, and its dtype as numpy names it.

    `own` is the shape of the environment's own value where that is another one. Whole numbers are shown one-hot, side
    by side: `counts` says how many values each takes, `start` which is the first. An image is [channels, rows,
    columns]; `high` is the largest value that a byte of it takes, by which encoders of images divide.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    env_shape: tuple[int, ...] | None = None
    n_values: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    high: float = 1.0

    @property
    def effective_env_shape(self) -> tuple[int, ...]:
        """The shape of the environment's own value."""
        return self.shape if self.env_shape is None else self.env_shape

    def encode(self, env_values: Any) -> np.ndarray:
        """The environment's own values [n, *own_shape] as they are observed, [n, *shape].

        Raises ValueError for a number that none of `counts` has.
        """
        if self.n_values:
            return self._one_hot(np.asarray(env_values, np.int64).reshape(-1, len(self.n_values)))
        values = np.asarray(env_values, self.dtype)
        if self.env_shape is None:
            return values
        if len(self.env_shape) == len(self.shape) == 3:  # an image whose channels come last; a view of it
            return values.transpose(0, 3, 1, 2)
        return values.reshape(-1, *self.shape)

    def _one_hot(self, values: np.ndarray) -> np.ndarray:
        n_values, start, offset = self._one_hot_layout
        index = values - start
        invalid = (index < 0) | (index >= n_values)
        if invalid.any():
            _, component = np.argwhere(invalid)[0]
            lowest, highest = start[component], start[component] + n_values[component] - 1
            raise ValueError(f"{values[invalid][0]} is not one of the whole numbers from {lowest} to {highest}")
        encoded = np.zeros((len(values), *self.shape), self.dtype)
        encoded[np.arange(len(values))[:, None], index + offset] = 1
        return encoded

    @cached_property
    def _one_hot_layout(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n_values = np.array(self.n_values, np.int64)
        return n_values, np.array(self.start or 0 * n_values, np.int64), np.cumsum(n_values) - n_values


def split_observation(obs: Any, names: Iterable[str]) -> Mapping[str, Any]:
    """An environment's own observation by the names of its parts: those of a Dict, places in a Tuple, or one for all.

    Raises ValueError where there are several names and the observation tells no parts.
    """
    if isinstance(obs, Mapping):
        return obs
    names = tuple(names)
    if isinstance(obs, tuple) and set(names) <= set(map(str, range(len(obs)))):
        return {str(index): part for index, part in enumerate(obs)}
    if len(names) != 1:
        raise ValueError(f"an observation has the parts {', '.join(names)}; this one is {type(obs).__name__}")
    return {names[0]: obs}


@dataclass(frozen=True)
class ActionPart:
    """A leaf of an environment's own action space, of `shape` and `dtype`.

    `key` is its name in a Dict, its place in a Tuple, None where it is all there is. Its numbers, flattened, lie either
    between `low` and `high`, or take one of `counts` values each, from `start` on.
    """

    key: str | int | None
    shape: tuple[int, ...]
    dtype: str
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    n_values: tuple[int, ...] = ()
    start: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)

    def to_env_units(self, columns: np.ndarray) -> np.ndarray:
        """Its columns [n, size] of an action in the environment's own units, [n, *shape]."""
        dtype, low, high, start = self._conversion_arrays
        if self.n_values:
            values = columns.astype(dtype) + start
        else:
            fraction = 0.5 * columns.astype(np.float64)
            # Both ends are met exactly, and no difference of large bounds overflows.
            values = low * (0.5 - fraction) + high * (0.5 + fraction)
            values = np.minimum(np.maximum(values, low), high)
            values = (values if dtype.kind == "f" else np.rint(values)).astype(dtype)
        return values.reshape(len(columns), *self.shape)

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
    """An action: `continuous` numbers in [-1, 1] followed by one index for each discrete branch.

    Samples and actions travel as one float32 array [n, size] in this order. `parts` are the leaves of the environment's
    own action space in its own order; there are none where a simulator has no units of its own.
    """

    continuous: int = 0
    branches: tuple[int, ...] = ()
    parts: tuple[ActionPart, ...] = ()

    @classmethod
    def from_parts(cls, parts: Iterable[ActionPart]) -> ActionSpec:
        """All that these parts take together."""
        parts = tuple(parts)
        branches = tuple(count for part in parts for count in part.n_values)
        return cls(sum(part.size for part in parts if not part.n_values), branches, parts)

    @property
    def size(self) -> int:
        """Columns of a sample or an action."""
        return self.continuous + len(self.branches)

    @property
    def encoded_size(self) -> int:
        """Columns of `encode`."""
        return self.continuous + sum(self.branches)

    def encode(self, action: np.ndarray) -> np.ndarray:
        """An action [n, size] as a network reads it, [n, encoded] float32: every branch is one-hot."""
        one_hot = [
            np.eye(n, dtype=np.float32)[action[:, self.continuous + b].astype(int)] for b, n in enumerate(self.branches)
        ]
        return np.concatenate((action[:, : self.continuous], *one_hot), -1)

    def to_env_units(self, action: np.ndarray) -> Any:
        """An action [n, size] in the environment's own units, as Gymnasium batches it.

        An array [n, *shape] for a space of one part, otherwise a dict or a tuple of such. Without parts: int64 [n] for
        a single branch, or else the action itself.
        """
        if not self.parts:
            single = self.size == len(self.branches) == 1
            return action[:, 0].astype(np.int64) if single else action
        values = [part.to_env_units(action[:, columns]) for part, columns in self._part_columns]
        keys = [part.key for part in self.parts]
        if keys[0] is None:
            return values[0]
        return tuple(values) if isinstance(keys[0], int) else dict(zip(keys, values, strict=True))

    @cached_property
    def _part_columns(self) -> list[tuple[ActionPart, slice]]:
        return list(zip(self.parts, self._part_slices(), strict=True))

    def _part_slices(self) -> Iterator[slice]:
        next_continuous, next_branch = 0, self.continuous
        for part in self.parts:
            begin = next_branch if part.n_values else next_continuous
            yield slice(begin, begin + part.size)
            next_continuous, next_branch = (
                (next_continuous, next_branch + part.size)
                if part.n_values
                else (next_continuous + part.size, next_branch)
            )

    def flatten_mask(self, env_mask: Any) -> np.ndarray:
        """The environment's own mask for one lane as all branches side by side, [sum of branches] uint8.

        It is flat, or has one array for each branch; None allows everything. Raises ValueError for any other length.
        """
        if env_mask is None:
            return np.ones(sum(self.branches), np.uint8)
        parts = [np.ravel(part) for part in env_mask] if isinstance(env_mask, (tuple, list)) else [np.ravel(env_mask)]
        sizes = [part.size for part in parts]
        is_flat = sum(sizes) == sum(self.branches) and (len(parts) == 1 or max(sizes) == 1)
        if not is_flat and sizes != list(self.branches):
            raise ValueError(
                f"the mask has {_join_sizes(sizes)} numbers where the discrete actions are {_join_sizes(self.branches)}"
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
    """A kind of agent in a simulator: how many lanes it has by now, what each observes and what it may do.

    `teams` names the team of each lane where those of a game share the agent. Metrics and goals are the teams'.
    """

    lanes: int
    obs_specs: Mapping[str, ObsSpec]
    action_spec: ActionSpec
    teams: tuple[str, ...] = ()

    def with_lanes(self, lanes: int) -> Role:
        """Return the role with its first `lanes` lanes only."""
        return replace(self, lanes=lanes, teams=self.teams[:lanes])

    def count_lanes_by_team(self, name: str) -> dict[str, int]:
        """Return the number of lanes of each team; without teams, all are those of the role, whose name is `name`."""
        return dict(Counter(self.teams)) if self.teams else {name: self.lanes}

    def find_team(self, lane: int) -> str | None:
        """Return the team of a lane; None without teams."""
        return self.teams[lane] if self.teams else None
