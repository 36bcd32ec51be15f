"""The records that pass between simulators, agents and learners: Step, Decision, Rollout.

A *lane* is the slot of one agent in a simulator; its number stays the same, episode after episode. A *row* is one time
step of a lane. Arrays are numpy until a learner uploads a Rollout; afterwards the same record holds tensors. T is the
number of rows, B the number of columns (each a sequence of one lane), n the number of lanes in a tick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

COLLECTED, DEMONSTRATED = -1, -2  # in `Rollout.index`: rows that are not from the replay
TD_ERROR = "td_error"  # in `Rollout.records`: the absolute TD error of each row, 0 in rows that are not valid
Array = Any  # numpy.ndarray, or torch.Tensor after the upload
# The fields of a Rollout with a value for each row, the mappings of such arrays, and the fields with a value for each
# column, except `memory`, which is an array for each column.
ROW_FIELDS = ("first", "raw_action", "reward", "alive", "behavior")
MAPPINGS_OF_ROWS = ("obs", "bonuses", "records", "targets")
COLUMN_FIELDS = ("lane", "continues_previous", "weight", "index", "version")


@dataclass(slots=True, kw_only=True)
class Step:
    """One tick of one role: the lanes that need a decision or have a bootstrap row.

    `reward` and `alive` are the consequence of the action at each lane's previous row.
    """

    lane: np.ndarray  # [n] int64, ascending
    obs: Mapping[str, np.ndarray]  # {name: [n, ...]}
    first: np.ndarray  # [n] bool: the first row of an episode
    # [n] bool: the last observation of a truncated episode. The agent computes an action for it, so that its statistics
    # are finite, but the action is not executed and no counter counts it.
    is_bootstrap_row: np.ndarray
    reward: np.ndarray  # [n] float32
    # [n] bool: False after a termination, or where an episode continues whose further rewards must not count: after the
    # loss of a life in a game.
    alive: np.ndarray
    group: np.ndarray | None = None  # [n] int64: agents with the same number are a team; None if there are no teams

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays by name; the arrays of `obs` have the prefix `obs/`."""
        names = ("lane", "first", "is_bootstrap_row", "reward", "alive", "group")
        fields = {name: array for name in names if (array := getattr(self, name)) is not None}
        return {**fields, **{f"obs/{name}": value for name, value in self.obs.items()}}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Step:
        """Return the Step whose `to_arrays` returned `arrays`."""
        fields = {name: value for name, value in arrays.items() if not name.startswith("obs/")}
        return cls(obs={name[4:]: value for name, value in arrays.items() if name not in fields}, **fields)

    def select_memory(self, memory: np.ndarray) -> np.ndarray:
        """Return the memory [n, M] of this step's lanes, 0 at the start of an episode; `memory`: [lanes, M]."""
        selected = memory[self.lane]
        if selected.size:
            selected[self.first] = 0
        return selected

    def take(self, rows: np.ndarray) -> Step:
        """Return the part with these rows, [n] bool."""
        return Step.from_arrays({name: value[rows] for name, value in self.to_arrays().items()})


def merge_steps(steps: Sequence[Step]) -> Step:
    """Return the rows of several Steps of one role as one Step, in the order of their lanes."""
    if len(steps) == 1:
        return steps[0]
    parts = [step.to_arrays() for step in steps]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if (np.diff(arrays["lane"]) < 0).any():
        order = np.argsort(arrays["lane"])
        arrays = {name: value[order] for name, value in arrays.items()}
    return Step.from_arrays(arrays)


@dataclass(slots=True, kw_only=True)
class Decision:
    """The decision of an agent for the lanes of a Step."""

    raw_action: np.ndarray  # [n, size] float32: the sample of the policy's density, which is stored
    action: np.ndarray  # [n, size] float32: what an adapter executes
    behavior: np.ndarray  # [n, S] float32: the statistics sampled from, for ratios and divergences
    memory: np.ndarray  # [n, M] float32: after this row

    def take(self, rows: np.ndarray) -> Decision:
        """Return the part with these rows, [n] bool."""
        return Decision(**{one.name: getattr(self, one.name)[rows] for one in fields(self)})


