"""The coordination of a population, with members that only count."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import pytest

from algorithm.config.loader import resolve
from algorithm.errors import UserError
from algorithm.population import runner
from algorithm.population.exchange import plan_copies
from algorithm.population.members import MemberFailed, MemberPlan, PopulationFolder, PopulationState, find_best
from algorithm.population.runner import Population
from algorithm.population.setting_spaces import SettingSpace, SettingSpaces
from algorithm.runs.faults import describe_end
from algorithm.runs.lineage import LineageRow
from tests.population.test_exchange import list_parents

SPACES = SettingSpaces(by_path={"rate": SettingSpace(default=1.0)})


class FakeFleet:
    """Members that return their rate, changed by a function, unless a failure is planned for the member."""

    def __init__(self, failures: Sequence[int] = (), goal=None, is_final: bool = False, change=lambda row: row):
        self.failures, self.goal, self.is_final, self.change = list(failures), goal, is_final, change
        self.tasks: list[LineageRow] = []

    def train(self, tasks: Sequence[LineageRow]) -> Iterator[tuple[LineageRow, LineageRow | MemberFailed]]:
        for task in tasks:
            self.tasks.append(task)
            if task.member in self.failures:
                self.failures.remove(task.member)
                yield task, MemberFailed("its process crashed with signal SIGKILL", self.is_final)
                continue
            rate = task.settings["rate"]
            reached = self.goal is not None and rate >= self.goal
            yield task, self.change(replace(task, mean_return=rate, goal_reached=reached, goal=self.goal))


def make_population(path, fleet, max_step: int = 300, lines=None, goal=None):
    folder = PopulationFolder(path, 4)
    if not folder.state_path.exists():
        plans = [MemberPlan(parent=k, settings={"rate": float(k)}) for k in range(1, 5)]
        folder.write_state(PopulationState(interval=1, members=plans))
    config = {"interval": 100, "max_restarts": 1, "exchange_fraction": 0.25}
    config |= {"perturb_factors": [1.5], "resample_probability": 0.0}
    tree = {"base_config": {"max_step": max_step, "seed": 0}, "population_config": config}
    settings = resolve([("test", tree if goal is None else {**tree, "goal": {"return": goal}})])
    log = (lines if lines is not None else []).append
    return Population(folder, settings, partial(plan_copies, SPACES, settings.population), fleet.train, log)


@pytest.fixture(autouse=True)
def transfers(monkeypatch) -> list[PopulationState]:
    """Transfer no checkpoints. Return a list that receives the states with which they would be."""
    states: list[PopulationState] = []
    monkeypatch.setattr(runner, "transfer_checkpoints", lambda folder, base, log, state: states.append(state))
    return states


def read_rows(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "lineage.jsonl").read_text().splitlines()]


def test_lineage(tmp_path):
    lines: list[str] = []
    make_population(tmp_path, FakeFleet(), lines=lines).run()
    rows = read_rows(tmp_path)
    assert [(row["interval"], row["member"], row["parent"], row["env_steps"]) for row in rows] == [
        *[(1, k, k, 100) for k in range(1, 5)],
        *[(2, k, 4 if k == 1 else k, 200) for k in range(1, 5)],
        *[(3, k, 1 if k == 2 else k, 300) for k in range(1, 5)],
    ]
    assert [row["settings"]["rate"] for row in rows[4:]] == [6.0, 2.0, 3.0, 4.0, 6.0, 9.0, 3.0, 4.0]
    assert [row["return"] for row in rows] == [row["settings"]["rate"] for row in rows]
    assert lines[:2] == [
        "interval 1, 100 env steps: returns 4: 4, 3: 3, 2: 2, 1: 1",
        "member 1 copies member 4: rate=6.0",
    ]


@pytest.mark.parametrize("failures, is_final", [([4, 4], False), ([4], True)])
def test_a_member_that_fails_is_replaced_by_a_copy(tmp_path, transfers, failures, is_final):
    make_population(tmp_path, FakeFleet(failures, is_final=is_final), max_step=200).run()
    assert [(list_parents(state), state.interval) for state in transfers] == [([1, 2, 3, 3], 2)]
    assert read_rows(tmp_path)[3]["return"] is None and read_rows(tmp_path)[7]["parent"] == 3


@pytest.mark.parametrize("value", [float("-inf"), float("nan")])
def test_a_return_that_is_not_finite_counts_as_a_failure(tmp_path, value):
    fleet = FakeFleet(change=lambda row: replace(row, mean_return=value) if row.member == 4 else row)
    make_population(tmp_path, fleet, max_step=200).run()
    rows = read_rows(tmp_path)
    assert [row["return"] for row in rows[:4]] == [1.0, 2.0, 3.0, None]
    assert rows[7]["parent"] == 3


def test_all_members_fail(tmp_path):
    with pytest.raises(MemberFailed) as failure:
        make_population(tmp_path, FakeFleet(failures=[1, 2, 3, 4] * 2)).run()
    message = "all members of the population have failed; the lines above contain the reasons"
    assert describe_end(failure.value) == (1, message)


def test_an_interval_in_which_all_members_failed_is_repeated(tmp_path):
    make_population(tmp_path, FakeFleet(), max_step=100).run()
    with pytest.raises(MemberFailed):
        make_population(tmp_path, FakeFleet(failures=[1, 2, 3, 4] * 2), max_step=200).run()
    make_population(tmp_path, FakeFleet(), max_step=200).run()
    rows = read_rows(tmp_path)
    assert [(row["interval"], row["member"]) for row in rows] == [(i, k) for i in (1, 2) for k in range(1, 5)]
    assert all(row["return"] is not None for row in rows)


def test_a_goal_that_does_not_count_does_not_end_the_interval(tmp_path):
    """The goal was reached, but the evaluation at the end of the interval misses it."""
    make_population(tmp_path, fleet := FakeFleet(goal=1.0), max_step=200).run()
    assert [task.member for task in fleet.tasks] == [1, 2, 3, 4, 1]


@pytest.mark.parametrize("interrupted_at", range(12))
def test_an_interrupted_population_continues_with_the_same_lineage(tmp_path, interrupted_at):
    def interrupt(row):
        if len(interrupted.tasks) > interrupted_at:
            raise KeyboardInterrupt
        return row

    interrupted = FakeFleet(change=interrupt)
    make_population(tmp_path, FakeFleet()).run()
    expected = read_rows(tmp_path)
    (other := tmp_path / "other").mkdir()
    with pytest.raises(KeyboardInterrupt):
        make_population(other, interrupted).run()
    make_population(other, fleet := FakeFleet()).run()
    assert read_rows(other) == expected and len(fleet.tasks) == 12 - interrupted_at


def test_an_interrupted_exchange_is_repeated(tmp_path, transfers, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(runner, "transfer_checkpoints", Mock(side_effect=KeyboardInterrupt))
        make_population(tmp_path, FakeFleet()).run()
    population = make_population(tmp_path, FakeFleet(), max_step=200)
    population.plan = None  # the plan is not made again, since it may depend on the time
    population.run()
    assert [(state.interval, list_parents(state)) for state in transfers] == [(2, [4, 2, 3, 4])]
    assert population.folder.read_state().is_transferred


def test_a_resumed_population_with_more_env_steps_continues_the_interval(tmp_path):
    short = FakeFleet(change=lambda row: replace(row, env_steps=min(row.env_steps, 150)))
    make_population(tmp_path, short, max_step=150).run()
    assert [row["env_steps"] for row in read_rows(tmp_path)] == [100] * 4 + [150] * 4
    make_population(tmp_path, fleet := FakeFleet(), max_step=200).run()
    assert [task.env_steps for task in fleet.tasks] == [200] * 4
    assert [row["env_steps"] for row in read_rows(tmp_path)] == [100] * 4 + [200] * 4


def test_a_population_without_its_record_cannot_continue(tmp_path):
    with pytest.raises(UserError, match=r"population.json is missing: train a new population"):
        PopulationFolder(tmp_path, 4).read_state()


def test_the_best_member():
    first = LineageRow(interval=1, member=1, parent=1, env_steps=1, settings={}, mean_return=None)

    def make_row(member, mean_return, reached=False, interval=1):
        return replace(first, member=member, mean_return=mean_return, goal_reached=reached, interval=interval)

    assert find_best([]) is None and find_best([make_row(1, None)]) is None
    assert find_best([make_row(1, -3.0), make_row(2, None), make_row(3, -2.0)]).member == 3
    assert find_best([make_row(1, 9.0), make_row(2, 8.0, reached=True)]).member == 2
    assert find_best([make_row(1, 9.0), make_row(2, 9.0, interval=2), make_row(3, 8.0, interval=3)]).member == 2
