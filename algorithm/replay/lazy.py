"""Windows drawn by their neighbours' errors until they have their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from algorithm.replay.sampler import Drawn, Errors, Rating, Sampler
from algorithm.replay.sum_tree import WIDTH, SumTree
from algorithm.replay.windows import Starts, Windows, listed, nth

NEAR = np.arange(-2, 3)[:, None]  # how far one cell's change reaches: sizes of neighbours count in the means of theirs


@dataclass(frozen=True)
class Cell:
    """Cells [n] around one assigned start each, in places of their lane."""

    owner: np.ndarray
    begin: np.ndarray
    size: np.ndarray
    own: np.ndarray  # priority of the owner
    others: np.ndarray  # of everyone else in it

    @property
    def mass(self) -> np.ndarray:
        """[n] the sum of all priorities in a cell."""
        return self.own + (self.size - 1) * self.others


class Lazy(Sampler):
    """Lazy initialisation of priorities (Gruslys et al. 2018, arXiv 1704.04651, section 3.3).

    A start has a priority of its own once it was learned from ("assigned"). These divide the starts of their lane into
    cells, each start with the nearest; the others get the mean of the priorities of their own cell and of those beside
    it, weighted by size. Starts of a lane that has none yet are drawn uniformly, and so is the share `uniform_share` of
    all. Weights are 1 / (N P). The paper leaves open which cells; these are ours.

    The drawable starts of a lane have consecutive places, by age, so that breaks leave no gap in the cells.
    """

    BYTES = 8 * 3 + 2 * 8 * WIDTH / (WIDTH - 1)

    def __init__(self, windows: Windows, rating: Rating, uniform_share: float):
        self.windows, self.rating, self.uniform_share = windows, rating, uniform_share
        self.slots = windows.slots
        starts = windows.lanes * self.slots
        self.span = windows.span()
        self.begin = np.zeros(windows.lanes, np.int64)  # the oldest start's place in each lane
        self.end = np.zeros(windows.lanes, np.int64)  # and the one behind the newest
        self.number = np.zeros(starts, np.int64)  # by place
        self.place = np.zeros(starts, np.int64)  # by number
        self.priority = np.zeros(starts)  # by place, 0 where it is not assigned
        self.marks = SumTree(starts)  # by place, 1 where it is assigned
        self.cells = SumTree(starts)  # the mass of each cell at its owner's place
        self.assigned = np.zeros(windows.lanes, np.int64)  # starts of each lane

    def draw(self, rng: np.random.Generator, batch: int) -> Drawn | None:
        count = self.end - self.begin
        total = count.sum()
        if not total:
            return None
        blank = np.where(self.assigned, 0, count)
        blank_share = blank.sum() / total
        shares = np.array([0, blank_share, 1 - blank_share]) * (1 - self.uniform_share) + [self.uniform_share, 0, 0]
        kind, within = _divided(shares, (np.arange(batch) + rng.random(batch)) / batch)
        lane, place = np.zeros(batch, np.int64), np.zeros(batch, np.int64)
        for chosen, counted in ((kind == 0, count), (kind == 1, blank)):
            things = counted.sum()
            of_lane, which = nth(counted, np.minimum((within[chosen] * things).astype(np.int64), things - 1))
            lane[chosen], place[chosen] = of_lane, self.begin[of_lane] + which
        chosen = kind == 2
        lane[chosen], place[chosen] = self._from_cells(within[chosen] * self.cells.total)
        weight = 1 / (total * self.probability(lane, place))
        return Drawn(lane, self.number[self._slot(lane, place)], weight.astype(np.float32))

    def probability(self, lane: np.ndarray, place: np.ndarray) -> np.ndarray:
        """[n] of drawing these places."""
        count = self.end - self.begin
        total, covered = count.sum(), count[self.assigned > 0].sum()
        proportional = np.full(len(lane), 1 / total)
        known = self.assigned[lane] > 0
        lane, place = lane[known], place[known]
        cell = self._cells(lane, self._rank_of_owner(lane, place))
        expected = np.where(place == cell.owner, cell.own, cell.others)
        proportional[known] = expected / self.cells.total * (covered / total)
        return self.uniform_share / total + (1 - self.uniform_share) * proportional

    def follow(self) -> None:
        before, self.span = self.span, self.windows.span()
        overwritten, broken, new = self.windows.news(before, self.span)
        lane, place = self._drawable(*overwritten)
        self._forget(lane, place)
        np.maximum.at(self.begin, lane, place + 1)
        changed = [lane]
        lane, place = self._drawable(*broken)
        self._forget(lane, place)
        self.end[lane] = place
        self._append(*new)
        lanes = np.unique(np.concatenate([*changed, lane, new[0]]))
        lanes = lanes[self.assigned[lanes] > 0]
        self._weigh(np.repeat(lanes, 2), np.stack((np.zeros_like(lanes), self.assigned[lanes] - 1), 1).reshape(-1))

    def prioritize(self, index: np.ndarray, errors: Errors) -> None:
        starts, priority = self.rating.learned(self.windows, self.span, index, errors)
        there = self._is_drawable(*starts)
        lane, place = self._drawable(*starts)
        slot, first = np.unique(self._slot(lane, place), return_index=True)
        lane, place, priority = lane[first], place[first], priority[there][first]
        self.assigned += np.bincount(lane[self.priority[slot] == 0], minlength=len(self.assigned))
        self.priority[slot] = priority
        self.marks.set(slot, 1.0)
        self._weigh(lane, self._rank(lane, place))

    def state(self) -> dict[str, np.ndarray]:
        kept = ("begin", "end", "number", "priority")
        return {**{name: getattr(self, name) for name in kept}, "cells": self.cells.leaves}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.span = self.windows.span()
        self.begin, self.end = state["begin"].copy(), state["end"].copy()
        self.number, self.priority = state["number"].copy(), state["priority"].copy()
        self.cells.fill(state["cells"])
        self.marks.fill((self.priority > 0).astype(np.float64))
        self.assigned = (self.priority.reshape(-1, self.slots) > 0).sum(1)
        lane, place = listed(self.begin, self.end - 1)
        self.place[self._slot(lane, self.number[self._slot(lane, place)])] = place

    def _slot(self, lane: np.ndarray, turn: np.ndarray) -> np.ndarray:
        """Where an array keeps what is told of a place, or of a number."""
        return lane * self.slots + turn % self.slots

    def _is_drawable(self, lane: np.ndarray, number: np.ndarray) -> np.ndarray:
        place = self.place[self._slot(lane, number)]
        inside = (self.begin[lane] <= place) & (place < self.end[lane])
        return inside & (self.number[self._slot(lane, place)] == number)

    def _drawable(self, lane: np.ndarray, number: np.ndarray) -> Starts:
        """Lanes and places of those starts that can be drawn."""
        there = self._is_drawable(lane, number)
        return lane[there], self.place[self._slot(lane[there], number[there])]

    def _append(self, lane: np.ndarray, number: np.ndarray) -> None:
        count = np.bincount(lane, minlength=len(self.end))
        _, place = listed(self.end, self.end + count - 1)
        slot = self._slot(lane, place)
        self.number[slot], self.place[self._slot(lane, number)] = number, place
        self.end += count

    def _forget(self, lane: np.ndarray, place: np.ndarray) -> None:
        slot = self._slot(lane, place)
        self.assigned -= np.bincount(lane[self.priority[slot] > 0], minlength=len(self.assigned))
        self.priority[slot] = 0
        self.marks.set(slot, 0.0)
        self.cells.set(slot, 0.0)

    def _weigh(self, lane: np.ndarray, rank: np.ndarray) -> None:
        """Take anew the masses of the cells of these ranks and of all that they reach."""
        ranks, lanes = (rank + NEAR).reshape(-1), np.tile(lane, len(NEAR))
        there = (ranks >= 0) & (ranks < self.assigned[lanes])
        lane, rank = np.divmod(np.unique(lanes[there] * self.slots + ranks[there]), self.slots)
        cell = self._cells(lane, rank)
        self.cells.set(self._slot(lane, cell.owner), cell.mass)

    def _cells(self, lane: np.ndarray, rank: np.ndarray) -> Cell:
        """The cells of the assigned starts of these ranks, by age within their lane."""
        ranks, assigned = rank + NEAR, self.assigned[lane]
        owner = self._assigned_place(np.tile(lane, len(NEAR)), np.clip(ranks, 0, assigned - 1).reshape(-1))
        owner = owner.reshape(ranks.shape)
        cut = (owner[:-1] + owner[1:]) // 2 + 1  # what is as near to both belongs to the older one
        cut = np.where(ranks[:-1] < 0, self.begin[lane], np.where(ranks[1:] >= assigned, self.end[lane], cut))
        size = cut[1:] - cut[:-1]  # 0 of those beyond the ends
        own = self.priority[self._slot(lane, owner[1:-1])]
        return Cell(owner[2], cut[1], size[1], own[1], (size * own).sum(0) / size.sum(0))

    def _rank(self, lane: np.ndarray, place: np.ndarray) -> np.ndarray:
        """How many assigned starts of its lane are older than each place."""
        slot, oldest = self._slot(lane, place), self._slot(lane, self.begin[lane])
        between = self.marks.before(slot) - self.marks.before(oldest)
        return between.astype(np.int64) + np.where(slot < oldest, self.assigned[lane], 0)

    def _assigned_place(self, lane: np.ndarray, rank: np.ndarray) -> np.ndarray:
        """The place of the assigned start of each rank."""
        first = self.assigned.cumsum() - self.assigned
        oldest = self._slot(lane, self.begin[lane])
        skipped = self.marks.before(oldest).astype(np.int64) - first[lane]  # at the front of the array, but newer
        slot, _ = self.marks.find(first[lane] + (skipped + rank) % self.assigned[lane] + 0.5)
        return self.begin[lane] + (slot - oldest) % self.slots

    def _rank_of_owner(self, lane: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Of the cell in which each place is, in lanes that have one."""
        rank, assigned = self._rank(lane, place), self.assigned[lane]
        older, newer = (self._assigned_place(lane, np.clip(rank + step, 0, assigned - 1)) for step in (-1, 0))
        nearer_to_older = place <= (older + newer) // 2
        return np.where((rank == assigned) | ((rank > 0) & nearer_to_older), rank - 1, rank)

    def _from_cells(self, mass: np.ndarray) -> Starts:
        """Lanes and places at which the running sum of all priorities passes each `mass`, the owner's first of a cell."""
        slot, rest = self.cells.find(mass)
        lane = slot // self.slots
        owner = self.begin[lane] + (slot - self.begin[lane]) % self.slots
        cell = self._cells(lane, self._rank(lane, owner))
        other = np.minimum(((rest - cell.own) / cell.others).astype(np.int64), cell.size - 2)
        place = cell.begin + other
        place += place >= owner
        return lane, np.where((rest < cell.own) | (cell.size == 1), owner, place)


def _divided(parts: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In which of `parts` [k] of a whole, side by side, each `share` [n] of it lies, and how far inside, from 0 to 1."""
    ends = parts.cumsum()
    at = np.minimum(share * ends[-1], np.nextafter(ends[-1], 0))
    part = ends.searchsorted(at, side="right")
    return part, (at - ends[part] + parts[part]) / parts[part]
