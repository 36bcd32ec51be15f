"""Memories of the observations of each lane's running episode, and the bonus of an observation that is new in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import chain
from typing import Literal

import numpy as np
import torch
from torch import Tensor

# Constants of "Never Give Up" (Badia et al. 2020, Algorithm 1).
CLUSTER_DISTANCE = 0.008  # xi: smaller normalized squared distances count as 0
PSEUDO_COUNT = 0.001  # c
AVERAGED_ARRIVALS = 1000  # of the moving average d_m^2
BLOCK_ROWS = 64  # whose distances are computed at once


class EpisodeMemory(ABC):
    """A memory of the observations of each lane's running episode, in the order of time."""

    @abstractmethod
    def add(self, lane: int, rows: np.ndarray) -> np.ndarray:
        """Add rows [n, ...] of one episode to a lane; return the bonus [n] of each row, given all rows before it."""

    @abstractmethod
    def clear(self, lane: int) -> None:
        """Remove all rows of a lane."""

    @abstractmethod
    def grow(self, lanes: int) -> None:
        """Add empty lanes, so that there are `lanes` lanes."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return the contents."""

    @abstractmethod
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""


class VisitCounts(EpisodeMemory):
    """The numbers of visits N of each observation of an episode; rows are keys [n] of 64 bits.

    Args:
        lanes: Number of lanes.
        bonus: `inverse_sqrt`: 1 / sqrt(N), with this visit in N; `first_visit`: 1 for N = 1, otherwise 0.
    """

    def __init__(self, lanes: int, bonus: Literal["inverse_sqrt", "first_visit"]):
        self._counts: list[dict[int, int]] = [{} for _ in range(lanes)]
        self._bonus = bonus

    def add(self, lane: int, rows: np.ndarray) -> np.ndarray:
        counts, numbers = self._counts[lane], []
        for key in rows.tolist():
            counts[key] = number = counts.get(key, 0) + 1
            numbers.append(number)
        visits = np.array(numbers, np.float32)
        return 1 / np.sqrt(visits) if self._bonus == "inverse_sqrt" else (visits == 1).astype(np.float32)

    def clear(self, lane: int) -> None:
        self._counts[lane].clear()

    def grow(self, lanes: int) -> None:
        self._counts += [{} for _ in range(lanes - len(self._counts))]

    def state(self) -> dict[str, Tensor]:
        return {
            "lengths": torch.tensor([len(counts) for counts in self._counts]),
            "keys": torch.tensor(list(chain.from_iterable(self._counts)), dtype=torch.int64),
            "visits": torch.tensor(
                list(chain.from_iterable(counts.values() for counts in self._counts)), dtype=torch.int64
            ),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        lengths = state["lengths"].tolist()
        keys, visits = state["keys"].split(lengths), state["visits"].split(lengths)
        self._counts = [
            dict(zip(lane_keys.tolist(), lane_visits.tolist(), strict=True))
            for lane_keys, lane_visits in zip(keys, visits, strict=True)
        ]


class EmbeddingMemory(EpisodeMemory):
    """The embeddings [n, E] of an episode, whose bonus is 1 / (sqrt(sum_i K_i) + c) over the nearest neighbors i.

    K_i = epsilon / (d_i^2 / d_m^2 + epsilon) is the similarity of two embeddings with distance d_i; d_m^2 is a moving
    average of d_i^2 over the neighbors of the lane's rows, in all its episodes (Badia et al. 2020, Algorithm 1; without
    its bound of the similarity, which only more than 63 neighbors can reach). The bonus of an embedding that is not
    finite is NaN, and it is the neighbor of no other.

    Args:
        lanes: Number of lanes.
        size: E.
        neighbors: Number of nearest neighbors.
        kernel_epsilon: epsilon.
        capacity: Number of rows of an episode, the last ones, that can be neighbors.
    """

    def __init__(self, lanes: int, size: int, *, neighbors: int, kernel_epsilon: float, capacity: int):
        self._size, self._neighbors, self._epsilon, self._capacity = size, neighbors, kernel_epsilon, capacity
        self._rows = [torch.zeros(0, size) for _ in range(lanes)]
        self._mean = np.zeros(lanes)  # d_m^2
        self._arrivals = np.zeros(lanes, np.int64)  # rows in the mean

    def add(self, lane: int, rows: np.ndarray) -> np.ndarray:
        blocks = [self._add_block(lane, block) for block in torch.from_numpy(rows).split(BLOCK_ROWS)]
        return torch.cat(blocks).numpy()

    def clear(self, lane: int) -> None:
        self._rows[lane] = torch.zeros(0, self._size)

    def grow(self, lanes: int) -> None:
        added = lanes - len(self._rows)
        self._rows += [torch.zeros(0, self._size) for _ in range(added)]
        self._mean, self._arrivals = np.pad(self._mean, (0, added)), np.pad(self._arrivals, (0, added))

    def state(self) -> dict[str, Tensor]:
        return {
            "lengths": torch.tensor([len(rows) for rows in self._rows]),
            "embeddings": torch.cat(self._rows),
            "mean": torch.tensor(self._mean),
            "arrivals": torch.tensor(self._arrivals),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._rows = [rows.clone() for rows in state["embeddings"].split(state["lengths"].tolist())]
        self._mean, self._arrivals = state["mean"].numpy().copy(), state["arrivals"].numpy().copy()

    def _add_block(self, lane: int, block: Tensor) -> Tensor:
        n_old, n_new = len(self._rows[lane]), len(block)
        rows = torch.cat((self._rows[lane], block))
        self._rows[lane] = rows[max(0, len(rows) - self._capacity) :].clone()
        end = n_old + torch.arange(n_new).unsqueeze(1)  # of the rows before each new one
        place = torch.arange(len(rows))
        is_finite = rows.isfinite().all(-1)
        is_neighbor = (place < end) & (place >= end - self._capacity) & is_finite & is_finite[n_old:].unsqueeze(1)
        # Not by a product of matrices, whose rounding makes the distance of equal embeddings larger than 0.
        distance = torch.cdist(block, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
        distance = distance.where(is_neighbor, torch.inf)
        nearest = distance.topk(min(self._neighbors, len(rows)), largest=False).values.double()
        normalized = nearest / self._average(lane, nearest).unsqueeze(1)
        normalized = (normalized - CLUSTER_DISTANCE).clamp(min=0)
        similarity = (self._epsilon / (normalized + self._epsilon)).sum(-1).sqrt() + PSEUDO_COUNT
        return (1 / similarity).where(is_finite[n_old:], torch.nan).float()

    def _average(self, lane: int, nearest: Tensor) -> Tensor:
        """Update the moving average with squared distances [n, k]; return it [n] after each row, above 0.

        A distance is infinite where a row has no further neighbor. A row without neighbors changes nothing.
        """
        is_neighbor = nearest.isfinite()
        means = nearest.where(is_neighbor, 0).sum(-1) / is_neighbor.sum(-1)
        mean, arrivals, averages = float(self._mean[lane]), int(self._arrivals[lane]), []
        for row_mean in means.tolist():
            if row_mean == row_mean:  # NaN: no neighbors
                arrivals += 1
                mean += (row_mean - mean) / min(arrivals, AVERAGED_ARRIVALS)
            averages.append(mean)
        self._mean[lane], self._arrivals[lane] = mean, arrivals
        return torch.tensor(averages, dtype=torch.float64).clamp(min=torch.finfo(torch.float64).tiny)
