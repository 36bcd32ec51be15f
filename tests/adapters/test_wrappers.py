"""Wrappers: opened by first use, previous actions and rewards as observations, roles that share an agent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from algorithm.adapters.adapter import UnsupportedEnvironment
from algorithm.adapters.probe import ProbeAdapter
from algorithm.adapters.wrappers import OnDemand, PreviousActionReward, PreviousTracker, SharedAgents
from algorithm.specs import ActionSpec, ObsSpec
from tests.adapters.configs import config
from tests.adapters.contract import make_contract
from tests.doubles import Row, ScriptedAdapter, make_step
from tests.fakes import LATE, MORE, AnyAction, Growing, Skipping, TwoRoles

TestProbeOnDemand = make_contract(lambda: OnDemand(lambda: ProbeAdapter(config("chain", 3))))
TestLateRolesOnDemand = make_contract(lambda: OnDemand(lambda: TwoRoles(config("", 2))))


def test_the_adapter_is_opened_once_by_its_first_use():
    opened, inner = [], ProbeAdapter(config("chain"))
    adapter = OnDemand(lambda: opened.append(inner) or inner)
    adapter.close()
    assert opened == []
    adapter.reset(0)
    adapter.reset(1)
    assert opened == [inner] and adapter.roles is inner.roles


def test_a_start_error_is_raised_by_the_first_use():
    adapter = OnDemand(lambda: ProbeAdapter(config("unknown")))
    with pytest.raises(UnsupportedEnvironment, match="unknown"):
        adapter.reset(0)
    adapter.close()


BOTH = ("action", "reward")
NOTHING: dict = {}


TestPreviousOfProbe = make_contract(lambda: PreviousActionReward(ProbeAdapter(config("chain", 3)), BOTH))
TestPreviousOfSkippingLanes = make_contract(lambda: PreviousActionReward(Skipping(config("", 3)), BOTH))
TestPreviousOfLateRoles = make_contract(lambda: PreviousActionReward(TwoRoles(config("", 2)), BOTH))
TestPreviousOfAddedLanes = make_contract(lambda: PreviousActionReward(Growing(config("", 2)), BOTH))
TestPreviousHybridActions = make_contract(
    lambda: PreviousActionReward(AnyAction(config("", 2, {"continuous": 2, "branches": [3, 2]})), ["action"])
)


def test_each_lane_observes_its_last_action_and_reward_and_zeros_at_a_start():
    ticks = [
        make_step(Row(0, 0.0, first=True), Row(1, 0.0, first=True)),
        make_step(Row(1, 1.0, reward=2.5)),
        make_step(Row(0, 1.0, reward=-1.0), Row(1, 2.0, reward=0.5, is_bootstrap_row=True)),
        make_step(Row(0, 2.0, reward=3.0), Row(1, 0.0, first=True, reward=4.0, alive=False)),
    ]
    adapter = PreviousActionReward(ScriptedAdapter([{"agent": tick} for tick in ticks], agent=2), BOTH)
    steps = [adapter.reset(0)["agent"]]
    for actions in ([1, 0], [1], [0, 1]):
        steps.append(adapter.step({"agent": np.array(actions, np.float32)[:, None]})["agent"])
    assert [step.obs["previous_action"].tolist() for step in steps] == [
        [[0, 0], [0, 0]],
        [[1, 0]],
        [[0, 1], [0, 1]],
        [[1, 0], [0, 0]],
    ]
    assert [step.obs["previous_reward"].ravel().tolist() for step in steps] == [[0, 0], [2.5], [-1, 0.5], [3, 0]]
    assert all(set(step.obs) == {"obs", "previous_action", "previous_reward"} for step in steps)


def test_every_value_and_branch_of_an_action_is_observed():
    previous = PreviousTracker(["action"], 2, ActionSpec(2, (3, 2)))
    previous.record_action(np.array([1]), np.array([[0.5, -1, 2, 0]], np.float32))
    lanes = np.arange(2)
    obs = previous(lanes, lanes < 0, np.zeros(2, np.float32))
    assert obs["previous_action"].tolist() == [[0] * 7, [0.5, -1, 0, 0, 1, 1, 0]]
    assert list(obs) == ["previous_action"]


def test_a_late_role_observes_its_last_action():
    adapter = PreviousActionReward(TwoRoles(config("", 2)), BOTH)
    steps = adapter.reset(0)
    for _ in range(LATE + 1):
        steps = adapter.step({role: np.ones((len(step.lane), 1), np.float32) for role, step in steps.items()})
    assert set(adapter.roles["late"].obs_specs) == {"sight", "previous_action", "previous_reward"}
    assert steps["late"].obs["previous_action"].tolist() == [[0, 1]]


def test_added_lanes_start_at_zero_and_the_others_continue():
    adapter = PreviousActionReward(Growing(config("", 2)), BOTH)
    steps = adapter.reset(0)
    for _ in range(max(MORE) + 2):
        lanes = len(steps["agent"].lane)
        steps = adapter.step({"agent": (np.arange(lanes)[:, None] % 3).astype(np.float32)})
        previous, step = steps["agent"].obs["previous_action"], steps["agent"]
        expected = np.where(step.first[:lanes, None], 0, np.eye(3)[np.arange(lanes) % 3])
        np.testing.assert_array_equal(previous[:lanes], expected)
        assert not previous[lanes:].any()
    assert adapter.roles["agent"].lanes == 2 + sum(MORE.values())


def test_a_name_that_the_simulator_has_is_an_error():
    adapter = ProbeAdapter(config("chain", 2))
    role = adapter.roles["agent"]
    role.obs_specs["previous_reward"] = ObsSpec((1,))
    with pytest.raises(UnsupportedEnvironment, match="itself has an observation 'previous_reward'"):
        PreviousActionReward(adapter, BOTH)
    PreviousActionReward(adapter, ["action"])


def test_restarts_are_delegated():
    inner = ProbeAdapter(config("chain", 2))
    adapter = PreviousActionReward(inner, BOTH)
    inner.restarts = 3
    assert adapter.restarts == 3


TestNoSharing = make_contract(lambda: SharedAgents(TwoRoles(config("", 2)), {}, {}))
TestAnotherName = make_contract(lambda: SharedAgents(Skipping(config("", 3)), {"agent": "player"}, {}))
TestSharedProbe = make_contract(lambda: SharedAgents(ProbeAdapter(config("chain", 3)), {"agent": "player"}, {}))


class Game(ScriptedAdapter):
    """An adapter of two teams that share an agent."""

    shared_agents = {"Red-team1": "Red", "Red": "Red"}


def share(*ticks, lanes, agents=NOTHING, teams=NOTHING) -> tuple[SharedAgents, Game]:
    """Return the agents of a game with these rows of teams by tick, and the game."""
    inner = Game([{name: make_step(*rows) for name, rows in tick.items()} for tick in ticks], **lanes)
    return SharedAgents(inner, agents, teams), inner


def act(adapter, *actions):
    """Return the Step of the shared agent after these actions."""
    (step,) = adapter.step({"Red": np.array(actions, np.float32)[:, None]}).values()
    return step


def executed(inner) -> list[dict]:
    return [{role: action.ravel().tolist() for role, action in one.items()} for one in inner.actions]


def test_teams_are_lanes_of_one_role_and_each_gets_its_own_actions():
    adapter, inner = share(
        {"Red-team1": [Row(0, 10, first=True), Row(1, 11, first=True)], "Red": [Row(0, 0, first=True)]},
        {"Red-team1": [Row(1, 12, reward=-1.0)]},
        {"Red": [Row(0, 1, reward=1.0, is_bootstrap_row=True)], "Red-team1": [Row(0, 13, reward=-1.0)]},
        {"Red": [Row(0, 2, first=True)]},
        lanes={"Red": 1, "Red-team1": 2},
    )
    steps = [adapter.reset(0)["Red"]]
    assert adapter.roles == {"Red": replace(inner.roles["Red"], lanes=3, teams=("Red", "Red-team1", "Red-team1"))}
    steps += [act(adapter, 5, 6, 7), act(adapter, 8), act(adapter, 9, 4)]
    found = [(step.lane.tolist(), step.obs["obs"].ravel().tolist(), step.reward.tolist()) for step in steps]
    assert found == [
        ([0, 1, 2], [0, 10, 11], [0, 0, 0]),
        ([2], [12], [-1]),
        ([0, 1], [1, 13], [1, -1]),
        ([0], [2], [0]),
    ]
    assert steps[2].is_bootstrap_row.tolist() == [True, False]
    assert executed(inner) == [{"Red": [5], "Red-team1": [6, 7]}, {"Red-team1": [8]}, {"Red": [9], "Red-team1": [4]}]


def test_settings_separate_teams_and_merge_others():
    adapter, _ = share(agents={"Red-team1": "Red-team1", "Blue": "Red"}, lanes={"Red": 1, "Red-team1": 1, "Blue": 1})
    assert {name: role.teams for name, role in adapter.roles.items()} == {"Red-team1": (), "Red": ("Blue", "Red")}


def test_a_single_team_keeps_its_name_and_its_agent_has_the_shared_name():
    adapter, _ = share({"Red-team1": [Row(0, 0, first=True)]}, lanes={"Red-team1": 1})
    assert adapter.roles["Red"].count_lanes_by_team("Red") == {"Red-team1": 1}
    assert set(adapter.reset(0)) == {"Red"}


def test_known_lanes_are_kept_for_their_teams():
    known = ("Red", "Red-team1", "Red", "Red-team1")
    adapter, inner = share(
        {"Red-team1": [Row(1, 0, first=True)]},
        {"Red": [Row(1, 5, first=True)]},
        teams={"Red": known},
        lanes={"Red-team1": 2},
    )
    assert adapter.roles["Red"].lanes == 4
    assert adapter.reset(0)["Red"].lane.tolist() == [3]
    inner.roles["Red"] = inner.roles["Red-team1"]  # appears later
    assert act(adapter, 0).lane.tolist() == [2]
    assert adapter.roles["Red"].teams == known


def test_lanes_of_a_later_or_growing_team_are_appended():
    adapter, inner = share(
        {"Red": [Row(0, 0, first=True)]},
        {"Red": [Row(0, 1)], "Red-team1": [Row(0, 10, first=True), Row(1, 11, first=True)]},
        {"Red": [Row(0, 2), Row(1, 5, first=True)], "Red-team1": [Row(1, 12)]},
        {"Red": [Row(0, 3)]},
        lanes={"Red": 1},
    )
    assert adapter.reset(0)["Red"].lane.tolist() == [0]
    inner.roles["Red-team1"] = replace(inner.roles["Red"], lanes=2)
    assert act(adapter, 0).lane.tolist() == [0, 1, 2]
    assert adapter.roles["Red"].teams == ("Red", "Red-team1", "Red-team1")
    step = act(adapter, 1, 2, 3)
    assert adapter.roles["Red"].teams == ("Red", "Red-team1", "Red-team1", "Red")
    assert (step.lane.tolist(), step.obs["obs"].ravel().tolist()) == ([0, 2, 3], [2, 12, 5])
    act(adapter, 4, 5, 6)
    assert executed(inner)[-1] == {"Red": [4, 6], "Red-team1": [5]}


def test_teams_with_different_specs_cannot_share_an_agent():
    inner = Game([], **{"Red": 1, "Red-team1": 1})
    inner.roles["Red-team1"] = replace(inner.roles["Red-team1"], obs_specs={"obs": ObsSpec((2,))})
    with pytest.raises(UnsupportedEnvironment, match=r"share the agent 'Red', but .*ma_config\.Red-team1\.agent="):
        SharedAgents(inner, {}, {})
