from __future__ import annotations

import numpy as np
import pytest

from algorithm.replay.sequences import list_numbers, locate_nth
from tests.doubles import EncodedLanes
from tests.replay.samplers import PRIORITIZED, replay_of


def test_numbers_are_listed_by_lane():
    lane, number = list_numbers(np.array([3, 7, 0, -2]), np.array([5, 6, 0, -1]))
    assert lane.tolist() == [0, 0, 0, 2, 3, 3]
    assert number.tolist() == [3, 4, 5, 0, -2, -1]


@pytest.mark.parametrize("count", [[3], [0, 2, 0, 1], [1, 1, 0]])
def test_items_are_located_by_number(count):
    lane, which = locate_nth(np.array(count), np.arange(sum(count)))
    assert list(zip(lane, which, strict=True)) == [(k, i) for k, each in enumerate(count) for i in range(each)]


@pytest.mark.parametrize("valid_row", range(10))
def test_a_sequence_is_drawn_if_one_of_its_learned_rows_is_valid(valid_row):
    """Sequences start at columns of 10 rows; of their 5 rows the first 2 are burn-in."""
    replay = replay_of(PRIORITIZED, chunk=10, length=3, burn_in=2, stored_state_size=2)
    rollout = EncodedLanes(3, 10).rollout(0)
    rollout.first[:], rollout.alive[:] = True, True  # the last row of an episode that was truncated is invalid
    rollout.first[valid_row + 1] = False
    replay.add(rollout)
    assert (replay.sample(1) is not None) == (valid_row in (2, 3, 4))
