"""Storage: the last rows of every lane, one lane after the other, in plain arrays that are allocated once."""

from __future__ import annotations

from typing import Any

import numpy as np

from algorithm.replay.storage import IN_MEMORY, Allocator
from algorithm.rollout import Rollout

Arrays = dict[str, np.ndarray]
RING_ARRAYS = ("head", "unbroken_rows", "chunk")  # of the ring, beside what it stores
# Bytes of a row from which windows are copied one by one, which reads the memory in order: half the time of numpy's
# take at 7 kB, 3/4 at 28 kB; the same at 400 bytes (benchmarks/replay.py).
WIDE_ROW_BYTES = 2048
# Rows that a lane may write in its life: the number of a row is that of its lane times this, plus the row.
MAX_ROWS_PER_LANE = 1 << 40
ROW_FIELDS = ("raw_action", "reward", "alive", "behavior")  # T rows of a column; `obs` and `first` have one more


class Ring:
    """`rows` rows for each of `lanes` lanes, filled by columns of `chunk` rows and read by windows.

    The row behind the newest one holds its successor's observation, which the lane's next column overwrites with the
    same numbers. Memory and version are kept once per column, at its row 0. Nothing stored is ever rewritten.
    """

    def __init__(self, rows: int, lanes: int, chunk: int, allocate: Allocator = IN_MEMORY):
        self.rows = rows // chunk * chunk  # so that columns start at multiples of `chunk`
        self.lanes = lanes
        self.chunk = chunk
        self.allocate = allocate
        self.head = np.zeros(lanes, np.int64)  # rows ever written
        # For each row, how many rows before it are its predecessors without a break.
        self.unbroken_rows = np.zeros((lanes, self.rows), np.int64)
        self.arrays: Arrays = {}  # [lanes, rows, ...]

    def grow(self, lanes: int) -> None:
        """Add empty lanes of as many rows, up to `lanes` lanes. Existing lanes keep their contents."""
        arrays = {name: self._with_lanes(lanes, array, self.allocate) for name, array in self.arrays.items()}
        self.unbroken_rows = self._with_lanes(lanes, self.unbroken_rows, IN_MEMORY)
        self.arrays = arrays
        self.head = np.pad(self.head, (0, lanes - self.lanes))
        self.lanes = lanes

    @property
    def n_readable(self) -> np.ndarray:
        """[lanes] rows that can be read; one is kept free for the successor of the newest."""
        return np.minimum(self.head, self.rows - 1)

    def write(self, rollout: Rollout) -> None:
        """Append each column to its lane."""
        if not self.arrays:
            self._allocate(rollout)
        for columns in rollout.iterate_lane_batches():
            self._write_columns(rollout, columns)

    def read(self, lane: np.ndarray, start: np.ndarray, length: int, warmup_rows: int = 0) -> Rollout:
        """Windows of `length` rows and one more observation, from row `start` of each `lane`: [length, B].

        Their memory is that of row `start + lead`.
        """
        rows = (start + np.arange(length + 1)[:, None]) % self.rows + lane * self.rows
        gathered: dict[str, Any] = {
            name: self._gather(array, rows if self._has_successor(name) else rows[:-1])
            for name, array in self.arrays.items()
            if name not in ("memory", "version")
        }
        columns = ((start + warmup_rows) % self.rows + lane * self.rows) // self.chunk
        batch = len(lane)
        return Rollout(
            obs={name[4:]: gathered.pop(name) for name in list(gathered) if name.startswith("obs/")},
            **gathered,
            memory=self._gather(self.arrays["memory"], columns),
            version=self._gather(self.arrays["version"], columns),
            lane=lane,
            continues_previous=np.zeros(batch, bool),
            weight=np.ones(batch, np.float32),
            index=self.make_index(lane, start),
        )

    def is_unbroken(self, lane: np.ndarray, start: np.ndarray, length: int) -> np.ndarray:
        """Which windows have no break between their rows."""
        return self.unbroken_rows[lane, (start + length) % self.rows] >= length

    def valid(self, lane: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Which rows [..., n] of lanes [n] may be learned from, as `Rollout.valid`; of rows that are stored."""
        first, alive = self.arrays["first"], self.arrays["alive"]
        return ~(first[lane, (row + 1) % self.rows] & alive[lane, row % self.rows])

    @staticmethod
    def make_index(lane: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Return a number for each row of a lane, which no other row ever has and which stays when lanes are added."""
        return lane * MAX_ROWS_PER_LANE + row

    @staticmethod
    def find_row(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the lanes and rows that have these numbers."""
        return np.divmod(index, MAX_ROWS_PER_LANE)

    def state(self) -> Arrays:
        """Everything stored, as named arrays."""
        return {"head": self.head, "unbroken_rows": self.unbroken_rows, "chunk": np.array(self.chunk), **self.arrays}

    def restore(self, state: Arrays) -> None:
        """Take over what `state` gave. Raises ValueError where it was another size of ring."""
        saved, current = (*state["unbroken_rows"].shape, int(state["chunk"])), (self.lanes, self.rows, self.chunk)
        if saved != current:
            raise ValueError(f"the saved replay has {saved} lanes, rows and rows of a column; this one has {current}")
        self.head, self.unbroken_rows = state["head"].copy(), state["unbroken_rows"].copy()
        self.arrays = {name: self._copy(value) for name, value in state.items() if name not in RING_ARRAYS}

    def _allocate(self, rollout: Rollout) -> None:
        columns = self.rows // self.chunk
        for name, value in _fields(rollout).items():
            self.arrays[name] = self.allocate((self.lanes, self.rows, *value.shape[2:]), value.dtype)
        state = rollout.memory.shape[1:]
        self.arrays["memory"] = self.allocate((self.lanes, columns, *state), np.dtype(np.float32))
        self.arrays["version"] = np.zeros((self.lanes, columns), np.int64)

    def _with_lanes(self, lanes: int, array: np.ndarray, allocate: Allocator) -> np.ndarray:
        """Return a copy of `array` with more lanes. Rows that were never written are left out and take no memory."""
        grown = allocate((lanes, *array.shape[1:]), array.dtype)
        written = min(int(self.head.max()) + 1, self.rows)  # rows of the fullest lane
        n_written = -(-written * array.shape[1] // self.rows)  # as many of the array, which may hold a value per column
        grown[: self.lanes, :n_written] = array[:, :n_written]
        return grown

    def _copy(self, saved: np.ndarray) -> np.ndarray:
        copy = self.allocate(saved.shape, saved.dtype)
        copy[:] = saved
        return copy

    def _write_columns(self, rollout: Rollout, columns: np.ndarray) -> None:
        lane = rollout.lane[columns]
        start = self.head[lane]
        rows = (start + np.arange(self.chunk + 1)[:, None]) % self.rows
        for name, value in _fields(rollout).items():
            self.arrays[name][lane, rows[: len(value)]] = value[:, columns]
        self.arrays["memory"][lane, rows[0] // self.chunk] = rollout.memory[columns]
        self.arrays["version"][lane, rows[0] // self.chunk] = rollout.version[columns]
        before = np.where(rollout.continues_previous[columns], self.unbroken_rows[lane, rows[0]], 0)
        self.unbroken_rows[lane, rows] = before + np.arange(self.chunk + 1)[:, None]
        self.head[lane] = start + self.chunk

    @staticmethod
    def _gather(array: np.ndarray, index: np.ndarray) -> np.ndarray:
        """What stands at `index` [...], counted over lanes and rows; of wide rows it is [T, B], a window a column."""
        flat = array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])
        if flat[0].nbytes < WIDE_ROW_BYTES or index.ndim == 1:
            return flat.take(index, axis=0)
        gathered = np.empty((*index.shape, *flat.shape[1:]), flat.dtype)
        for sequence, rows in enumerate(index.T):
            before = int(rows.argmax()) + 1  # rows before the ring begins anew, none after where it does not
            after = len(rows) - before
            gathered[:before, sequence] = flat[rows[0] : rows[0] + before]
            gathered[before:, sequence] = flat[rows[-1] + 1 - after : rows[-1] + 1]
        return gathered

    @staticmethod
    def _has_successor(name: str) -> bool:
        return name == "first" or name.startswith("obs/")


def _fields(rollout: Rollout) -> Arrays:
    """What is stored for each row, by the names of the arrays."""
    obs = {f"obs/{name}": value for name, value in rollout.obs.items()}
    return {**obs, "first": rollout.first, **{name: getattr(rollout, name) for name in ROW_FIELDS}}
