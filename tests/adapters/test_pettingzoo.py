"""Environments of PettingZoo, whose agents are roles."""

import numpy as np
import pytest

pytest.importorskip("pettingzoo")

from pettingzoo.test import parallel_api_test
from pettingzoo.utils.conversions import parallel_to_aec
from pettingzoo.utils.wrappers import BaseParallelWrapper

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError, UnsupportedEnvironment
from algorithm.adapters.pettingzoo import PettingZooAdapter
from tests.adapters.configs import config
from tests.adapters.contract import make_contract, random_actions
from tests.adapters.parallel import LATE, Race
from tests.adapters.spaced import allowed

NAME = "tests.adapters.parallel:make"


TestTerminated = make_contract(lambda: PettingZooAdapter(config(NAME, 3)))
TestTruncated = make_contract(lambda: PettingZooAdapter(config(NAME, 2, {"kind": "truncated", "ant": 7, "late": 5})))
TestSilentWithMasks = make_contract(lambda: PettingZooAdapter(config(NAME, 2, {"silent": True, "how": "info"})))


# PettingZoo converts it from an AECEnv.
TestRockPaperScissors = make_contract(lambda: PettingZooAdapter(config("classic/rps_v2", 2)), package="pygame")


def play(adapter, ticks, seed=0):
    """Return {role: [(lane, first, is_bootstrap_row, reward, alive, first observed value)]} of every tick."""
    rng = np.random.default_rng(0)
    steps, ticked = adapter.reset(seed), []
    for _ in range(ticks):
        ticked.append({role: rows(step) for role, step in steps.items()})
        actions = {
            role: random_actions(adapter.roles[role].action_spec, len(step.lane), rng) for role, step in steps.items()
        }
        steps = adapter.step(actions)
    return ticked


def rows(step):
    flags = zip(
        step.lane, step.first, step.is_bootstrap_row, step.reward, step.alive, step.obs["obs"][:, 0], strict=True
    )
    return [(int(lane), bool(f), bool(e), float(r), bool(a), float(obs)) for lane, f, e, r, a, obs in flags]


@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_an_agent_that_ends_early_is_absent_until_all_have_ended(kind):
    ticked = play(PettingZooAdapter(config(Race, 1, {"ant": 2, "bee": 4, "kind": kind})), 7)
    alive = kind == "truncated"
    ant = [tick.get("ant") for tick in ticked]
    assert ant[:3] == [
        [(0, True, False, 0, True, 0)],
        [(0, False, False, 1 / 8, True, 1)],
        [(0, False, True, 2 / 8, alive, 2)],
    ]
    assert ant[3:] == [None, None, [(0, True, False, 0, True, 0)], [(0, False, False, 1 / 8, True, 1)]]
    bee = [tick["bee"][0] for tick in ticked]
    assert bee[4] == (0, False, True, 4 / 8, alive, 4)
    assert bee[5] == (0, True, False, 0, True, 0)


def test_a_termination_without_a_last_observation_repeats_the_one_before():
    ticked = play(PettingZooAdapter(config(Race, 1, {"ant": 2, "bee": 3, "silent": True})), 4)
    assert ticked[2]["ant"] == [(0, False, True, 2 / 8, False, 1)]


def test_a_truncation_without_a_last_observation_is_followed_by_the_next_start():
    args = {"ant": 2, "bee": 3, "silent": True, "kind": "truncated"}
    ticked = play(PettingZooAdapter(config(Race, 1, args)), 5)
    assert ["ant" in tick for tick in ticked] == [True, True, False, True, True]
    assert ticked[3]["ant"] == [(0, True, False, 0, True, 0)]


def test_an_agent_that_joins_later_starts_an_episode():
    ticked = play(PettingZooAdapter(config(Race, 1, {"ant": 3, "bee": 5, "late": 4})), 7)
    late = [tick.get("late") for tick in ticked]
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
    ticked = play(PettingZooAdapter(config(Race, 1, {"ant": 9, "bee": 9}, max_episode_steps=2)), 4)
    for role in ("ant", "bee"):
        assert ticked[2][role] == [(0, False, True, 2 / 8, True, 2)]
        assert ticked[3][role][0][1]


