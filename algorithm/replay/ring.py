"""The ring buffer: the last rows of every lane in arrays that are allocated once, in memory or in files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.rollout import ROW_FIELDS, Rollout

Arrays = dict[str, np.ndarray]
Allocator = Callable[[tuple[int, ...], np.dtype], np.ndarray]  # returns zeros of this shape and dtype
RING_ARRAYS = ("head", "unbroken_rows", "chunk")  # saved arrays of the ring itself; the others are stored rows
# Bytes of a row from which sequences are copied one by one. Reading then reads the memory in order: half the time of
# numpy's take at 7 kB, 3/4 at 28 kB, the same time at 400 bytes. Writing then copies columns without a temporary array
# (benchmarks/replay.py).
WIDE_ROW_BYTES = 2048
# Limit of the rows that a lane writes during a run: the index of a row is its lane times this limit, plus the row.
MAX_ROWS_PER_LANE = 1 << 40
IN_MEMORY: Allocator = np.zeros


def make_file_allocator(folder: Path) -> Allocator:
    """Return an allocator that maps each array to a separate file in `folder`.

    The files have no name: no other process can open them, and the system deletes them with the arrays, however the
    process ends. Disk space is used as rows are written.
    """

    def allocate(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if not prod(shape):
            return np.zeros(shape, dtype)  # an empty file cannot be mapped
        with tempfile.TemporaryFile(dir=folder) as file:
            return np.asarray(np.memmap(file, dtype, "w+", shape=shape))  # the mapping keeps the file

    return allocate


class Ring:
    """A ring buffer of rows for each lane, written by columns of `chunk` rows and read by sequences of any length.

    The row after the newest one holds the observation that follows it; the lane's next column overwrites it with the
    same values. The agent's memory and version are stored once per column, for its first row. Other stored values do
    not change until newer rows overwrite them.

    A break is a row that does not continue the row before it, at the start of a column.

    Args:
        rows: Rows per lane, rounded down to a multiple of `chunk`.
        lanes: Number of lanes.
        chunk: Rows of a column.
        allocate: Allocates the arrays of the rows.
    """

    def __init__(self, rows: int, lanes: int, chunk: int, allocate: Allocator = IN_MEMORY):
        self.rows = rows // chunk * chunk  # columns start at multiples of `chunk`
        self.lanes = lanes
        self.chunk = chunk
        self.allocate = allocate
        self.head = np.zeros(lanes, np.int64)  # rows of each lane written so far
        # The number of rows before each row back to the last break.
        self.unbroken_rows = np.zeros((lanes, self.rows), np.int64)
        self.arrays: Arrays = {}  # [lanes, rows, ...]

    def grow(self, lanes: int) -> None:
        """Add empty lanes with the same number of rows, up to `lanes` lanes. Existing lanes keep their contents."""
        arrays = {name: self._with_lanes(lanes, array, self.allocate) for name, array in self.arrays.items()}
        self.unbroken_rows = self._with_lanes(lanes, self.unbroken_rows, IN_MEMORY)
        self.arrays = arrays
        self.head = np.pad(self.head, (0, lanes - self.lanes))
        self.lanes = lanes

    @property
    def n_readable(self) -> np.ndarray:
        """Readable rows of each lane [lanes]; one row is reserved for the successor of the newest."""
        return np.minimum(self.head, self.rows - 1)

    def write(self, rollout: Rollout) -> None:
        """Append each column to its lane."""
        fields = {f"obs/{name}": value for name, value in rollout.obs.items()}
        fields |= {name: getattr(rollout, name) for name in ROW_FIELDS}
        fields |= {f"records/{name}": value for name, value in rollout.records.items()}
        if not self.arrays:
            for name, value in fields.items():
                self.arrays[name] = self.allocate((self.lanes, self.rows, *value.shape[2:]), value.dtype)
            shape = (self.lanes, self.rows // self.chunk)
            self.arrays["memory"] = self.allocate((*shape, *rollout.memory.shape[1:]), np.dtype(np.float32))
            self.arrays["version"] = np.zeros(shape, np.int64)
        for columns in rollout.iterate_lane_batches():
            lane = rollout.lane[columns]
            start = self.head[lane]
            rows = (start + np.arange(self.chunk + 1)[:, None]) % self.rows
            for name, value in fields.items():
                self._scatter(self.arrays[name], lane, rows[: len(value)], value, columns)
            self.arrays["memory"][lane, rows[0] // self.chunk] = rollout.memory[columns]
            self.arrays["version"][lane, rows[0] // self.chunk] = rollout.version[columns]
            before = np.where(rollout.continues_previous[columns], self.unbroken_rows[lane, rows[0]], 0)
            self.unbroken_rows[lane, rows] = before + np.arange(self.chunk + 1)[:, None]
            self.head[lane] = start + self.chunk

    def read(self, lane: np.ndarray, start: np.ndarray, length: int, warmup_rows: int = 0) -> Rollout:
        """Return sequences of `length` rows, and the observation after the last row.

        Args:
            lane: The lane [B] of each sequence.
            start: The first row [B] of each sequence, counted from the first row of the lane.
            length: Rows of a sequence.
            warmup_rows: Rows before the one to which the returned memory and version belong, the start of a column.

        Returns:
            A rollout [length, B].
        """
        rows = start % self.rows + np.arange(length + 1)[:, None]
        np.subtract(rows, self.rows, out=rows, where=rows >= self.rows)  # faster than the remainder of all rows
        rows += lane * self.rows
        gathered: dict[str, Any] = {
            name: self._gather(array, rows if name == "first" or name.startswith("obs/") else rows[:-1])
            for name, array in self.arrays.items()
            if name not in ("memory", "version")
        }
        columns = ((start + warmup_rows) % self.rows + lane * self.rows) // self.chunk
        batch = len(lane)
        return Rollout(
            obs={name[4:]: gathered.pop(name) for name in list(gathered) if name.startswith("obs/")},
            records={name[8:]: gathered.pop(name) for name in list(gathered) if name.startswith("records/")},
            **gathered,
            memory=self._gather(self.arrays["memory"], columns),
            version=self._gather(self.arrays["version"], columns),
            lane=lane,
            continues_previous=np.zeros(batch, bool),
            weight=np.ones(batch, np.float32),
            index=self.make_index(lane, start),
        )

    def is_unbroken(self, lane: np.ndarray, start: np.ndarray, length: int) -> np.ndarray:
        """Return whether sequences [B] of `length` rows from row `start` of each `lane` have no break in them."""
        return self.unbroken_rows[lane, (start + length) % self.rows] >= length

    def valid(self, lane: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Return `Rollout.valid` of stored rows [..., n] of lanes [n]: whether they can be learned from."""
        first, alive = self.arrays["first"], self.arrays["alive"]
        return ~(first[lane, (row + 1) % self.rows] & alive[lane, row % self.rows])

    @staticmethod
    def make_index(lane: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Return the index of rows: unique over all lanes and the whole run, unchanged when lanes are added."""
        return lane * MAX_ROWS_PER_LANE + row

    @staticmethod
    def find_row(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the lanes and rows of indices."""
        return np.divmod(index, MAX_ROWS_PER_LANE)

    def state(self) -> Arrays:
        """Return all contents as named arrays."""
        return {"head": self.head, "unbroken_rows": self.unbroken_rows, "chunk": np.array(self.chunk), **self.arrays}

    def restore(self, state: Arrays) -> None:
        """Restore the result of `state`. Raises ValueError if that ring had other sizes."""
        saved, current = (*state["unbroken_rows"].shape, int(state["chunk"])), (self.lanes, self.rows, self.chunk)
        if saved != current:
            raise ValueError(f"the saved replay has {saved} lanes, rows and rows per column; this one has {current}")
        self.head, self.unbroken_rows = state["head"].copy(), state["unbroken_rows"].copy()
        self.arrays = {}
        for name, value in state.items():
            if name not in RING_ARRAYS:
                self.arrays[name] = self.allocate(value.shape, value.dtype)
                self.arrays[name][:] = value

    def _with_lanes(self, lanes: int, array: np.ndarray, allocate: Allocator) -> np.ndarray:
        """Return a copy of `array` with more lanes. Rows that were never written are not copied and take no memory."""
        grown = allocate((lanes, *array.shape[1:]), array.dtype)
        written = min(int(self.head.max()) + 1, self.rows)  # rows of the fullest lane
        n_written = -(-written * array.shape[1] // self.rows)  # of the array, with a value per row or per column
        grown[: self.lanes, :n_written] = array[:, :n_written]
        return grown

    @staticmethod
    def _scatter(array: np.ndarray, lane: np.ndarray, rows: np.ndarray, value: np.ndarray, columns: np.ndarray) -> None:
        """Write columns [k] of `value` [T, B, ...] to the rows [T, k] of lanes [k] of an array."""
        if array[0, 0].nbytes < WIDE_ROW_BYTES:
            array[lane, rows] = value[:, columns]
            return
        for number, column in enumerate(columns):
            array[lane[number], rows[:, number]] = value[:, column]

    @staticmethod
    def _gather(array: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Return rows by their index [T, B] or [B] in the array flattened over lanes and rows.

        Of wide rows each sequence [T] of a [T, B] index is copied separately.
        """
        flat = array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])
        if flat[0].nbytes < WIDE_ROW_BYTES or index.ndim == 1:
            return flat.take(index, axis=0)
        gathered = np.empty((*index.shape, *flat.shape[1:]), flat.dtype)
        for sequence, rows in enumerate(index.T):
            before = int(rows.argmax()) + 1  # rows up to the end of the ring; the rest continues at its begin
            after = len(rows) - before
            gathered[:before, sequence] = flat[rows[0] : rows[0] + before]
            gathered[before:, sequence] = flat[rows[-1] + 1 - after : rows[-1] + 1]
        return gathered
