"""Any content of files and command lines ends with a documented status and at most one line."""

import sys

import pytest

from tests.config.mutations import KINDS, mutated, run, wrong

INPUTS = 300
AT_ONCE = 30
QUICK = 120  # the inputs before this one are not among the slow tests
CHUNKS = [pytest.param(first, marks=[] if first < QUICK else [pytest.mark.slow]) for first in range(0, INPUTS, AT_ONCE)]


@pytest.fixture(autouse=True)
def _without_bytecode_and_curves(monkeypatch):
    """Disable bytecode, which is stale for files of equal size written within a second, and the slow curves."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


@pytest.mark.parametrize("first", CHUNKS)
def test_every_mutated_input_ends_as_documented(first):
    found = {}
    for seed in range(first, first + AT_ONCE):
        given = mutated(seed)
        if trouble := wrong(*run(given)):
            found[seed, given.kind] = trouble
    assert found == {}


def test_every_kind_of_mutation_is_drawn():
    kinds = {kind.__name__.removeprefix("_") for kind in KINDS}
    assert {mutated(seed).kind for seed in range(INPUTS)} == kinds


def test_the_input_without_mutations_trains():
    given = mutated(0)
    for variant in ("default", "sac", "reactor", "wide"):
        whole = type(given)("whole", arguments=["-c", variant])
        assert run(whole) == (0, "")
