"""Exchanges between members: which checkpoints are copied, which weights are drawn, which settings change."""

from __future__ import annotations

import numpy as np

from algorithm.population.evolution import SettingSpace, SettingSpaces
from algorithm.population.exchange import CopyBest, DrawWeights
from algorithm.population.lineage import LineageRow

RATE = SettingSpaces(by_path={"rate": SettingSpace(default=1.0)})
KIND = SettingSpaces(by_path={"kind": SettingSpace(default="a", choices=("a", "b"))})


def make_rows(*returns: float | None, kinds: str = "", interval: int = 1) -> list[LineageRow]:
    """Return the rows of an interval; the settings of a member are its letter in `kinds`, or a rate."""
    return [
        LineageRow(
            interval=interval,
            member=number,
            parent=number,
            env_steps=100 * interval,
            settings={"kind": kinds[number - 1]} if kinds else {"rate": 10.0**number},
            mean_return=mean,
        )
        for number, mean in enumerate(returns, 1)
    ]


class Clock:
    """A clock whose time is set by a test."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def make_evolver(clock: Clock, spaces: SettingSpaces = RATE, **changes) -> DrawWeights:
    values = {"length": 3, "best": 0.5, "min_length": 2, "minutes": 3.0, "remove_worst": -1, **changes}
    return DrawWeights(spaces=spaces, clock=clock, **values)


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def test_the_worst_member_copies_checkpoint_and_perturbed_settings_of_the_best():
    plan = CopyBest(RATE, 0.25, [1.2], 0.25).plan(make_rows(5.0, 1.0, 3.0, 4.0), rng())
    assert [member.parent for member in plan.members] == [1, 1, 3, 4]
    assert [member.settings["rate"] for member in plan.members] == [10.0, 12.0, 1000.0, 10000.0]
    assert plan.elites == ()


def test_the_same_generator_gives_the_same_plan():
    exchange = CopyBest(RATE, 0.5, [0.8, 1.2], 0.25)
    rows = make_rows(5.0, 1.0, 3.0, 4.0)
    assert exchange.plan(rows, rng()) == exchange.plan(rows, rng())


def test_weights_are_drawn_when_every_member_has_enough_returns():
    evolver = make_evolver(Clock())
    rows = make_rows(1.0, 5.0, 3.0, 4.0)
    plans = [evolver.plan(rows, rng()) for _ in range(6)]
    assert [list(plan.elites) for plan in plans] == [[], [], [2, 4], [], [], [2, 4]]  # the returns are cleared
    assert all([member.parent for member in plan.members] == [1, 2, 3, 4] for plan in plans)


def test_fewer_returns_are_enough_after_the_time():
    clock = Clock()
    evolver = make_evolver(clock)
    rows = make_rows(1.0, 5.0, 3.0, 4.0)
    evolver.plan(rows, rng())
    clock.seconds = 180.0
    assert list(evolver.plan(rows, rng()).elites) == [2, 4]
    evolver.plan(rows, rng())
    clock.seconds = 350.0  # 170 seconds after the draw
    assert list(evolver.plan(rows, rng()).elites) == []


def test_a_member_without_returns_blocks_the_draw_and_copies_an_elite():
    clock = Clock()
    clock.seconds = 1000.0
    evolver = make_evolver(clock, min_length=1)
    clock.seconds = 2000.0
    plan = evolver.plan(make_rows(None, 5.0, 3.0, 4.0), rng())
    assert not plan.elites
    assert plan.members[0].parent in (2, 4) and [member.parent for member in plan.members[1:]] == [2, 3, 4]


def test_a_member_that_failed_starts_its_returns_again():
    evolver = make_evolver(Clock())
    for returns in ((1.0, 5.0), (1.0, 5.0), (None, 5.0), (1.0, 5.0), (1.0, 5.0)):
        assert not evolver.plan(make_rows(*returns), rng()).elites
    assert evolver.plan(make_rows(1.0, 5.0), rng()).elites


def test_choices_of_elites_become_more_probable():
    evolver = make_evolver(Clock(), KIND, length=1, min_length=1)
    for _ in range(3):
        evolver.plan(make_rows(1.0, 5.0, 3.0, 4.0, kinds="abab"), rng())
    assert evolver.state()["counts"] == {"kind": [1, 7]}


def test_the_least_selected_member_starts_with_other_settings():
    evolver = make_evolver(Clock(), KIND, length=1, min_length=1, remove_worst=2)
    plans = [evolver.plan(make_rows(1.0, 5.0, 4.0, kinds="acc"), rng()) for _ in range(3)]
    assert [plan.members[0].settings["kind"] for plan in plans[:2]] == ["a", "a"]
    assert plans[2].members[0].settings["kind"] in "ab" and evolver.state()["selected"] == [0, 1, 1]


def test_state_of_the_evolver():
    clock = Clock()
    evolver, restored = make_evolver(clock, KIND), make_evolver(clock, KIND)
    rows = make_rows(1.0, 5.0, 3.0, 4.0, kinds="abab")
    evolver.plan(rows, rng())
    clock.seconds = 60.0
    restored.restore(evolver.state())
    clock.seconds = 181.0
    assert restored.plan(rows, rng()) == evolver.plan(rows, rng())
    assert restored.state() == evolver.state() and evolver.state()["selected"] == [0, 1, 0, 1]
