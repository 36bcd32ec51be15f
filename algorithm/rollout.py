"""The records that travel: what a simulator shows, what an agent decides, what is learned from.

Arrays are numpy until a learner uploads a Rollout; afterwards the same record holds tensors.
T is rows, B columns (stretches of one lane each), n the lanes that are present in a tick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = Any  # numpy.ndarray, or torch.Tensor after the upload


@dataclass(slots=True)
class Step:
    """One tick of one role: the lanes that await a decision or show a final row.

    `first` marks a real start of an episode. A `final` row is only shown: it is acted on so that its statistics
    are finite, but nothing is executed and no counter moves. `reward` and `alive` are the consequence for each
    lane's previous row; `alive` is False only at true termination.
    """

    lane: np.ndarray  # [n] int64, ascending
    obs: Mapping[str, np.ndarray]  # {name: [n, ...]}
    first: np.ndarray  # [n] bool
    is_bootstrap_row: np.ndarray  # [n] bool
    reward: np.ndarray  # [n] float32
    alive: np.ndarray  # [n] bool

    def to_arrays(self) -> dict[str, np.ndarray]:
        """All of it as named arrays."""
        fields = {name: getattr(self, name) for name in ("lane", "first", "is_bootstrap_row", "reward", "alive")}
        return {**fields, **{f"obs/{name}": value for name, value in self.obs.items()}}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Step:
        """The Step that gave `arrays`."""
        fields = {name: value for name, value in arrays.items() if not name.startswith("obs/")}
        return cls(obs={name[4:]: value for name, value in arrays.items() if name not in fields}, **fields)

    def select_memory(self, memory: np.ndarray) -> np.ndarray:
        """The memory [n, M] of these lanes out of that of all [lanes, M]; zero where an episode starts."""
        selected = memory[self.lane]
        if selected.size:
            selected[self.first] = 0
        return selected

    def take(self, rows: np.ndarray) -> Step:
        """The part of these rows [n] bool."""
        obs = {name: value[rows] for name, value in self.obs.items()}
        return Step(
            self.lane[rows], obs, self.first[rows], self.is_bootstrap_row[rows], self.reward[rows], self.alive[rows]
        )


@dataclass(slots=True)
class Decision:
    """What an agent decided for the lanes of a Step.

    `sample` is what the density is of and what is stored; `action` is the only thing an adapter sees; `behavior`
    holds the statistics that were sampled from, so that ratios and divergences can follow later.
    """

    raw_action: np.ndarray  # [n, size] float32
    action: np.ndarray  # [n, size] float32
    behavior: np.ndarray  # [n, S] float32
    memory: np.ndarray  # [n, M] float32

    def take(self, rows: np.ndarray) -> Decision:
        """The part of these rows [n] bool."""
        return Decision(self.raw_action[rows], self.action[rows], self.behavior[rows], self.memory[rows])


@dataclass(slots=True)
class Rollout:
    """T rows of B columns, time-major, with the observation that follows the last row.

    `reward[t]` and `alive[t]` are the consequence of the action taken on `obs[t]`. `joined` tells that row 0
    follows the last row this lane handed in. `burn_in` rows stand in front, to be run without gradient. Of the memory a
    replay keeps what no rows can rebuild, before the row where the others are rebuilt.
    """

    obs: Mapping[str, Array]  # {name: [T+1, B, ...]}
    first: Array  # [T+1, B] bool
    raw_action: Array  # [T, B, size]
    reward: Array  # [T, B]
    alive: Array  # [T, B] bool
    behavior: Array  # [T, B, S]
    memory: Array  # [B, M] before row 0, or what a replay keeps of it
    lane: np.ndarray  # [B]
    continues_previous: np.ndarray  # [B] bool
    weight: Array  # [B] importance of each column in the loss
    index: np.ndarray  # [B] where the replay keeps it, -1 for a fresh rollout
    version: np.ndarray  # [B] updates the acting parameters had seen
    burn_in: int = 0

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def valid(self) -> Array:
        """[T, B] rows whose successor is in the record, or is not needed: everything that may be learned from."""
        return ~(self.first[1:] & self.alive)

    @property
    def same_episode(self) -> Array:
        """[T, B] rows t and t+1 belong to one episode; masks whatever looks at a pair of rows."""
        return ~self.first[1:]

    def iterate_lane_batches(self) -> Iterator[np.ndarray]:
        """Columns [k] of different lanes at a time; those of one lane come in their order of time."""
        remaining = np.arange(len(self.lane))
        while len(remaining):
            _, first_of_lane = np.unique(self.lane[remaining], return_index=True)
            yield remaining[first_of_lane]
            remaining = np.delete(remaining, first_of_lane)

    def drop_burn_in(self) -> Rollout:
        """The rows that are learned from, without those in front."""
        if not self.burn_in:
            return self
        rows = slice(self.burn_in, None)
        return replace(
            self,
            obs={name: value[rows] for name, value in self.obs.items()},
            **{name: getattr(self, name)[rows] for name in ("first", "raw_action", "reward", "alive", "behavior")},
            burn_in=0,
        )

    def convert(self, convert_array: Callable[[Array], Array]) -> Rollout:
        """The same record with `upload` applied to every array that a loss reads."""
        return Rollout(
            {name: convert_array(value) for name, value in self.obs.items()},
            convert_array(self.first),
            convert_array(self.raw_action),
            convert_array(self.reward),
            convert_array(self.alive),
            convert_array(self.behavior),
            convert_array(self.memory),
            self.lane,
            self.continues_previous,
            convert_array(self.weight),
            self.index,
            self.version,
            self.burn_in,
        )
