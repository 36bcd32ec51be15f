"""Roles that share an agent are lanes of one role."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from algorithm.adapters.adapter import UnsupportedEnvironment
from algorithm.adapters.probe import ProbeAdapter
from algorithm.adapters.wrappers import SharedAgents
from algorithm.specs import ObsSpec
from tests.adapters.configs import config
from tests.adapters.contract import make_contract
from tests.doubles import Row, ScriptedAdapter, make_step
from tests.fakes import Skipping, TwoRoles

TestNoSharing = make_contract(lambda: SharedAgents(TwoRoles(config("", 2, {})), {}, {}))
TestAnotherName = make_contract(lambda: SharedAgents(Skipping(config("", 3, {})), {"agent": "player"}, {}))
TestProbe = make_contract(lambda: SharedAgents(ProbeAdapter(config("chain", 3, {})), {}, {}))


class Game(ScriptedAdapter):
    """An adapter of two teams that share an agent."""

    shared_agents = {"Red-team1": "Red", "Red": "Red"}


def game(*ticks, **lanes):
    return Game(ticks, **{name.replace("_", "-"): count for name, count in lanes.items()})


def test_teams_are_lanes_of_one_role_and_each_gets_its_own_actions():
    inner = game(
        {
            "Red-team1": make_step(Row(0, 10, first=True), Row(1, 11, first=True)),
            "Red": make_step(Row(0, 0, first=True)),
        },
        {"Red-team1": make_step(Row(1, 12, reward=-1.0))},
        {
            "Red": make_step(Row(0, 1, reward=1.0, is_bootstrap_row=True)),
            "Red-team1": make_step(Row(0, 13, reward=-1.0)),
        },
        {"Red": make_step(Row(0, 2, first=True))},
        Red=1,
        Red_team1=2,
    )
    adapter = SharedAgents(inner, {}, {})
    ticked = [adapter.reset(0)]
    assert adapter.roles == {"Red": replace(inner.roles["Red"], lanes=3, teams=("Red", "Red-team1", "Red-team1"))}
    for actions in ([5, 6, 7], [8], [9, 4]):
        ticked.append(adapter.step({"Red": np.array(actions, np.float32)[:, None]}))
    assert [set(steps) for steps in ticked] == [{"Red"}] * 4
    found = [(step.lane.tolist(), step.obs["obs"].ravel().tolist()) for (step,) in map(dict.values, ticked)]
    assert found == [([0, 1, 2], [0, 10, 11]), ([2], [12]), ([0, 1], [1, 13]), ([0], [2])]
    assert [step["Red"].reward.tolist() for step in ticked] == [[0, 0, 0], [-1], [1, -1], [0]]
    assert ticked[2]["Red"].is_bootstrap_row.tolist() == [True, False]
    executed = [{role: action.ravel().tolist() for role, action in one.items()} for one in inner.actions]
    assert executed == [{"Red": [5], "Red-team1": [6, 7]}, {"Red-team1": [8]}, {"Red": [9], "Red-team1": [4]}]


def test_settings_separate_teams_and_merge_others():
    inner = game({"Red": make_step(Row(0, 0, first=True))}, Red=1, Red_team1=1, Blue=1)
    adapter = SharedAgents(inner, {"Red-team1": "Red-team1", "Blue": "Red"}, {})
    assert {name: role.teams for name, role in adapter.roles.items()} == {"Red-team1": (), "Red": ("Blue", "Red")}


def test_a_single_team_keeps_its_name_and_its_agent_has_the_shared_name():
    adapter = SharedAgents(game({"Red-team1": make_step(Row(0, 0, first=True))}, Red_team1=1), {}, {})
    assert adapter.roles["Red"].count_lanes_by_team("Red") == {"Red-team1": 1}
    assert set(adapter.reset(0)) == {"Red"}


def test_known_lanes_are_kept_for_their_teams():
    inner = game(
        {"Red-team1": make_step(Row(1, 0, first=True))}, {"Red": make_step(Row(1, 5, first=True))}, Red_team1=2
    )
    adapter = SharedAgents(inner, {}, {"Red": ["Red", "Red-team1", "Red", "Red-team1"]})
    assert adapter.roles["Red"].lanes == 4
    assert adapter.reset(0)["Red"].lane.tolist() == [3]
    inner.roles["Red"] = inner.roles["Red-team1"]  # appears later
    assert adapter.step({"Red": np.zeros((1, 1), np.float32)})["Red"].lane.tolist() == [2]
    assert adapter.roles["Red"].teams == ("Red", "Red-team1", "Red", "Red-team1")


def test_lanes_of_a_later_or_growing_team_are_appended():
    inner = game(
        {"Red": make_step(Row(0, 0, first=True))},
        {"Red": make_step(Row(0, 1)), "Red-team1": make_step(Row(0, 10, first=True), Row(1, 11, first=True))},
        {"Red": make_step(Row(0, 2), Row(1, 5, first=True)), "Red-team1": make_step(Row(1, 12))},
        {},
        Red=1,
    )
    adapter = SharedAgents(inner, {}, {})
    assert adapter.reset(0)["Red"].lane.tolist() == [0]
    inner.roles["Red-team1"] = replace(inner.roles["Red"], lanes=2)
    assert adapter.step({"Red": np.zeros((1, 1), np.float32)})["Red"].lane.tolist() == [0, 1, 2]
    assert adapter.roles["Red"].teams == ("Red", "Red-team1", "Red-team1")
    step = adapter.step({"Red": np.array([[1], [2], [3]], np.float32)})["Red"]
    assert adapter.roles["Red"].teams == ("Red", "Red-team1", "Red-team1", "Red")
    assert (step.lane.tolist(), step.obs["obs"].ravel().tolist()) == ([0, 2, 3], [2, 12, 5])
    adapter.step({"Red": np.array([[4], [5], [6]], np.float32)})
    assert {role: action.ravel().tolist() for role, action in inner.actions[-1].items()} == {
        "Red": [4, 6],
        "Red-team1": [5],
    }


def test_teams_with_different_specs_cannot_share_an_agent():
    inner = game({}, Red=1, Red_team1=1)
    inner.roles["Red-team1"] = replace(inner.roles["Red-team1"], obs_specs={"obs": ObsSpec((2,))})
    with pytest.raises(UnsupportedEnvironment, match=r"share the agent 'Red', but .*ma_config\.Red-team1\.agent="):
        SharedAgents(inner, {}, {})


def test_a_restored_state_continues_the_same_episodes():
    adapters = [SharedAgents(ProbeAdapter(config("chain", 2, {})), {"agent": "player"}, {}) for _ in range(2)]
    steps = adapters[0].reset(0)
    action = {"player": np.ones((2, 1), np.float32)}
    steps = adapters[0].step(action)
    adapters[1].restore(adapters[0].state())
    for adapter in adapters:
        steps = adapter.step(action)
        assert steps["player"].obs["obs"].tolist() == [[0, 0, 1]] * 2
