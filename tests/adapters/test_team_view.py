"""The observations and actions of an agent's team, for a centralised critic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from algorithm.adapters.team_view import TeamView, _Members
from algorithm.adapters.wrappers import SharedAgents
from algorithm.errors import UserError
from algorithm.specs import ActionSpec, ObsSpec, Role
from tests.adapters.configs import config
from tests.adapters.contract import act, make_contract
from tests.doubles import Row, make_step
from tests.fakes import Pair, Skipping

pytest.importorskip("pettingzoo")

from gymnasium import spaces

from algorithm.adapters.pettingzoo import PettingZooAdapter
from tests.adapters.parallel import Race

FOUR = spaces.Discrete(4)


class Crew(Race):
    """A Race in which all agents but `ant` have the same actions."""

    def action_space(self, agent):
        return FOUR


def team_of(args, n_envs=1, size=3, limit=None):
    """Return a Crew whose agents `bee` and `late` share an agent, as a team."""
    adapter = SharedAgents(PettingZooAdapter(config(Crew, n_envs, args, limit)), {"late": "bee"}, {})
    return TeamView(adapter, size)


TestPair = make_contract(lambda: TeamView(SharedAgents(Pair(config("", 3)), {"right": "left"}, {}), 2))
TestRace = make_contract(lambda: team_of({"late": 4}, 2))


def rows(step):
    """Return [(lane, alive, own steps, steps of the other, present, previous action of the other)] of a Step."""
    obs = step.obs
    return [
        (
            int(step.lane[row]),
            bool(step.alive[row]),
            obs["obs"][row, 0],
            obs["team/obs"][row, 0, 0],
            obs["team/present"][row].tolist(),
            obs["team/action"][row, 0].tolist(),
        )
        for row in range(len(step.lane))
    ]


def test_a_member_observes_the_others_that_are_present_and_their_last_actions():
    adapter = team_of({"ant": 9, "bee": 6, "late": 4, "how": "none"})
    specs = adapter.roles["bee"].obs_specs
    assert {name: spec.shape for name, spec in specs.items()} == {
        "obs": (2,),
        "team/obs": (2, 2),
        "team/present": (3,),
        "team/action": (2, 4),
    }
    steps, seen = adapter.reset(0), []
    for t in range(7):
        seen.append(rows(steps["bee"]))
        steps = act(adapter, steps, t % 4)
    alone, none = [1, 0, 0], [0, 0, 0, 0]
    assert seen[0] == [(0, True, 0, 0, alone, none)]
    # `late` joins after two steps, and both observe the other one.
    assert seen[2] == [(0, True, 2, 2, [1, 1, 0], none), (1, True, 2, 2, [1, 1, 0], none)]
    assert seen[3] == [(0, True, 3, 3, [1, 1, 0], [0, 0, 1, 0]), (1, True, 3, 3, [1, 1, 0], [0, 0, 1, 0])]
    # Its episode terminates, and that of the team continues: its last row has the team without it.
    assert seen[4] == [(0, True, 4, 0, alone, [0, 0, 0, 1]), (1, True, 4, 4, [0, 1, 0], [0, 0, 0, 1])]
    assert seen[6] == [(0, False, 6, 0, alone, none)]  # the end of the team's episode is a termination


def test_a_termination_of_the_whole_team_remains_one():
    adapter = team_of({"ant": 9, "bee": 4, "late": 4})
    steps = adapter.reset(0)
    for _ in range(4):
        steps = act(adapter, steps, 0)
    assert steps["bee"].is_bootstrap_row.all() and not steps["bee"].alive.any()
    np.testing.assert_array_equal(steps["bee"].obs["team/present"], [[1, 0, 0]] * 2)


def test_a_reset_ends_the_episodes_of_all_members():
    adapter = team_of({"ant": 9, "bee": 6, "late": 6, "how": "none"})
    steps = adapter.reset(0)
    for _ in range(4):
        steps = act(adapter, steps, 0)
    assert steps["bee"].obs["team/present"][0].tolist() == [1, 1, 0]
    assert adapter.reset(1)["bee"].obs["team/present"].tolist() == [[1, 0, 0]]  # `late` has not joined yet


def test_a_team_has_ended_although_a_member_begins_again_in_the_same_tick():
    members = _Members("r", Role(2, {"obs": ObsSpec((1,))}, ActionSpec(branches=(2,))), 2)
    members.grow(2)

    def see(*rows: Row) -> list[bool]:
        step = members(replace(make_step(*rows), group=np.zeros(len(rows), np.int64)))
        members.record_actions(step.lane, np.zeros((len(rows), 1), np.float32))
        return step.alive.tolist()

    see(Row(0, obs=1, first=True), Row(1, obs=1, first=True))
    last = {"is_bootstrap_row": True, "alive": False}
    assert see(Row(0, obs=5, first=True, alive=False), Row(1, obs=2, **last)) == [False, False]
    see(Row(1, obs=1, first=True))
    assert see(Row(0, obs=3, **last), Row(1, obs=4)) == [True, True]  # the team continues without it


def test_the_teams_of_environments_are_separate():
    adapter = team_of({"late": 9}, n_envs=2)
    steps = adapter.reset(0)
    for _ in range(3):
        steps = act(adapter, steps, 0)
    own, others = steps["bee"].obs["obs"][:, 1], steps["bee"].obs["team/obs"][:, 0, 1]  # seeds of the environments
    np.testing.assert_array_equal(own, others)
    assert len(set(own.tolist())) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: team_of({"late": 9}, size=2), None),
        (
            lambda: TeamView(SharedAgents(Pair(config("", 2)), {"right": "left"}, {}), 1),
            "team_size is 1; .* left has 2",
        ),
        (lambda: TeamView(Skipping(config("", 2)), 2), "needs teams: the agents of agent have no groups"),
    ],
)
def test_too_large_teams_and_simulators_without_teams_are_an_error(make, message):
    if message is None:
        make().reset(0)
        return
    with pytest.raises(UserError, match=message):
        make().reset(0)
