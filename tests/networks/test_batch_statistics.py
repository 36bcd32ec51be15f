"""Blocks of batch statistics: which passes use them, and which rows of an input count."""

from __future__ import annotations

import pytest
import torch

from algorithm.networks import batch_statistics
from algorithm.networks.normalization import BatchNorm
from tests.networks.test_normalization import perturbed, rows

SIZE = 5


def test_valid_rows_are_computed_once_and_only_for_a_batch_norm():
    calls = []

    def select():
        calls.append(1)
        return torch.tensor([True, False, True])

    layer = perturbed(BatchNorm(SIZE))
    with batch_statistics(select):
        torch.nn.Linear(SIZE, 2)(rows(3))
        assert not calls
        with torch.inference_mode():
            y = layer(rows(3))
        layer(rows(3)).sum().backward()
        layer(rows(1, 3))
    assert len(calls) == 1
    with batch_statistics(select()):
        torch.testing.assert_close(y.clone(), layer(rows(3)))


def test_blocks_nest_and_end_with_an_exception():
    layer, x, valid = perturbed(BatchNorm(SIZE)), rows(6), torch.ones(6, dtype=torch.bool)
    running = layer(x)
    with pytest.raises(ZeroDivisionError), batch_statistics(valid):
        batch = layer(x)
        with batch_statistics(None):
            torch.testing.assert_close(layer(x), running)
        torch.testing.assert_close(layer(x), batch)
        raise ZeroDivisionError
    assert not torch.allclose(batch, running)
    torch.testing.assert_close(layer(x), running)


def test_the_rows_of_an_input_are_found_by_its_shape():
    """All shapes of T rows and B columns, with more values for each row, and with fewer rows."""
    layer, valid = perturbed(BatchNorm(SIZE)), torch.tensor([[True, False, True], [True, True, False]])

    def normalize(x, mask):
        with batch_statistics(mask):
            return layer(x)

    x = rows(2, 3)
    expected = normalize(x, valid)
    torch.testing.assert_close(normalize(x.flatten(0, 1), valid), expected.flatten(0, 1))
    torch.testing.assert_close(normalize(x[:1], valid), normalize(x[0], valid[0]).unsqueeze(0))
    # Three values for each of the first row's columns, which are as many rows as `valid` has, but others.
    short = torch.tensor([[True, False], [True, True], [True, False]])
    torch.testing.assert_close(normalize(rows(3, 1, 2), short), normalize(rows(3, 1, 2), short[:1].expand(3, 1, 2)))
    torch.testing.assert_close(normalize(x, valid.flatten()), expected)
    tiled, many = rows(4, 2, 3), rows(2, 3, 4)
    torch.testing.assert_close(normalize(tiled, valid), normalize(tiled, valid.expand(4, 2, 3)))
    repeated = valid.unsqueeze(-1).expand(2, 3, 4)
    torch.testing.assert_close(normalize(many.flatten(0, 2), valid), normalize(many, repeated).flatten(0, 2))
    with pytest.raises(ValueError, match=r"rows \[3, 3\] does not fit batch statistics of rows \[2, 3\]"):
        normalize(rows(3, 3), valid)
