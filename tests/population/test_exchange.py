"""Exchanges between members: which checkpoints are copied, which weights are drawn, which settings change."""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch

from algorithm.checkpointing.checkpoint import CheckpointError
from algorithm.config.loader import resolve
from algorithm.population import exchange
from algorithm.population.members import PopulationState
from algorithm.population.setting_spaces import SettingSpace, SettingSpaces
from algorithm.runs.lineage import LineageRow
from tests.checkpointing.test_checkpoint import Code

RATE = SettingSpaces(by_path={"rate": SettingSpace(default=1.0)})
KIND = SettingSpaces(by_path={"kind": SettingSpace(default="a", choices=("a", "b"))})


def make_config(**changes):
    return resolve([("test", {"population_config": changes})]).population


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


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> SimpleNamespace:
    """Replace the clock of exchanges by one whose time, `seconds`, a test sets."""
    clock = SimpleNamespace(seconds=0.0, monotonic=lambda: clock.seconds)
    monkeypatch.setattr(exchange, "time", clock)
    return clock


def make_evolver(
    spaces: SettingSpaces = RATE, length=3, best=0.5, min_length=2, worst=-1, state=MappingProxyType({})
) -> exchange.DrawWeights:
    config = make_config(
        evolver_enabled=True,
        evolver_cem_length=length,
        evolver_cem_best=best,
        evolver_cem_min_length=min_length,
        evolver_cem_time=3.0,
        evolver_remove_worst=worst,
    )
    return exchange.DrawWeights(spaces, config, state)


def make_state(returns, selected=None, seconds: float = 0.0) -> dict:
    """Return the returns since the last draw, the number of draws in which members were elites, and the time."""
    state = {"returns": list(map(list, returns)), "selected": selected or [0] * len(returns), "counts": {}}
    return state | {"seconds": seconds}


def make_rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def list_parents(state: PopulationState) -> list[int]:
    return [member.parent for member in state.members]


@pytest.mark.parametrize(
    ("returns", "ranked"),
    [
        ([1.0, None, 5.0, -3.0, None], [2, 0, 3, 1, 4]),  # failed members are last
        ([2.0, 3.0, 2.0, 3.0], [1, 3, 0, 2]),  # equal returns keep their order
        ([None, -100.0], [1, 0]),
    ],
)
def test_ranks(returns, ranked):
    assert exchange.rank_members(returns) == ranked


