"""Environments of PettingZoo, whose agents are roles."""

import numpy as np
import pytest

pytest.importorskip("pettingzoo")

from pettingzoo.test import api_test, parallel_api_test
from pettingzoo.utils.wrappers import BaseParallelWrapper

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError
from algorithm.adapters.pettingzoo import PettingZooAdapter
from tests.adapters.configs import config
from tests.adapters.contract import _random_actions, act, list_rows, make_contract
from tests.adapters.parallel import LATE, Race
from tests.adapters.spaced import allowed
from tests.adapters.turns import Nim

NAME = "tests.adapters.parallel:Race"


TestTerminated = make_contract(lambda: PettingZooAdapter(config(NAME, 3)))
TestTruncated = make_contract(lambda: PettingZooAdapter(config(NAME, 2, {"kind": "truncated", "ant": 7, "late": 5})))
TestSilentWithMasks = make_contract(lambda: PettingZooAdapter(config(NAME, 2, {"silent": True, "how": "info"})))


# PettingZoo converts it from an AECEnv.
TestRockPaperScissors = make_contract(lambda: PettingZooAdapter(config("classic/rps_v2", 2)), package="pygame")


def race(ticks, *fields, **args):
    """Return {role: [(lane, first, is_bootstrap_row, reward, alive, first observed value)]} of every tick of a Race."""
    return play(PettingZooAdapter(config(Race, 1, args, *fields)), ticks)


def play(adapter, ticks):
    rng = np.random.default_rng(0)
    steps, ticked = adapter.reset(0), []
    for _ in range(ticks):
        ticked.append({role: list_rows(step) for role, step in steps.items()})
        steps = adapter.step(_random_actions(adapter, steps, rng))
    return ticked


@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_an_agent_that_ends_early_is_absent_until_all_have_ended(kind):
    ticked = race(7, ant=2, bee=4, kind=kind)
    alive = kind == "truncated"
    starts = [[(0, True, False, 0, True, 0)], [(0, False, False, 1 / 8, True, 1)]]
    end = [(0, False, True, 2 / 8, alive, 2)]
    assert [tick.get("ant") for tick in ticked] == [*starts, end, None, None, *starts]
    assert ticked[4]["bee"] == [(0, False, True, 4 / 8, alive, 4)]
    assert ticked[5]["bee"] == starts[0]


def test_a_termination_without_a_last_observation_repeats_the_one_before():
    assert race(4, ant=2, bee=3, silent=True)[2]["ant"] == [(0, False, True, 2 / 8, False, 1)]


def test_a_truncation_without_a_last_observation_is_followed_by_the_next_start():
    ticked = race(5, ant=2, bee=3, silent=True, kind="truncated")
    assert ["ant" in tick for tick in ticked] == [True, True, False, True, True]
    assert ticked[3]["ant"] == [(0, True, False, 0, True, 0)]


def test_an_agent_that_joins_later_starts_an_episode():
    late = [tick.get("late") for tick in race(7, ant=3, bee=5, late=4)]
    assert late[:LATE] == [None, None]
    assert [row[0][1:3] for row in late[LATE:5]] == [(True, False), (False, False), (False, True)]
    assert late[5:] == [None, None]


def test_episodes_of_different_environments_end_independently():
    adapter = PettingZooAdapter(config(Race, 2, {"ant": 3, "bee": 3}))
    adapter._envs[1].env.lives = {"ant": 1, "bee": 1}
    ticked = play(adapter, 4)
    assert [row[0] for row in ticked[1]["ant"]] == [0, 1]
    assert [row[1:3] for row in ticked[2]["ant"]] == [(False, False), (True, False)]


def test_a_limit_truncates_the_episode_of_all_agents():
    ticked = race(4, 2, ant=9, bee=9)
    for role in ("ant", "bee"):
        assert ticked[2][role] == [(0, False, True, 2 / 8, True, 2)]
        assert ticked[3][role][0][1]


def test_every_lane_and_episode_has_its_own_seed():
    adapter = PettingZooAdapter(config(Race, 2, {"ant": 1, "bee": 1}))
    assert adapter.roles["bee"].action_spec.branches == (4,)
    start = adapter.reset(7)
    after = act(adapter, act(adapter, start))
    assert len({seed for steps in (start, after) for seed in steps["bee"].obs["obs"][:, 1].tolist()}) == 4


