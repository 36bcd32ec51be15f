"""What does not fit into memory is refused before it is allocated."""

from dataclasses import replace

import pytest

from algorithm.agents.agent import Schedule
from algorithm.experiment import memory
from algorithm.experiment.errors import UserError
from algorithm.experiment.memory import Budget, available, check_batch
from algorithm.replay import Size


def test_the_memory_of_this_machine_is_known_where_it_says_so():
    free = available()
    assert free is None or 10**7 < free < 10**15


def test_available_memory_is_what_linux_calls_so(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemFree: 5 kB\nMemAvailable:   400 kB\n")
    assert available() == 400 * 1024


def test_sizes_are_told_and_added_up(monkeypatch):
    said = []
    monkeypatch.setattr(memory, "available", lambda: 10_000_000)
    budget = Budget(said.append)
    budget.plan("agent", Size(10_000, 600_000))
    assert said == ["replay: 10,000 rows of 60 bytes are 0.6 MB"]
    with pytest.raises(UserError, match=r"capacity: 100,000 rows.*9\.5 MB.*but 9\.4 MB.*at most 98,947 rows fit"):
        budget.plan("other", Size(100_000, 9_500_000))
    assert said[1].startswith("replay of other:")


def test_a_batch_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 1_000_000)
    schedule = Schedule(8, 10, 100, 4, "fixed", 32)
    check_batch(schedule, Size(1000, 1_000_000))
    with pytest.raises(UserError, match=r"batch_size: 101 windows of 10 rows are 1\.0 MB, but 1\.0 MB of memory are"):
        check_batch(replace(schedule, batch_size=101), Size(1000, 1_000_000))
    check_batch(replace(schedule, batch_size=101, replay_ratio=0), Size(1000, 1_000_000))


def test_nothing_is_refused_where_the_memory_is_unknown(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: None)
    said = []
    Budget(said.append).plan("agent", Size(10**12, 10**15))
    assert len(said) == 1