def test_every_lane_and_episode_has_its_own_seed():
    adapter = PettingZooAdapter(config(Race, 2, {"ant": 1, "bee": 1}))
    steps = adapter.reset(7)
    seeds = steps["bee"].obs["obs"][:, 1].tolist()
    spec = adapter.roles["bee"].action_spec
    for _ in range(2):
        actions = {role: np.zeros((2, adapter.roles[role].action_spec.size), np.float32) for role in steps}
        steps = adapter.step(actions)
    assert spec.branches == (4,)
    seeds += steps["bee"].obs["obs"][:, 1].tolist()
    assert len(set(seeds)) == 4


@pytest.mark.parametrize("how", ["observed", "info"])
def test_every_agent_has_its_own_mask(how):
    adapter = PettingZooAdapter(config(Race, 2, {"how": how}))
    steps = adapter.reset(0)
    for tick in range(2):
        for step in steps.values():
            np.testing.assert_array_equal(step.obs["action_mask"], [allowed(tick)] * 2)
        actions = {role: np.zeros((2, 2), np.float32) for role in steps}
        steps = adapter.step(actions)
    name = "observation" if how == "observed" else "obs"
    assert set(adapter.roles["ant"].obs_specs) == {name, "action_mask"}


def test_observations_are_ignored_and_environments_wrapped():
    wrapped = [("tests.adapters.test_pettingzoo:Halved", {"share": 0.5})]
    adapter = PettingZooAdapter(config(NAME, 1, {"how": "observed"}, wrappers=wrapped))
    steps = adapter.reset(0)
    steps = adapter.step({role: np.zeros((1, 2), np.float32) for role in steps})
    assert steps["bee"].reward == 1 / 16
    with pytest.raises(
        UnsupportedEnvironment, match="no observation 'sound'; the environment has action_mask, observation$"
    ):
        PettingZooAdapter(config(NAME, 1, {"how": "observed"}, ignore_observations=["sound"]))
    with pytest.raises(UnsupportedEnvironment, match="contains no observation for an agent"):
        PettingZooAdapter(config(NAME, 1, {"how": "observed"}, ignore_observations=["observation"]))


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
    steps = adapter.reset(0)
    with pytest.raises(EnvironmentCrashed, match="crashed: ZeroDivisionError"):
        adapter.step({role: np.zeros((1, adapter.roles[role].action_spec.size), np.float32) for role in steps})
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


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "sisl/multiwalkr_v9",
            {},
            "is not an environment of PettingZoo whose agents act simultaneously; did you mean sisl/multiwalker",
        ),
        (
            "classic/chess_v6",
            {},
            r"^env_name 'classic/chess_v6' is turn-based \(AEC\): .* not supported yet$",
        ),
        ("no_such_module:parallel_env", {}, "needs a package: No module named 'no_such_module'; pip install no_such"),
        ("tests.adapters.parallel:nothing", {}, "tests.adapters.parallel has no function or class 'nothing'"),
        (lambda: object(), {}, "cannot be opened: TypeError: object is not a ParallelEnv"),
        (lambda: parallel_to_aec(Race()), {}, None),
    ],
)
def test_an_unsupported_environment_is_an_error_of_one_line(name, settings, message):
    if message is None:
        assert set(PettingZooAdapter(config(name, 1, **settings)).roles) == {"ant", "bee"}
        return
    with pytest.raises(UnsupportedEnvironment, match=message) as error:
        PettingZooAdapter(config(name, 1, **settings))
    assert "\n" not in str(error.value)


def test_agents_that_act_in_turn_are_an_error():
    def make():
        env = parallel_to_aec(Race())
        env.metadata = {**env.metadata, "is_parallelizable": False}
        env.env.metadata = env.metadata
        return env

    with pytest.raises(UnsupportedEnvironment, match=r"is turn-based \(AEC\): .* are not supported yet"):
        PettingZooAdapter(config(make, 1))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settings", [{}, {"kind": "truncated", "how": "info"}])
def test_the_environment_of_these_tests_passes_pettingzoos_tests(settings):
    parallel_api_test(Race(**settings), num_cycles=30)
