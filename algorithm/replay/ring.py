"""Storage: the last rows of every lane, time-major, in plain arrays that are allocated once."""

from __future__ import annotations

from typing import Any

import numpy as np

from algorithm.rollout import Rollout

Arrays = dict[str, np.ndarray]
OWN = ("head", "unbroken", "chunk")  # of the ring, beside what it stores
ROW_FIELDS = ("sample", "reward", "alive", "behavior")  # T rows of a column; `obs` and `first` have one more


class Ring:
    """`rows` rows for each of `lanes` lanes, filled by columns of `chunk` rows and read by windows.

    The row behind the newest one holds its successor's observation, which the lane's next column overwrites with the
    same numbers. Memory and version are kept once per column, at its row 0. Nothing stored is ever rewritten.
    """

    def __init__(self, rows: int, lanes: int, chunk: int):
        self.rows = rows // chunk * chunk  # so that columns start at multiples of `chunk`
        self.lanes = lanes
        self.chunk = chunk
        self.head = np.zeros(lanes, np.int64)  # rows ever written
        # For each row, how many rows before it are its predecessors without a break.
        self.unbroken = np.zeros((self.rows, lanes), np.int64)
        self.arrays: Arrays = {}

    @property
    def filled(self) -> np.ndarray:
        """[lanes] rows that can be read; one is kept free for the successor of the newest."""
        return np.minimum(self.head, self.rows - 1)

    def write(self, rollout: Rollout) -> None:
        """Append each column to its lane."""
        if not self.arrays:
            self._allocate(rollout)
        for columns in rollout.rounds():
            self._write(rollout, columns)

    def read(self, lane: np.ndarray, start: np.ndarray, length: int, lead: int = 0) -> Rollout:
        """Windows of `length` rows and one more observation, from row `start` of each `lane`: [length, len(lane)].

        Their memory is that of row `start + lead`.
        """
        rows = (start + np.arange(length + 1)[:, None]) % self.rows * self.lanes + lane
        taken: dict[str, Any] = {
            name: self._take(name, rows if self._has_successor(name) else rows[:-1])
            for name in self.arrays
            if name not in ("memory", "version")
        }
        columns = (start + lead) % self.rows // self.chunk * self.lanes + lane
        batch = len(lane)
        return Rollout(
            obs={name[4:]: taken.pop(name) for name in list(taken) if name.startswith("obs/")},
            **taken,
            memory=self._take("memory", columns),
            version=self._take("version", columns),
            lane=lane,
            joined=np.zeros(batch, bool),
            weight=np.ones(batch, np.float32),
            index=rows[0],
        )

    def whole(self, lane: np.ndarray, start: np.ndarray, length: int) -> np.ndarray:
        """Which windows have no break between their rows."""
        return self.unbroken[(start + length) % self.rows, lane] >= length

    def state(self) -> Arrays:
        """Everything stored, as named arrays."""
        return {"head": self.head, "unbroken": self.unbroken, "chunk": np.array(self.chunk), **self.arrays}

    def restore(self, state: Arrays) -> None:
        """Take over what `state` gave. Raises ValueError where it was another size of ring."""
        saved, own = (*state["unbroken"].shape, int(state["chunk"])), (self.rows, self.lanes, self.chunk)
        if saved != own:
            raise ValueError(f"the saved replay has {saved} rows, lanes and rows of a column; this one has {own}")
        self.head, self.unbroken = state["head"].copy(), state["unbroken"].copy()
        self.arrays = {name: value.copy() for name, value in state.items() if name not in OWN}

    def _allocate(self, rollout: Rollout) -> None:
        columns = self.rows // self.chunk
        for name, value in _fields(rollout).items():
            self.arrays[name] = np.zeros((self.rows, self.lanes, *value.shape[2:]), value.dtype)
        self.arrays["memory"] = np.zeros((columns, self.lanes, *rollout.memory.shape[1:]), np.float32)
        self.arrays["version"] = np.zeros((columns, self.lanes), np.int64)

    def _write(self, rollout: Rollout, columns: np.ndarray) -> None:
        lane = rollout.lane[columns]
        start = self.head[lane]
        rows = (start + np.arange(self.chunk + 1)[:, None]) % self.rows
        for name, value in _fields(rollout).items():
            self.arrays[name][rows[: len(value)], lane] = value[:, columns]
        self.arrays["memory"][rows[0] // self.chunk, lane] = rollout.memory[columns]
        self.arrays["version"][rows[0] // self.chunk, lane] = rollout.version[columns]
        before = np.where(rollout.joined[columns], self.unbroken[rows[0], lane], 0)
        self.unbroken[rows, lane] = before + np.arange(self.chunk + 1)[:, None]
        self.head[lane] = start + self.chunk

    def _take(self, name: str, flat: np.ndarray) -> np.ndarray:
        array = self.arrays[name]
        return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:]).take(flat, axis=0)

    @staticmethod
    def _has_successor(name: str) -> bool:
        return name == "first" or name.startswith("obs/")


def _fields(rollout: Rollout) -> Arrays:
    """What is stored for each row, by the names of the arrays."""
    obs = {f"obs/{name}": value for name, value in rollout.obs.items()}
    return {**obs, "first": rollout.first, **{name: getattr(rollout, name) for name in ROW_FIELDS}}
