from __future__ import annotations

import numpy as np
import pytest

from algorithm.replay.sequences import list_numbers, locate_nth


def test_numbers_are_listed_by_lane():
    lane, number = list_numbers(np.array([3, 7, 0, -2]), np.array([5, 6, 0, -1]))
    assert lane.tolist() == [0, 0, 0, 2, 3, 3]
    assert number.tolist() == [3, 4, 5, 0, -2, -1]


@pytest.mark.parametrize("count", [[3], [0, 2, 0, 1], [1, 1, 0]])
def test_items_are_located_by_number(count):
    lane, which = locate_nth(np.array(count), np.arange(sum(count)))
    assert list(zip(lane, which, strict=True)) == [(k, i) for k, each in enumerate(count) for i in range(each)]