@pytest.mark.parametrize("how", ["observed", "info"])
def test_every_agent_has_its_own_mask(how):
    adapter = PettingZooAdapter(config(Race, 2, {"how": how}))
    steps = adapter.reset(0)
    for tick in range(2):
        for step in steps.values():
            np.testing.assert_array_equal(step.obs["action_mask"], [allowed(tick)] * 2)
        steps = act(adapter, steps)
    name = "observation" if how == "observed" else "obs"
    assert set(adapter.roles["ant"].obs_specs) == {name, "action_mask"}


def test_environments_are_wrapped():
    adapter = PettingZooAdapter(config(NAME, wrappers=[("tests.adapters.test_pettingzoo:Halved", {"share": 0.5})]))
    assert act(adapter, adapter.reset(0))["bee"].reward == 1 / 16


class Halved(BaseParallelWrapper):
    """A wrapper that multiplies rewards by `share`."""

    def __init__(self, env, share):
        super().__init__(env)
        self.share = share

    def step(self, actions):
        obs, rewards, *rest = self.env.step(actions)
        return obs, {agent: self.share * reward for agent, reward in rewards.items()}, *rest


def test_an_environment_that_raises_is_a_crash_or_a_start_error():
    def make(at):
        env = Race()
        setattr(env, at, lambda *args, **kwargs: 1 / 0)
        return env

    adapter = PettingZooAdapter(config(make, 1, {"at": "step"}))
    with pytest.raises(EnvironmentCrashed, match="crashed: ZeroDivisionError"):
        act(adapter, adapter.reset(0))
    with pytest.raises(EnvironmentStartError, match="does not start: ZeroDivisionError"):
        PettingZooAdapter(config(make, 1, {"at": "reset"}))


def test_an_agent_that_is_not_a_possible_agent_is_an_error():
    env = Race(1, 3, 3)
    env.possible_agents = ["ant", "bee"]
    with pytest.raises(EnvironmentCrashed, match="'late' is not among its possible_agents"):
        play(PettingZooAdapter(config(lambda: env, 1)), 5)


def test_every_environment_is_closed():
    adapter = PettingZooAdapter(config(Race, 2))
    envs = [episodes.env for episodes in adapter._envs]
    adapter.close()
    assert [env.closed for env in envs] == [1, 1]


TestTurns = make_contract(lambda: PettingZooAdapter(config("tests.adapters.turns:Nim", 3)))
TestTruncatedTurns = make_contract(lambda: PettingZooAdapter(config(Nim, 2, {"kind": "truncated"}, 5)))
TestTicTacToe = make_contract(lambda: PettingZooAdapter(config("classic/tictactoe_v3", 2)), package="pygame")


def take_one(*fields, ticks=6, **args):
    """Return {role: (first, is_bootstrap_row, reward, alive, stones)} of every tick in which one stone is taken."""
    adapter = PettingZooAdapter(config(Nim, 1, args, *fields))
    steps, ticked = adapter.reset(0), []
    for _ in range(ticks):
        ticked.append({role: list_rows(step)[0][1:] for role, step in steps.items()})
        steps = act(adapter, steps)
    return ticked


def test_an_agent_has_a_row_in_its_turn_with_the_rewards_since_its_last_one():
    assert take_one(stones=4) == [
        {"ann": (True, False, 0, True, 4)},
        {"bob": (True, False, 0, True, 3)},  # the reward before its first turn follows no action
        {"ann": (False, False, 0, True, 2)},
        {"bob": (False, False, 0.25, True, 1)},
        {"ann": (False, True, -1, False, 0), "bob": (False, True, 1, False, 0)},
        {"ann": (True, False, 0, True, 4)},
    ]


def test_an_agent_without_a_turn_has_no_row():
    assert take_one(stones=1, ticks=3)[1:] == [{"ann": (False, True, 1, False, 0)}, {"ann": (True, False, 0, True, 1)}]


def test_a_limit_truncates_the_episodes_of_agents_that_act_in_turn():
    assert take_one(3, stones=9, ticks=5)[3:] == [
        {"ann": (False, True, 0, True, 6), "bob": (False, True, 0.25, True, 6)},
        {"ann": (True, False, 0, True, 9)},
    ]


@pytest.mark.filterwarnings("ignore")
def test_the_environment_with_turns_passes_pettingzoos_tests():
    api_test(Nim(), num_cycles=30)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settings", [{}, {"kind": "truncated", "how": "info"}])
def test_the_environment_of_these_tests_passes_pettingzoos_tests(settings):
    parallel_api_test(Race(**settings), num_cycles=30)
