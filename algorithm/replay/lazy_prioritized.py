"""Lazily prioritized replay: a sequence without its own priority has the priority of its neighbors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from algorithm.replay.prioritized import BRANCHING, SumTree
from algorithm.replay.sampler import (
    PriorityFunction,
    PrioritySampler,
    SampledSequences,
    Sequences,
    Starts,
    list_numbers,
    locate_nth,
)

# A change of a cell changes the cells up to two ranks away, since the sizes of adjacent cells enter their priorities.
ADJACENT_RANKS = np.arange(-2, 3)[:, None]
OWNER_RANKS = np.arange(-4, 5)[:, None]  # ranks of the owners that determine those cells
LANE_ARRAYS = ("begin", "end", "n_assigned", "n_wrapped")
START_ARRAYS = ("number", "place", "priority", "neighbor_priority", "cell_begin", "cell_size")
SAVED_ARRAYS = ("begin", "end", "number", "priority", "neighbor_priority", "cell_begin", "cell_size")


class LazyPrioritizedSampler(PrioritySampler):
    """A sampler with lazily initialized priorities (Reactor, Gruslys et al. 2018, arXiv 1704.04651, section 3.3).

    A start is assigned once its sequence has been learned from; it then has its own priority. The assigned starts
    divide the starts of their lane into cells: each start belongs to the cell of the nearest assigned start, the
    owner of the cell. The other starts of a cell have the mean priority of the owners of the cell and its two
    neighbors, weighted by the sizes of the cells. (The paper defines cells in an appendix that was not available.)
    The starts of a lane without assigned starts are drawn uniformly. Weights are 1 / (N P).

    The drawable starts of a lane have consecutive places in order of age, so breaks leave no gaps in the cells. Arrays
    are indexed by the slot of a place; the values of a cell are at the place of its owner. Assigned starts have ranks
    in order of age within their lane.

    Args:
        uniform_fraction: Fraction of the sequences that is drawn uniformly.
        uses_recorded_errors: Whether new sequences are assigned at once, with the priority of their recorded TD errors,
            if these are finite.
    """

    BYTES_PER_START = 8 * 6 + 2 * 8 * BRANCHING / (BRANCHING - 1)
    SETTINGS = ("uniform_fraction",)

    def __init__(
        self,
        sequences: Sequences,
        priority_function: PriorityFunction,
        uniform_fraction: float,
        uses_recorded_errors: bool = False,
    ):
        super().__init__(sequences, priority_function, uses_recorded_errors)
        self.uniform_fraction, self.slots = uniform_fraction, sequences.slots
        lanes, starts = sequences.ring.lanes, sequences.ring.lanes * self.slots
        self.begin, self.end = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)  # range of places of each lane
        self.number = np.zeros(starts, np.int64)  # start number of each place
        self.place = np.zeros(starts, np.int64)  # indexed by the slot of the number
        self.priority = np.zeros(starts)  # 0 if not assigned
        self.neighbor_priority = np.zeros(starts)  # of the other starts of a cell
        self.cell_begin, self.cell_size = np.zeros(starts, np.int64), np.zeros(starts, np.int64)
        self.cells = SumTree(starts)  # sum of the priorities in each cell
        self.marks = SumTree(starts)  # 1 if a start is assigned
        self.n_assigned = np.zeros(lanes, np.int64)  # assigned starts of each lane
        self.n_wrapped = np.zeros(lanes, np.int64)  # of these, the starts in slots before the slot of the oldest start

    def sample(self, rng: np.random.Generator, batch: int) -> SampledSequences | None:
        count = self.end - self.begin
        total = count.sum()
        if not total:
            return None
        unassigned = np.where(self.n_assigned, 0, count)
        unassigned_share = unassigned.sum() / total
        uniform = self.uniform_fraction
        shares = np.array([0, unassigned_share, 1 - unassigned_share]) * (1 - uniform) + [uniform, 0, 0]
        # The kind of each draw, and its position within the share of this kind, from 0 to 1.
        ends, position = shares.cumsum(), (np.arange(batch) + rng.random(batch)) / batch
        position = np.minimum(position * ends[-1], np.nextafter(ends[-1], 0))
        kind = ends.searchsorted(position, side="right")
        within = (position - ends[kind] + shares[kind]) / shares[kind]
        lane, place = np.zeros(batch, np.int64), np.zeros(batch, np.int64)
        for selected, counts in ((kind == 0, count), (kind == 1, unassigned)):
            n_starts = counts.sum()
            selected_lane, rank = locate_nth(
                counts, np.minimum((within[selected] * n_starts).astype(np.int64), n_starts - 1)
            )
            lane[selected], place[selected] = selected_lane, self.begin[selected_lane] + rank
        selected = kind == 2
        lane[selected], place[selected] = self._find_in_cells(within[selected] * self.cells.total)
        weight = 1 / (total * self.probability(lane, place))
        return SampledSequences(lane, self.number[self.sequences.find_slot(lane, place)], weight.astype(np.float32))

    def probability(self, lane: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Return the probability [n] of drawing each place."""
        count = self.end - self.begin
        total, covered = count.sum(), count[self.n_assigned > 0].sum()
        proportional = np.full(len(lane), 1 / total)
        has_assigned = self.n_assigned[lane] > 0
        lane, place = lane[has_assigned], place[has_assigned]
        slot = self.sequences.find_slot(lane, place)
        owner = self.sequences.find_slot(lane, self._find_owner(lane, place))
        priority = np.where(slot == owner, self.priority[owner], self.neighbor_priority[owner])
        proportional[has_assigned] = priority / self.cells.total * (covered / total)
        return self.uniform_fraction / total + (1 - self.uniform_fraction) * proportional

    def replace(self, overwritten: Starts, broken: Starts, new: Starts) -> None:
        _, oldest, place = self._find_drawable(*overwritten)
        self._unassign(oldest, place)
        np.maximum.at(self.begin, oldest, place + 1)
        _, newest, place = self._find_drawable(*broken)
        self._unassign(newest, place)
        self.end[newest] = place
        self._append_starts(*new)
        self._count_assigned()
        lane = np.unique(np.concatenate((oldest, newest, new[0])))
        lane = lane[self.n_assigned[lane] > 0]
        self._update_cells(np.tile(lane, 2), np.append(np.zeros_like(lane), self.n_assigned[lane] - 1))

    def grow(self) -> None:
        super().grow()
        lanes, starts = self.sequences.ring.lanes, self.sequences.ring.lanes * self.slots
        for names, count in ((LANE_ARRAYS, lanes), (START_ARRAYS, starts)):
            for name in names:
                array = getattr(self, name)
                setattr(self, name, np.pad(array, (0, count - len(array))))
        self.cells.grow(starts)
        self.marks.grow(starts)

    def assign(self, starts: Starts, priority: np.ndarray) -> None:
        is_drawable, lane, place = self._find_drawable(*starts)
        slot, first = np.unique(self.sequences.find_slot(lane, place), return_index=True)
        self.priority[slot] = priority[is_drawable][first]
        self.marks.set(slot, 1.0)
        self._count_assigned()
        self._update_cells(lane[first], self._count_older(lane[first], place[first]))

    def state(self) -> dict[str, np.ndarray]:
        arrays = {name: getattr(self, name) for name in SAVED_ARRAYS}
        return {**super().state(), **arrays, "cells": self.cells.leaves}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        super().restore(state)
        for name in SAVED_ARRAYS:
            setattr(self, name, state[name].copy())
        self.cells.fill(state["cells"])
        self.marks.fill((self.priority > 0).astype(np.float64))
        self._count_assigned()
        lane, place = list_numbers(self.begin, self.end - 1)
        self.place[self.sequences.find_slot(lane, self.number[self.sequences.find_slot(lane, place)])] = place

    def _find_drawable(self, lane: np.ndarray, number: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return whether each of some starts can be drawn, and the lanes and places of those that can."""
        place = self.place[self.sequences.find_slot(lane, number)]
        exists = (self.begin[lane] <= place) & (place < self.end[lane])
        exists &= self.number[self.sequences.find_slot(lane, place)] == number
        return exists, lane[exists], place[exists]

    def _append_starts(self, lane: np.ndarray, number: np.ndarray) -> None:
        count = np.bincount(lane, minlength=len(self.end))
        _, place = list_numbers(self.end, self.end + count - 1)
        self.number[self.sequences.find_slot(lane, place)] = number
        self.place[self.sequences.find_slot(lane, number)] = place
        self.end += count

    def _unassign(self, lane: np.ndarray, place: np.ndarray) -> None:
        slot = self.sequences.find_slot(lane, place)
        self.priority[slot] = 0
        self.marks.set(slot, 0.0)
        self.cells.set(slot, 0.0)

    def _count_assigned(self) -> None:
        """Count the assigned starts of each lane again."""
        lane = np.arange(len(self.begin))
        first = np.append(self.marks.sum_before(lane * self.slots), self.marks.total)
        self.n_assigned = np.diff(first).astype(np.int64)
        self.n_wrapped = (self.marks.sum_before(self.sequences.find_slot(lane, self.begin)) - first[:-1]).astype(
            np.int64
        )

    def _update_cells(self, lane: np.ndarray, rank: np.ndarray) -> None:
        """Update the cells of owners by rank, and the cells that depend on them."""
        keys, positions = (self._list_rank_keys(lane, rank + reach) for reach in (OWNER_RANKS, ADJACENT_RANKS))
        positions = keys.searchsorted(positions)
        lane, rank = np.divmod(keys, self.slots + 1)
        owner = self._find_assigned_place(lane, rank)
        slot = self.sequences.find_slot(lane, owner)
        middle = (owner[:-1] + owner[1:]) // 2 + 1  # a start with the same distance to both belongs to the older
        begin = np.where(rank == 0, self.begin[lane], np.append(0, middle))
        size = np.where(rank == self.n_assigned[lane] - 1, self.end[lane], np.append(middle, 0)) - begin
        is_adjacent = keys[1:] == keys[:-1] + 1

        def sum_adjacent(value: np.ndarray) -> np.ndarray:
            """Return the sum over each cell and its neighbors."""
            return (value + np.append(0, is_adjacent * value[:-1]) + np.append(is_adjacent * value[1:], 0))[positions]

        neighbor_priority = sum_adjacent(size * self.priority[slot]) / sum_adjacent(size)
        slot, begin, size = slot[positions], begin[positions], size[positions]
        self.neighbor_priority[slot], self.cell_begin[slot], self.cell_size[slot] = neighbor_priority, begin, size
        self.cells.set(slot, self.priority[slot] + (size - 1) * neighbor_priority)

    def _list_rank_keys(self, lane: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """Return sorted unique keys of the existing ranks [k, n] of lanes [n]; adjacent ranks differ by 1."""
        lanes = np.broadcast_to(lane, ranks.shape)
        exists = (ranks >= 0) & (ranks < self.n_assigned[lanes])
        return np.unique(lanes[exists] * (self.slots + 1) + ranks[exists])

    def _count_older(self, lane: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Return the number of assigned starts of the lane that are older than each place."""
        slot, first = self.sequences.find_slot(lane, place), self.n_assigned.cumsum() - self.n_assigned
        count = self.marks.sum_before(slot).astype(np.int64) - first[lane] - self.n_wrapped[lane]
        return count + np.where(slot < self.sequences.find_slot(lane, self.begin[lane]), self.n_assigned[lane], 0)

    def _find_assigned_place(self, lane: np.ndarray, rank: np.ndarray) -> np.ndarray:
        """Return the place of the assigned start of each rank."""
        first = self.n_assigned.cumsum() - self.n_assigned
        slot, _ = self.marks.find(first[lane] + (self.n_wrapped[lane] + rank) % self.n_assigned[lane] + 0.5)
        return self.sequences.find_start(slot, self.begin)[1]

    def _find_owner(self, lane: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Return the place of the owner of the cell that contains each place. The lanes have assigned starts."""
        rank, last = self._count_older(lane, place), self.n_assigned[lane] - 1
        ranks = np.clip((rank - 1, rank), 0, last).reshape(-1)
        older, newer = self._find_assigned_place(np.tile(lane, 2), ranks).reshape(2, -1)
        return np.where(place <= (older + newer) // 2, older, newer)

    def _find_in_cells(self, mass: np.ndarray) -> Starts:
        """Return the places where the cumulative priority exceeds each `mass`; owners are first in their cell."""
        slot, rest = self.cells.find(mass)
        lane, owner = self.sequences.find_start(slot, self.begin)
        owner_priority, size = self.priority[slot], self.cell_size[slot]
        place = self.cell_begin[slot] + np.minimum(
            ((rest - owner_priority) / self.neighbor_priority[slot]).astype(np.int64), size - 2
        )
        place += place >= owner
        return lane, np.where((rest < owner_priority) | (size == 1), owner, place)
