"""Windows drawn by their neighbours' errors until they have their own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from algorithm.replay.sampler import Drawn, Errors, Rating, Sampler
from algorithm.replay.sequences import Starts, Windows, listed, nth
from algorithm.replay.sum_tree import WIDTH, SumTree

NEAR = np.arange(-2, 3)[:, None]  # ranks of the cells that change with one: sizes of neighbours count in theirs
FAR = np.arange(-4, 5)[:, None]  # and of those whose owners decide how
OF_LANES = ("begin", "end", "assigned", "ahead")
OF_STARTS = ("number", "place", "priority", "of_others", "cell_begin", "cell_size")
KEPT = ("begin", "end", "number", "priority", "of_others", "cell_begin", "cell_size")


class Lazy(Sampler):
    """Lazy initialisation of priorities (Gruslys et al. 2018, arXiv 1704.04651, section 3.3).

    A start has a priority of its own once it was learned from ("assigned"). These divide the starts of their lane into
    cells, each start with the nearest; the others get the mean of the priorities of their own cell and of those beside
    it, weighted by size. Starts of a lane that has none yet are drawn uniformly, and so is the share `uniform_fraction`
    of all. Weights are 1 / (N P). The paper leaves open which cells; these are ours.

    The drawable starts of a lane have consecutive places, by age, so that breaks leave no gap in the cells. Arrays are
    by place, cells at the place of their owner; assigned starts have ranks, by age within their lane.
    """

    BYTES = 8 * 6 + 2 * 8 * WIDTH / (WIDTH - 1)

    def __init__(self, windows: Windows, rating: Rating, uniform_fraction: float):
        self.windows, self.rating, self.uniform_fraction = windows, rating, uniform_fraction
        self.slots = windows.slots
        lanes, starts = windows.lanes, windows.lanes * self.slots
        self.span = windows.span()
        self.begin, self.end = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)  # of each lane's places
        self.number = np.zeros(starts, np.int64)
        self.place = np.zeros(starts, np.int64)  # by number
        self.priority = np.zeros(starts)  # 0 where it is not assigned
        self.of_others = np.zeros(starts)  # the priority of whoever else is in a cell
        self.cell_begin, self.cell_size = np.zeros(starts, np.int64), np.zeros(starts, np.int64)
        self.cells = SumTree(starts)  # the sums of all priorities in each cell
        self.marks = SumTree(starts)  # 1 where a start is assigned
        self.assigned = np.zeros(lanes, np.int64)  # starts of each lane
        self.ahead = np.zeros(lanes, np.int64)  # those of them that stand before the oldest start in the arrays

    def draw(self, rng: np.random.Generator, batch: int) -> Drawn | None:
        count = self.end - self.begin
        total = count.sum()
        if not total:
            return None
        blank = np.where(self.assigned, 0, count)
        blank_share = blank.sum() / total
        uniform = self.uniform_fraction
        shares = np.array([0, blank_share, 1 - blank_share]) * (1 - uniform) + [uniform, 0, 0]
        kind, within = _divided(shares, (np.arange(batch) + rng.random(batch)) / batch)
        lane, place = np.zeros(batch, np.int64), np.zeros(batch, np.int64)
        for chosen, counted in ((kind == 0, count), (kind == 1, blank)):
            things = counted.sum()
            of_lane, which = nth(counted, np.minimum((within[chosen] * things).astype(np.int64), things - 1))
            lane[chosen], place[chosen] = of_lane, self.begin[of_lane] + which
        chosen = kind == 2
        lane[chosen], place[chosen] = self._from_cells(within[chosen] * self.cells.total)
        weight = 1 / (total * self.probability(lane, place))
        return Drawn(lane, self.number[self.windows.slot(lane, place)], weight.astype(np.float32))

    def probability(self, lane: np.ndarray, place: np.ndarray) -> np.ndarray:
        """[n] of drawing these places."""
        count = self.end - self.begin
        total, covered = count.sum(), count[self.assigned > 0].sum()
        proportional = np.full(len(lane), 1 / total)
        known = self.assigned[lane] > 0
        lane, place = lane[known], place[known]
        slot = self.windows.slot(lane, place)
        owner = self.windows.slot(lane, self._owner(lane, place))
        priority = np.where(slot == owner, self.priority[owner], self.of_others[owner])
        proportional[known] = priority / self.cells.total * (covered / total)
        return self.uniform_fraction / total + (1 - self.uniform_fraction) * proportional

    def follow(self) -> None:
        before, self.span = self.span, self.windows.span()
        overwritten, broken, new = self.windows.news(before, self.span)
        oldest, place = self._drawable(*overwritten)
        self._forget(oldest, place)
        np.maximum.at(self.begin, oldest, place + 1)
        newest, place = self._drawable(*broken)
        self._forget(newest, place)
        self.end[newest] = place
        self._append(*new)
        self._count()
        lane = np.unique(np.concatenate((oldest, newest, new[0])))
        lane = lane[self.assigned[lane] > 0]
        self._weigh(np.tile(lane, 2), np.append(np.zeros_like(lane), self.assigned[lane] - 1))

    def grow(self) -> None:
        self.span = self.windows.span()
        lanes, starts = self.windows.lanes, self.windows.lanes * self.slots
        for names, count in ((OF_LANES, lanes), (OF_STARTS, starts)):
            for name in names:
                array = getattr(self, name)
                setattr(self, name, np.pad(array, (0, count - len(array))))
        self.cells.grow(starts)
        self.marks.grow(starts)

    def prioritize(self, index: np.ndarray, errors: Errors) -> None:
        starts, priority = self.rating.learned(self.windows, self.span, index, errors)
        priority = priority[self._is_drawable(*starts)]
        lane, place = self._drawable(*starts)
        slot, first = np.unique(self.windows.slot(lane, place), return_index=True)
        self.priority[slot] = priority[first]
        self.marks.set(slot, 1.0)
        self._count()
        self._weigh(lane[first], self._rank(lane[first], place[first]))

    def state(self) -> dict[str, np.ndarray]:
        arrays = {name: getattr(self, name) for name in KEPT}
        return {"windows": self.windows.shape, **arrays, "cells": self.cells.leaves}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.windows.check(state["windows"])
        self.span = self.windows.span()
        for name in KEPT:
            setattr(self, name, state[name].copy())
        self.cells.fill(state["cells"])
        self.marks.fill((self.priority > 0).astype(np.float64))
        self._count()
        lane, place = listed(self.begin, self.end - 1)
        self.place[self.windows.slot(lane, self.number[self.windows.slot(lane, place)])] = place

    def _is_drawable(self, lane: np.ndarray, number: np.ndarray) -> np.ndarray:
        place = self.place[self.windows.slot(lane, number)]
        inside = (self.begin[lane] <= place) & (place < self.end[lane])
        return inside & (self.number[self.windows.slot(lane, place)] == number)

    def _drawable(self, lane: np.ndarray, number: np.ndarray) -> Starts:
        """Lanes and places of those starts that can be drawn."""
        there = self._is_drawable(lane, number)
        return lane[there], self.place[self.windows.slot(lane[there], number[there])]

    def _append(self, lane: np.ndarray, number: np.ndarray) -> None:
        count = np.bincount(lane, minlength=len(self.end))
        _, place = listed(self.end, self.end + count - 1)
        self.number[self.windows.slot(lane, place)] = number
        self.place[self.windows.slot(lane, number)] = place
        self.end += count

    def _forget(self, lane: np.ndarray, place: np.ndarray) -> None:
        slot = self.windows.slot(lane, place)
        self.priority[slot] = 0
        self.marks.set(slot, 0.0)
        self.cells.set(slot, 0.0)

    def _count(self) -> None:
        """Take anew what is counted of the assigned starts."""
        lane = np.arange(len(self.begin))
        first = np.append(self.marks.before(lane * self.slots), self.marks.total)
        self.assigned = np.diff(first).astype(np.int64)
        self.ahead = (self.marks.before(self.windows.slot(lane, self.begin)) - first[:-1]).astype(np.int64)

    def _weigh(self, lane: np.ndarray, rank: np.ndarray) -> None:
        """Take anew the cells of these ranks, and all that change with them."""
        keys, near = (self._keys(lane, rank + reach) for reach in (FAR, NEAR))
        near = keys.searchsorted(near)
        lane, rank = np.divmod(keys, self.slots + 1)
        owner = self._assigned_place(lane, rank)
        slot = self.windows.slot(lane, owner)
        middle = (owner[:-1] + owner[1:]) // 2 + 1  # what is as near to both belongs to the older one
        begin = np.where(rank == 0, self.begin[lane], np.append(0, middle))
        size = np.where(rank == self.assigned[lane] - 1, self.end[lane], np.append(middle, 0)) - begin
        beside = keys[1:] == keys[:-1] + 1

        def around(value: np.ndarray) -> np.ndarray:
            """The sum over each cell and those beside it."""
            return (value + np.append(0, beside * value[:-1]) + np.append(beside * value[1:], 0))[near]

        of_others = around(size * self.priority[slot]) / around(size)
        slot, begin, size = slot[near], begin[near], size[near]
        self.of_others[slot], self.cell_begin[slot], self.cell_size[slot] = of_others, begin, size
        self.cells.set(slot, self.priority[slot] + (size - 1) * of_others)

    def _keys(self, lane: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """Ranks [k, n] of lanes [n] as sorted numbers, each once; those that there are."""
        lanes = np.broadcast_to(lane, ranks.shape)
        there = (ranks >= 0) & (ranks < self.assigned[lanes])
        return np.unique(lanes[there] * (self.slots + 1) + ranks[there])  # one apart: side by side in one lane

    def _rank(self, lane: np.ndarray, place: np.ndarray) -> np.ndarray:
        """How many assigned starts of its lane are older than each place."""
        slot, first = self.windows.slot(lane, place), self.assigned.cumsum() - self.assigned
        between = self.marks.before(slot).astype(np.int64) - first[lane] - self.ahead[lane]
        return between + np.where(slot < self.windows.slot(lane, self.begin[lane]), self.assigned[lane], 0)

    def _assigned_place(self, lane: np.ndarray, rank: np.ndarray) -> np.ndarray:
        """The place of the assigned start of each rank."""
        first = self.assigned.cumsum() - self.assigned
        slot, _ = self.marks.find(first[lane] + (self.ahead[lane] + rank) % self.assigned[lane] + 0.5)
        return self.windows.turn(slot, self.begin)[1]

    def _owner(self, lane: np.ndarray, place: np.ndarray) -> np.ndarray:
        """The place of the owner of the cell in which each place is, in lanes that have one."""
        rank, last = self._rank(lane, place), self.assigned[lane] - 1
        both = np.clip((rank - 1, rank), 0, last).reshape(-1)
        older, newer = self._assigned_place(np.tile(lane, 2), both).reshape(2, -1)
        return np.where(place <= (older + newer) // 2, older, newer)

    def _from_cells(self, mass: np.ndarray) -> Starts:
        """Lanes and places at which the sum of all priorities passes each `mass`; owners come first in their cell."""
        slot, rest = self.cells.find(mass)
        lane, owner = self.windows.turn(slot, self.begin)
        own, size = self.priority[slot], self.cell_size[slot]
        place = self.cell_begin[slot] + np.minimum(((rest - own) / self.of_others[slot]).astype(np.int64), size - 2)
        place += place >= owner
        return lane, np.where((rest < own) | (size == 1), owner, place)


def _divided(parts: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In which of the `parts` [k] of a whole each `share` [n] of it lies, and how far inside, from 0 to 1."""
    ends = parts.cumsum()
    at = np.minimum(share * ends[-1], np.nextafter(ends[-1], 0))
    part = ends.searchsorted(at, side="right")
    return part, (at - ends[part] + parts[part]) / parts[part]