class TestParents:
    def test_the_worst_quarter_copies_the_best_quarter(self):
        returns = [float(member) for member in range(8)]
        seen = [exchange.choose_parents(returns, 0.25, make_rng(seed)) for seed in range(40)]
        assert all(parents[2:] == [2, 3, 4, 5, 6, 7] for parents in seen)
        assert {parents[0] for parents in seen} == {parents[1] for parents in seen} == {6, 7}

    @pytest.mark.parametrize(
        ("returns", "fraction", "parents"),
        [
            ([1.0, 2.0], 0.25, [1, 1]),
            ([3.0, 1.0, 2.0], 0.5, [0, 0, 2]),  # at most half of an odd number
            ([1.0, 2.0, 3.0], 0.0, [0, 1, 2]),
            ([1.0, None, 3.0], 0.0, [0, 2, 2]),  # without exchange, only failed members copy
            ([None, None, 1.0, None], 0.25, [2, 2, 2, 2]),  # a failed member is never copied
        ],
    )
    def test_known_answers(self, returns, fraction, parents):
        assert exchange.choose_parents(returns, fraction, make_rng()) == parents

    def test_a_failed_member_copies_one_of_the_best_quarter(self):
        returns = [None, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
        parents = exchange.choose_parents(returns, 0.25, make_rng())
        assert parents[0] in (6, 7) and parents[1] in (6, 7) and parents[2:] == [2, 3, 4, 5, 6, 7]


class TestDraws:
    @pytest.mark.parametrize(
        ("returns", "fraction", "min_length", "elites"),
        [
            ([[1.0], [5.0], [3.0], [4.0]], 0.5, 1, [1, 3]),
            ([[1.0, 9.0], [6.0], [0.0]], 0.5, 1, [1, 0]),  # ranked by their mean
            ([[1.0], [5.0], [3.0], [4.0]], 0.1, 1, [1, 3]),  # at least two
            ([[1.0, 1.0], [9.0], [2.0, 2.0], []], 0.5, 2, [2, 0]),  # with enough returns
            ([[1.0], []], 1.0, 1, [0]),
        ],
    )
    def test_elites(self, returns, fraction, min_length, elites):
        assert exchange.select_elites(returns, fraction, min_length) == elites

    @pytest.mark.parametrize(
        ("counts", "min_length", "minutes", "is_due"),
        [
            ([50, 50, -1], 2, 100.0, False),  # a member without returns blocks the step
            ([5, -1], 1, 100.0, False),
            ([49, 50], 2, 0.0, True),  # with the returns of this interval
            ([1, 48], 2, 3.0, True),
            ([1, 48], 2, 2.9, False),
            ([0, 48], 2, 3.0, False),
        ],
    )
    def test_when_a_draw_is_due(self, counts, min_length, minutes, is_due):
        state = make_state([[1.0] * count for count in counts], seconds=60 * minutes)
        evolver = make_evolver(length=50, min_length=min_length, state=state)
        rows = make_rows(*(None if count < 0 else 1.0 for count in counts))
        assert bool(evolver.plan(rows, make_rng()).elites) is is_due

    @pytest.mark.parametrize(
        ("selected", "threshold", "removed"),
        [([5, 5, 0, 4], 4, True), ([5, 5, 1, 4], 4, False), ([60, 60, 0, 40], -1, False)],  # then the mean is 4, 4.25
    )
    def test_the_least_selected_member(self, selected, threshold, removed):
        evolver = make_evolver(KIND, length=1, min_length=1, worst=threshold, state=make_state([[1.0]] * 4, selected))
        state = evolver.plan(make_rows(0.0, 0.0, 0.0, 0.0, kinds="cccc"), make_rng())
        assert ["c" not in member.settings["kind"] for member in state.members] == [False, False, removed, False]

    def test_fewer_returns_are_enough_after_the_time(self, clock):
        evolver, rows = make_evolver(), make_rows(1.0, 5.0, 3.0, 4.0)
        for seconds, elites in ((0.0, []), (180.0, [2, 4]), (180.0, []), (350.0, [])):  # 170 seconds after the draw
            clock.seconds = seconds
            assert evolver.plan(rows, make_rng()).elites == elites

    def test_a_member_without_returns_blocks_the_draw_and_copies_an_elite(self, clock):
        clock.seconds = 1000.0
        evolver = make_evolver(min_length=1)
        clock.seconds = 2000.0
        state = evolver.plan(make_rows(None, 5.0, 3.0, 4.0), make_rng())
        assert not state.elites and list_parents(state)[0] in (2, 4) and list_parents(state)[1:] == [2, 3, 4]

    def test_a_member_that_failed_starts_its_returns_again(self):
        evolver = make_evolver()
        for returns in ((1.0, 5.0), (1.0, 5.0), (None, 5.0), (1.0, 5.0), (1.0, 5.0)):
            assert not evolver.plan(make_rows(*returns), make_rng()).elites
        assert evolver.plan(make_rows(1.0, 5.0), make_rng()).elites

    def test_without_elites_failed_members_copy_the_best_one(self):
        for seed in range(8):
            state = make_evolver().plan(make_rows(1.0, 5.0, None, 3.0, None), make_rng(seed))
            assert state.elites == [] and list_parents(state) == [1, 2, 2, 4, 2]

    def test_choices_of_elites_become_more_probable(self):
        evolver = make_evolver(KIND, length=1, min_length=1)
        states = [evolver.plan(make_rows(1.0, 5.0, 3.0, 4.0, kinds="abab"), make_rng()) for _ in range(3)]
        assert states[-1].exchange["counts"] == {"kind": [1, 7]}

    def test_the_least_selected_member_starts_with_other_settings(self):
        evolver = make_evolver(KIND, length=1, min_length=1, worst=2)
        states = [evolver.plan(make_rows(1.0, 5.0, 4.0, kinds="acc"), make_rng()) for _ in range(3)]
        assert [state.members[0].settings["kind"] for state in states[:2]] == ["a", "a"]
        assert states[2].members[0].settings["kind"] in "ab" and states[2].exchange["selected"] == [0, 1, 1]

    def test_state_of_the_evolver(self, clock):
        evolver = make_evolver(KIND)
        rows = make_rows(1.0, 5.0, 3.0, 4.0, kinds="abab")
        clock.seconds = 60.0
        state = evolver.plan(rows, make_rng())
        assert state.exchange["seconds"] == 60
        restored = make_evolver(KIND, state=state.exchange)
        clock.seconds = 181.0
        plans = [each.plan(rows, make_rng()) for each in (evolver, restored)]
        assert plans[0] == plans[1] and plans[0].exchange["selected"] == [0, 1, 0, 1]


class FakeCheckpoint:
    """A checkpoint with one role, whose weights all have one value, but for the first, which is 0."""

    roles = ("agent",)

    def __init__(self, value: float):
        self.value = value

    def weights(self, role):
        if not np.isfinite(self.value):
            raise CheckpointError("weights.pt holds NaN or infinity")
        state = torch.full((2,), self.value)
        first = torch.tensor([0.0, self.value])
        return {"parameters": {"a": first, "b": state}, "target_networks": {"t": state}, "statistics": {"s": state}}


def fit(*values: float, log=print) -> exchange.WeightDistribution | None:
    return exchange.WeightDistribution.fit([FakeCheckpoint(value) for value in values], log)


def test_the_distribution_over_elites_without_a_damaged_one():
    lines: list[str] = []
    fitted = fit(float("nan"), 1.0, 2.0, log=lines.append)
    assert fitted is not None
    np.testing.assert_allclose(fitted.mean, [0.0, 1.5, 1.5, 1.5])
    np.testing.assert_allclose(fitted.std, [1e-4, 0.5, 0.5, 0.5])  # not below the lower limit
    assert lines == ["weights.pt holds NaN or infinity: this elite is skipped"]
    drawn = fitted.draw(np.random.default_rng(0))["agent"]
    assert drawn["statistics"]["s"].tolist() == [1.0, 1.0]  # those of the best elite that can be used
    assert "target_networks" not in drawn and [len(drawn["parameters"][name]) for name in "ab"] == [2, 2]
    assert fit(0.0, 8.0).std.max() == 1  # the upper limit


def test_draws():
    fitted = fit(0.0, 1.0)
    one, same, other = (fitted.draw(np.random.default_rng(seed))["agent"]["parameters"]["b"] for seed in (3, 3, 4))
    assert one.equal(same) and (one != other).all() and one.dtype == torch.float32
    many = exchange.WeightDistribution(
        mean=np.full(4000, 1.0), std=np.full(4000, 0.5), template={"agent": {"parameters": {"a": torch.zeros(4000)}}}
    ).draw(np.random.default_rng(0))["agent"]["parameters"]["a"]
    assert abs(many.mean() - 1.0) < 0.05 and abs(many.std() - 0.5) < 0.05


def test_one_elite_that_can_be_used_is_not_enough():
    assert fit(float("nan"), 1.0) is None


@pytest.mark.parametrize("harm", ["truncated", "no archive", "code"])
def test_a_file_that_cannot_be_used_is_no_distribution(harm, tmp_path):
    path = tmp_path / "distribution.pt"
    fit(1.0, 3.0).save(path, 4)
    assert exchange.WeightDistribution.load(path, 4).mean.tolist() == [0.0, 2.0, 2.0, 2.0]
    assert exchange.WeightDistribution.load(path, 3) is None
    if harm == "code":
        torch.save({"interval": 4, "mean": Code("executed")}, path)
    else:
        path.write_bytes(path.read_bytes()[:100] if harm == "truncated" else b"mean")
    assert exchange.WeightDistribution.load(path, 4) is None
    assert not (tmp_path / "executed").exists()
