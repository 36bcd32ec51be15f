"""Any content of files and command lines ends with a documented status and at most one line."""

import sys

import pytest

from tests.config.mutations import KINDS, Input, draw_input, find_fault, run

INPUTS = 300
AT_ONCE = 30
QUICK = 90  # the inputs before this one are not among the slow tests
CHUNKS = [pytest.param(first, marks=[] if first < QUICK else [pytest.mark.slow]) for first in range(0, INPUTS, AT_ONCE)]


@pytest.fixture(autouse=True)
def _without_bytecode_and_curves(monkeypatch):
    """Disable bytecode, which is stale for files of equal size written within a second, and the slow curves."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


@pytest.mark.parametrize("first", CHUNKS)
def test_every_mutated_input_ends_as_documented(first):
    faults = {}
    for seed in range(first, first + AT_ONCE):
        kind, given = draw_input(seed)
        if fault := find_fault(*run(given)):
            faults[seed, kind] = fault
    assert faults == {}


def test_every_kind_of_mutation_is_drawn():
    assert len({draw_input(seed)[0] for seed in range(QUICK)}) == len(set(KINDS))


@pytest.mark.parametrize("variant", ["default", "sac", "reactor", "wide"])
def test_the_input_without_mutations_trains(variant):
    assert run(Input(arguments=["-c", variant])) == (0, "")
