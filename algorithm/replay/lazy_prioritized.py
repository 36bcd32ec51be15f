"""Windows drawn by their neighbours' errors until they have their own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from algorithm.replay.sampler import Errors, PriorityFunction, SampledSequences, Sampler
from algorithm.replay.sequences import Sequences, Starts, list_numbers, locate_nth
from algorithm.replay.sum_tree import BRANCHING, SumTree

ADJACENT_RANKS = np.arange(-2, 3)[
    :, None
]  # ranks of the cells that change with one: sizes of neighbours count in theirs
OWNER_RANKS = np.arange(-4, 5)[:, None]  # and of those whose owners decide how
LANE_ARRAYS = ("begin", "end", "n_assigned", "n_wrapped")
START_ARRAYS = ("number", "place", "priority", "neighbor_priority", "cell_begin", "cell_size")
SAVED_ARRAYS = ("begin", "end", "number", "priority", "neighbor_priority", "cell_begin", "cell_size")


class LazyPrioritizedSampler(Sampler):
    """Lazy initialisation of priorities (Gruslys et al. 2018, arXiv 1704.04651, section 3.3).

    A start has a priority of its own once it was learned from ("assigned"). These divide the starts of their lane into
    cells, each start with the nearest; the others get the mean of the priorities of their own cell and of those beside
    it, weighted by size. Starts of a lane that has none yet are drawn uniformly, and so is the share `uniform_fraction`
    of all. Weights are 1 / (N P). The paper leaves open which cells; these are ours.

    The drawable starts of a lane have consecutive places, by age, so that breaks leave no gap in the cells. Arrays are
    by place, cells at the place of their owner; assigned starts have ranks, by age within their lane.
    """

    BYTES_PER_START = 8 * 6 + 2 * 8 * BRANCHING / (BRANCHING - 1)

    def __init__(self, sequences: Sequences, priority_function: PriorityFunction, uniform_fraction: float):
        self.sequences, self.priority_function, self.uniform_fraction = sequences, priority_function, uniform_fraction
        self.slots = sequences.slots
        lanes, starts = sequences.lanes, sequences.lanes * self.slots
        self.start_range = sequences.compute_start_range()
        self.begin, self.end = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)  # of each lane's places
        self.number = np.zeros(starts, np.int64)
        self.place = np.zeros(starts, np.int64)  # by number
        self.priority = np.zeros(starts)  # 0 where it is not assigned
        self.neighbor_priority = np.zeros(starts)  # the priority of whoever else is in a cell
        self.cell_begin, self.cell_size = np.zeros(starts, np.int64), np.zeros(starts, np.int64)
        self.cells = SumTree(starts)  # the sums of all priorities in each cell
        self.marks = SumTree(starts)  # 1 where a start is assigned
        self.n_assigned = np.zeros(lanes, np.int64)  # starts of each lane
        self.n_wrapped = np.zeros(lanes, np.int64)  # those of them that stand before the oldest start in the arrays

    def sample(self, rng: np.random.Generator, batch: int) -> SampledSequences | None:
        count = self.end - self.begin
        total = count.sum()
        if not total:
            return None
        unassigned = np.where(self.n_assigned, 0, count)
        unassigned_share = unassigned.sum() / total
        uniform = self.uniform_fraction
        shares = np.array([0, unassigned_share, 1 - unassigned_share]) * (1 - uniform) + [uniform, 0, 0]
        kind, within = _locate_fraction(shares, (np.arange(batch) + rng.random(batch)) / batch)
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
        """[n] of drawing these places."""
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

    def update_after_write(self) -> None:
        before, self.start_range = self.start_range, self.sequences.compute_start_range()
        overwritten, broken, new = self.sequences.compare_ranges(before, self.start_range)
        oldest, place = self._select_drawable(*overwritten)
        self._unassign(oldest, place)
        np.maximum.at(self.begin, oldest, place + 1)
        newest, place = self._select_drawable(*broken)
        self._unassign(newest, place)
        self.end[newest] = place
        self._append_starts(*new)
        self._count_assigned()
        lane = np.unique(np.concatenate((oldest, newest, new[0])))
        lane = lane[self.n_assigned[lane] > 0]
        self._update_cells(np.tile(lane, 2), np.append(np.zeros_like(lane), self.n_assigned[lane] - 1))

    def grow(self) -> None:
        self.start_range = self.sequences.compute_start_range()
        lanes, starts = self.sequences.lanes, self.sequences.lanes * self.slots
        for names, count in ((LANE_ARRAYS, lanes), (START_ARRAYS, starts)):
            for name in names:
                array = getattr(self, name)
                setattr(self, name, np.pad(array, (0, count - len(array))))
        self.cells.grow(starts)
        self.marks.grow(starts)

    def prioritize(self, index: np.ndarray, errors: Errors) -> None:
        starts, priority = self.priority_function.compute_priorities(self.sequences, self.start_range, index, errors)
        priority = priority[self._is_drawable(*starts)]
        lane, place = self._select_drawable(*starts)
        slot, first = np.unique(self.sequences.find_slot(lane, place), return_index=True)
        self.priority[slot] = priority[first]
        self.marks.set(slot, 1.0)
        self._count_assigned()
        self._update_cells(lane[first], self._count_older(lane[first], place[first]))

    def state(self) -> dict[str, np.ndarray]:
        arrays = {name: getattr(self, name) for name in SAVED_ARRAYS}
        return {"sequences": self.sequences.shape, **arrays, "cells": self.cells.leaves}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.sequences.check(state["sequences"])
        self.start_range = self.sequences.compute_start_range()
        for name in SAVED_ARRAYS:
            setattr(self, name, state[name].copy())
        self.cells.fill(state["cells"])
        self.marks.fill((self.priority > 0).astype(np.float64))
        self._count_assigned()
        lane, place = list_numbers(self.begin, self.end - 1)
        self.place[self.sequences.find_slot(lane, self.number[self.sequences.find_slot(lane, place)])] = place

    def _is_drawable(self, lane: np.ndarray, number: np.ndarray) -> np.ndarray:
        place = self.place[self.sequences.find_slot(lane, number)]
        inside = (self.begin[lane] <= place) & (place < self.end[lane])
        return inside & (self.number[self.sequences.find_slot(lane, place)] == number)

    def _select_drawable(self, lane: np.ndarray, number: np.ndarray) -> Starts:
        """Lanes and places of those starts that can be drawn."""
        exists = self._is_drawable(lane, number)
        return lane[exists], self.place[self.sequences.find_slot(lane[exists], number[exists])]

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
        """Take anew what is counted of the assigned starts."""
        lane = np.arange(len(self.begin))
        first = np.append(self.marks.sum_before(lane * self.slots), self.marks.total)
        self.n_assigned = np.diff(first).astype(np.int64)
        self.n_wrapped = (self.marks.sum_before(self.sequences.find_slot(lane, self.begin)) - first[:-1]).astype(
            np.int64
        )

    def _update_cells(self, lane: np.ndarray, rank: np.ndarray) -> None:
        """Take anew the cells of these ranks, and all that change with them."""
        keys, positions = (self._list_rank_keys(lane, rank + reach) for reach in (OWNER_RANKS, ADJACENT_RANKS))
        positions = keys.searchsorted(positions)
        lane, rank = np.divmod(keys, self.slots + 1)
        owner = self._find_assigned_place(lane, rank)
        slot = self.sequences.find_slot(lane, owner)
        middle = (owner[:-1] + owner[1:]) // 2 + 1  # what is as near to both belongs to the older one
        begin = np.where(rank == 0, self.begin[lane], np.append(0, middle))
        size = np.where(rank == self.n_assigned[lane] - 1, self.end[lane], np.append(middle, 0)) - begin
        is_adjacent = keys[1:] == keys[:-1] + 1

        def sum_adjacent(value: np.ndarray) -> np.ndarray:
            """The sum over each cell and those beside it."""
            return (value + np.append(0, is_adjacent * value[:-1]) + np.append(is_adjacent * value[1:], 0))[positions]

        neighbor_priority = sum_adjacent(size * self.priority[slot]) / sum_adjacent(size)
        slot, begin, size = slot[positions], begin[positions], size[positions]
        self.neighbor_priority[slot], self.cell_begin[slot], self.cell_size[slot] = neighbor_priority, begin, size
        self.cells.set(slot, self.priority[slot] + (size - 1) * neighbor_priority)

    def _list_rank_keys(self, lane: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """Ranks [k, n] of lanes [n] as sorted numbers, each once; those that there are."""
        lanes = np.broadcast_to(lane, ranks.shape)
        exists = (ranks >= 0) & (ranks < self.n_assigned[lanes])
        return np.unique(lanes[exists] * (self.slots + 1) + ranks[exists])  # one apart: side by side in one lane

    def _count_older(self, lane: np.ndarray, place: np.ndarray) -> np.ndarray:
        """How many assigned starts of its lane are older than each place."""
        slot, first = self.sequences.find_slot(lane, place), self.n_assigned.cumsum() - self.n_assigned
        count = self.marks.sum_before(slot).astype(np.int64) - first[lane] - self.n_wrapped[lane]
        return count + np.where(slot < self.sequences.find_slot(lane, self.begin[lane]), self.n_assigned[lane], 0)

    def _find_assigned_place(self, lane: np.ndarray, rank: np.ndarray) -> np.ndarray:
        """The place of the assigned start of each rank."""
        first = self.n_assigned.cumsum() - self.n_assigned
        slot, _ = self.marks.find(first[lane] + (self.n_wrapped[lane] + rank) % self.n_assigned[lane] + 0.5)
        return self.sequences.find_start(slot, self.begin)[1]

    def _find_owner(self, lane: np.ndarray, place: np.ndarray) -> np.ndarray:
        """The place of the owner of the cell in which each place is, in lanes that have one."""
        rank, last = self._count_older(lane, place), self.n_assigned[lane] - 1
        ranks = np.clip((rank - 1, rank), 0, last).reshape(-1)
        older, newer = self._find_assigned_place(np.tile(lane, 2), ranks).reshape(2, -1)
        return np.where(place <= (older + newer) // 2, older, newer)

    def _find_in_cells(self, mass: np.ndarray) -> Starts:
        """Lanes and places at which the sum of all priorities passes each `mass`; owners come first in their cell."""
        slot, rest = self.cells.find(mass)
        lane, owner = self.sequences.find_start(slot, self.begin)
        owner_priority, size = self.priority[slot], self.cell_size[slot]
        place = self.cell_begin[slot] + np.minimum(
            ((rest - owner_priority) / self.neighbor_priority[slot]).astype(np.int64), size - 2
        )
        place += place >= owner
        return lane, np.where((rest < owner_priority) | (size == 1), owner, place)


def _locate_fraction(parts: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In which of the `parts` [k] of a whole each `share` [n] of it lies, and how far inside, from 0 to 1."""
    ends = parts.cumsum()
    position = np.minimum(share * ends[-1], np.nextafter(ends[-1], 0))
    part = ends.searchsorted(position, side="right")
    return part, (position - ends[part] + parts[part]) / parts[part]
