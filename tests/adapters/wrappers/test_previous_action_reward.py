"""Previous actions and rewards as observations."""

from __future__ import annotations

import numpy as np
import pytest

from algorithm.adapters.adapter import UnsupportedEnvironment
from algorithm.adapters.probe import ProbeAdapter
from algorithm.adapters.wrappers import PreviousActionReward, PreviousTracker
from algorithm.specs import ActionSpec, ObsSpec
from tests.adapters.configs import config
from tests.adapters.contract import make_contract
from tests.doubles import Row, ScriptedAdapter, make_step
from tests.fakes import LATE, MORE, AnyAction, Growing, Skipping, TwoRoles

BOTH = ("action", "reward")


TestProbe = make_contract(lambda: PreviousActionReward(ProbeAdapter(config("chain", 3, {})), BOTH))
TestSkippingLanes = make_contract(lambda: PreviousActionReward(Skipping(config("", 3, {})), BOTH))
TestLateRoles = make_contract(lambda: PreviousActionReward(TwoRoles(config("", 2, {})), BOTH))
TestAddedLanes = make_contract(lambda: PreviousActionReward(Growing(config("", 2, {})), BOTH))
TestHybridActions = make_contract(
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
    adapter = PreviousActionReward(TwoRoles(config("", 2, {})), BOTH)
    steps = adapter.reset(0)
    for _ in range(LATE + 1):
        steps = adapter.step({role: np.ones((len(step.lane), 1), np.float32) for role, step in steps.items()})
    assert set(adapter.roles["late"].obs_specs) == {"sight", "previous_action", "previous_reward"}
    assert steps["late"].obs["previous_action"].tolist() == [[0, 1]]


def test_added_lanes_start_at_zero_and_the_others_continue():
    adapter = PreviousActionReward(Growing(config("", 2, {})), BOTH)
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
    adapter = ProbeAdapter(config("chain", 2, {}))
    role = adapter.roles["agent"]
    role.obs_specs["previous_reward"] = ObsSpec((1,))
    with pytest.raises(UnsupportedEnvironment, match="itself has an observation 'previous_reward'"):
        PreviousActionReward(adapter, BOTH)
    PreviousActionReward(adapter, ["action"])


def test_restarts_are_delegated():
    inner = ProbeAdapter(config("chain", 2, {}))
    adapter = PreviousActionReward(inner, BOTH)
    adapter.reset(0)
    inner.restarts = 3
    adapter.step({"agent": np.zeros((2, 1), np.float32)})
    assert adapter.restarts == 3
