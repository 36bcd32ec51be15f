"""Episodes in which one team learns, while opponents play for the others."""

from __future__ import annotations

import numpy as np
import pytest

from algorithm.adapters.self_play import Opponents, SelfPlay
from algorithm.adapters.wrappers import SharedAgents
from algorithm.errors import UserError
from algorithm.training.evaluator import Evaluator
from tests.adapters.configs import config
from tests.adapters.contract import act, list_rows, make_contract
from tests.doubles import ParityAgent, Row, ScriptedAdapter, make_step
from tests.fakes import Pair


class Scripted(Opponents):
    """Opponents whose action is `action`, and whose memory counts their decisions; teams learn in turn."""

    def __init__(self, action=1.0, teams=None):
        self.opponent, self.action, self.teams = "first", action, teams
        self.acts, self.counted, self.results = [], 0, []

    def choose_team(self, teams, game):
        return self.teams[game] if self.teams else teams[game % len(teams)]

    def get_state_size(self, role):
        return 1

    def act(self, opponent, role, step, memory):
        self.acts.append((opponent, role, step.lane.tolist(), memory[:, 0].tolist()))
        action = np.full((len(step.lane), 1), self.action, np.float32)
        return action, memory + 1

    def count(self, env_steps):
        self.counted += env_steps

    def record(self, role, opponent, reward):
        self.results.append((role, opponent, reward))


TestPair = make_contract(lambda: SelfPlay(Pair(config("", 3)), Scripted()))
TestSharedPair = make_contract(lambda: SelfPlay(SharedAgents(Pair(config("", 2)), {"right": "left"}, {}), Scripted()))


def turns():
    from algorithm.adapters.pettingzoo import PettingZooAdapter
    from tests.adapters.turns import Nim

    return PettingZooAdapter(config(Nim, 1, {"stones": 6}))


TestTurns = make_contract(lambda: SelfPlay(turns(), Scripted()), package="pettingzoo")


def rows(steps):
    """Return [(role, first, is_bootstrap_row, reward, alive, observation)] of Steps of one lane."""
    return [(role, *list_rows(step)[0][1:]) for role, step in steps.items()]


def test_the_teams_learn_in_turn_and_only_rows_of_the_learning_one_are_presented():
    pytest.importorskip("pettingzoo")
    opponents = Scripted()  # takes two stones, the learning agent one
    adapter = SelfPlay(turns(), opponents)
    steps, seen = adapter.reset(0), []
    for _ in range(7):
        seen += rows(steps)
        steps = act(adapter, steps)
    assert seen == [
        ("ann", True, False, 0, True, 6),
        ("ann", False, False, 0, True, 3),
        ("ann", False, True, -1, False, 0),
        ("bob", True, False, 0, True, 4),
        ("bob", False, False, 0.25, True, 1),
        ("bob", False, True, 1, False, 0),
        ("ann", True, False, 0, True, 6),
    ]
    assert opponents.counted == 5  # the rows at an end have no action
    assert opponents.results == [("ann", "first", -1), ("bob", "first", 1)]


ENDS = [
    {"a": make_step(Row(0, 0.0, first=True)), "b": make_step(Row(0, 1.0, first=True))},
    {"a": make_step(Row(0, 2.0)), "b": make_step(Row(0, 3.0))},
    # The episodes end without a last observation: those of `a` by termination.
    {
        "a": make_step(Row(0, 4.0, reward=2.0, first=True, alive=False)),
        "b": make_step(Row(0, 5.0, reward=-2.0, first=True)),
    },
    {
        "a": make_step(Row(0, 6.0, reward=3.0, first=True)),
        "b": make_step(Row(0, 7.0, reward=-3.0, first=True, alive=False)),
    },
    {
        "a": make_step(Row(0, 8.0, reward=4.0, first=True)),
        "b": make_step(Row(0, 9.0, reward=-4.0, first=True)),
    },
]


def test_a_lane_that_does_not_learn_any_more_has_one_more_row_without_an_action():
    inner = ScriptedAdapter(ENDS, a=1, b=1)
    adapter, opponents = SelfPlay(inner, scripted := Scripted(teams="abba")), scripted
    steps, seen = adapter.reset(0), []
    for _ in range(4):
        seen.append(rows(steps))
        steps = act(adapter, steps, value=5.0)
    seen.append(rows(steps))
    assert seen == [
        [("a", True, False, 0, True, 0)],
        [("a", False, False, 0, True, 2)],
        [("a", False, True, 2, False, 4), ("b", True, False, 0, True, 5)],
        [("b", True, False, -3, False, 7)],
        # A truncation: nothing is learned from the observation, which belongs to the next episode.
        [("a", True, False, 0, True, 8), ("b", True, True, -4, True, 9)],
    ]
    assert opponents.results == [("a", "first", 2), ("b", "first", -3), ("b", "first", -4)]
    played = [{role: action.item() for role, action in actions.items()} for actions in inner.actions]
    assert played == [{"a": 5, "b": 1}, {"a": 5, "b": 1}, {"a": 1, "b": 5}, {"a": 1, "b": 5}]


def test_an_episode_keeps_its_opponent_whose_memory_starts_with_it():
    opponents = Scripted(teams="aaaaa")
    adapter = SelfPlay(ScriptedAdapter(ENDS, a=1, b=1), opponents)
    steps = adapter.reset(0)
    opponents.opponent = "second"
    for _ in range(3):
        steps = act(adapter, steps)
    assert opponents.acts == [
        ("first", "b", [0], [0]),
        ("first", "b", [0], [1]),
        ("second", "b", [0], [0]),
        ("second", "b", [0], [0]),
    ]
    assert [opponent for _, opponent, _ in opponents.results] == ["first", "second"]


def test_teams_that_share_an_agent_are_lanes_of_it():
    opponents = Scripted()
    adapter = SelfPlay(SharedAgents(Pair(config("", 2)), {"right": "left"}, {}), opponents)
    steps = adapter.reset(0)
    assert adapter.roles["left"].lanes == 4 and steps["left"].lane.tolist() == [0, 1]
    for _ in range(6):
        steps = act(adapter, steps)
    assert steps["left"].lane.tolist() == [2, 3] and opponents.acts[-1][2] == [0, 1]


@pytest.mark.parametrize("shared", [False, True])
def test_an_evaluation_plays_the_episodes_of_every_team(shared):
    pair = Pair(config("", 4))  # whose games end at the same time
    adapter = SelfPlay(SharedAgents(pair, {"right": "left"}, {}) if shared else pair, Scripted())
    results = Evaluator(adapter, lambda role: ParityAgent(rollout_length=1), greedy=True).play(4, seed=0)
    assert {team: len(result.returns) for team, result in results.items()} == {"left": 4, "right": 4}


def test_one_team_is_an_error():
    with pytest.raises(UserError, match=r"all agents are of the role 'a'; opponents need .* two roles or more"):
        SelfPlay(ScriptedAdapter([{"a": ENDS[0]["a"]}], a=1), Scripted()).reset(0)