@dataclass(slots=True, kw_only=True)
class Rollout:
    """T rows of B columns, time-major, with the observation after the last row.

    `reward[t]` and `alive[t]` are the consequence of the action at `obs[t]`.
    """

    obs: Mapping[str, Array]  # {name: [T+1, B, ...]}
    first: Array  # [T+1, B] bool
    raw_action: Array  # [T, B, size]
    reward: Array  # [T, B]
    alive: Array  # [T, B] bool
    behavior: Array  # [T, B, S]
    memory: Array  # [B, M] before row 0; from a replay the stored part, before the row that ends the warm-up
    lane: np.ndarray  # [B]
    continues_previous: np.ndarray  # [B] bool: row 0 follows the last row of the lane's previous rollout
    weight: Array  # [B] weight of each column in the loss
    index: np.ndarray  # [B] position in the replay, or COLLECTED, or DEMONSTRATED
    version: np.ndarray  # [B] number of updates of the parameters that acted
    burn_in: int = 0  # first rows, which only update the memory, without gradient
    # {name of an auxiliary: [T, B]}: the rewards of `Agent.streams`, which are not part of `reward`. Burn-in rows have
    # any value. Like `reward[t]`, the consequence of the action at `obs[t]`.
    bonuses: Mapping[str, Array] = field(default_factory=dict)
    # {name: [T, B]}: what auxiliaries computed when the rollout was collected, by their names; and `TD_ERROR`.
    records: Mapping[str, Array] = field(default_factory=dict)
    # {name: [T, B]}: what `Agent.prepare` computed. In a prepared rollout `reward` is transformed. Without auxiliaries,
    # `obs` has T rows in it.
    targets: Mapping[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def valid(self) -> Array:
        """[T, B] bool: rows whose successor is in the record or not needed, the only rows that are learned from."""
        return ~(self.first[1:] & self.alive)

    @property
    def same_episode(self) -> Array:
        """[T, B] bool: rows t and t+1 belong to one episode. It masks terms that read a pair of rows."""
        return ~self.first[1:]

    def iterate_lane_batches(self) -> Iterator[np.ndarray]:
        """Yield indices [k] of columns of different lanes; the columns of one lane are yielded in order of time."""
        remaining = np.arange(len(self.lane))
        while len(remaining):
            _, first_of_lane = np.unique(self.lane[remaining], return_index=True)
            yield remaining[first_of_lane]
            remaining = np.delete(remaining, first_of_lane)

    def drop_burn_in(self) -> Rollout:
        """Return the rows after the burn-in."""
        if not self.burn_in:
            return self
        return self._change(lambda value: value[self.burn_in :], burn_in=0)

    def split_rows(self) -> Rollout:
        """Return a prepared rollout, of a network without memory, as T * B columns of one row each."""
        rows, columns = self.reward.shape

        def split(value: Array) -> Array:
            """Return [T, B, ...] as [1, T * B, ...], and [T+1, B, ...] as [2, T * B, ...]: row 1 has the successors."""
            starts = [value] if len(value) == rows else [value[:-1], value[1:]]
            return np.stack([start.reshape(-1, *start.shape[2:]) for start in starts])

        of_columns = {name: np.tile(getattr(self, name), rows) for name in COLUMN_FIELDS}
        return self._change(split, memory=np.zeros((rows * columns, 0), np.float32), **of_columns)

    def take_columns(self, columns: np.ndarray) -> Rollout:
        """Return the part with these columns (indices [k])."""
        of_columns = {name: getattr(self, name)[columns] for name in COLUMN_FIELDS}
        return self._change(lambda value: value[:, columns], memory=self.memory[columns], **of_columns)

    @classmethod
    def join_columns(cls, rollouts: Sequence[Rollout]) -> Rollout:
        """Return the columns of several rollouts of T rows as one rollout, in the given order.

        Records that only the first has are 0 in the others.
        """
        if len(rollouts) == 1:
            return rollouts[0]
        axes = {**dict.fromkeys(ROW_FIELDS, 1), **dict.fromkeys(("memory", *COLUMN_FIELDS), 0)}
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in rollouts], axis) for name, axis in axes.items()
        }
        for mapping in ("obs", "records"):  # a part may have no records
            parts = [getattr(part, mapping) for part in rollouts]
            joined[mapping] = {
                name: np.concatenate(
                    [each.get(name, np.zeros_like(part.reward)) for each, part in zip(parts, rollouts, strict=True)], 1
                )
                for name in parts[0]
            }
        return cls(burn_in=rollouts[0].burn_in, **joined)

    def convert(self, convert_array: Callable[[Array], Array]) -> Rollout:
        """Return the same record with `convert_array` applied to every array that a loss reads."""
        return self._change(convert_array, memory=convert_array(self.memory), weight=convert_array(self.weight))

    def _change(self, change: Callable[[Array], Array], **others: Any) -> Rollout:
        """Return the record with `change` applied to every array [T, ...] or [T+1, ...], and with `others`."""
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in ROW_FIELDS}
        for name in MAPPINGS_OF_ROWS:
            changed[name] = {key: change(value) for key, value in getattr(self, name).items()}
        return replace(self, **changed, **others)
