from __future__ import annotations

import logging

import numpy as np
import pytest

from algorithm.adapters.adapter import EnvironmentBroke
from algorithm.loop import screen
from algorithm.loop.actor import Actor, Episode
from algorithm.loop.scores import Scores
from tests.doubles import Row, ScriptedAdapter, ShowingAgent, lanes_of, parts_of, step_of

NAN, INF = np.nan, np.inf


def recorded(*rows: Row, collect_steps: int = 1):
    """What an actor makes of one lane's rows: itself, and the record as one long column."""
    script = [{"agent": step_of(row)} for row in rows] + [{}]
    actor = Actor(parts_of(ScriptedAdapter(script, agent=1), ShowingAgent(collect_steps)), seed=0)
    rollouts = [rollout for _ in rows for _, rollout in actor.collect()]
    return actor, lanes_of(rollouts)[0]


def valid_rows(record) -> list[tuple]:
    """(obs, reward, alive, next obs) of everything that is learned from."""
    obs = record.obs["obs"][:, 0, 0].tolist()
    return [
        (obs[t], float(record.reward[t, 0]), bool(record.alive[t, 0]), obs[t + 1])
        for t in np.flatnonzero(record.valid[:, 0])
    ]


START, NEXT = Row(0, 10, first=True), [Row(0, 20, first=True), Row(0, 21, 5), Row(0, 22, 6)]
LEARNED_FROM_NEXT = [(20, 5, True, 21), (21, 6, True, 22)]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize(
    "broken",
    [
        lambda bad: [Row(0, bad, 2), Row(0, 13, 3)],  # in the middle: what follows of this episode is not stored
        lambda bad: [Row(0, 12, bad), Row(0, 13, 3)],
        lambda bad: [Row(0, bad, bad), Row(0, bad, bad)],
        lambda bad: [Row(0, bad, 2, final=True)],
        lambda bad: [Row(0, 12, bad, final=True)],
        lambda bad: [Row(0, 12, bad), Row(0, 13, 3, alive=False, final=True)],
        lambda bad: [Row(0, 12, bad, alive=False, final=True)],
    ],
)
def test_the_row_before_is_not_learned_and_the_rest_is_not_stored(broken, bad):
    actor, record = recorded(START, Row(0, 11, 1), *broken(bad), *NEXT)
    assert valid_rows(record) == [(10, 1, True, 11), *LEARNED_FROM_NEXT]
    assert record.first[:, 0].tolist() == [True, False, True, False, False]
    assert actor.env_steps == 5
    assert not actor.episodes


@pytest.mark.parametrize("alive", [True, False])
def test_a_bad_reward_told_by_the_next_start_costs_the_row_before_alone(alive):
    start = Row(0, 20, NAN, alive=alive, first=True)
    actor, record = recorded(START, Row(0, 11, 1), start, *NEXT[1:])
    assert valid_rows(record) == [(10, 1, True, 11), *LEARNED_FROM_NEXT]
    assert not actor.episodes


def test_a_death_after_the_loss_tells_nothing_of_the_row_before_it():
    _, record = recorded(START, Row(0, 11, 1), Row(0, NAN, 2), Row(0, 20, 3, alive=False, first=True), *NEXT[1:])
    assert valid_rows(record) == [(10, 1, True, 11), *LEARNED_FROM_NEXT]
    assert record.reward[1, 0] == 0


def test_an_episode_that_starts_badly_is_not_stored_at_all():
    actor, record = recorded(Row(0, NAN, first=True), Row(0, 11, 1), *NEXT)
    assert valid_rows(record) == LEARNED_FROM_NEXT
    assert actor.env_steps == 3


def test_a_death_is_learned_whatever_is_shown_of_it():
    actor, record = recorded(START, Row(0, 11, 1), Row(0, NAN, 2, alive=False, final=True), *NEXT)
    assert valid_rows(record) == [(10, 1, True, 11), (11, 2, False, 0), *LEARNED_FROM_NEXT]
    assert list(actor.episodes) == [Episode("agent", 0, 3, 2)]


def test_other_lanes_go_on():
    script = [
        {"agent": step_of(Row(0, 10, first=True), Row(1, 50, first=True))},
        {"agent": step_of(Row(0, NAN, 1), Row(1, 51, 1))},
        {"agent": step_of(Row(0, 12, 1), Row(1, 52, 2))},
        {"agent": step_of(Row(0, 20, 1, first=True), Row(1, 53, 3))},
        {"agent": step_of(Row(0, 21, 4), Row(1, 54, 4))},
        {},
    ]
    actor = Actor(parts_of(ScriptedAdapter(script, agent=2), ShowingAgent(1)), seed=0)
    lanes = lanes_of([rollout for _ in range(5) for _, rollout in actor.collect()])
    assert valid_rows(lanes[0]) == [(20, 4, True, 21)]
    assert [row[1] for row in valid_rows(lanes[1])] == [1, 2, 3, 4]
    # The simulator awaits an action for every lane, and the agent has seen a number in each.
    assert [actions["agent"].ravel().tolist() for actions in actor.parts.adapter.actions] == [
        [0, 0],
        [0, 1],
        [0, 0],
        [0, 1],
        [1, 0],
    ]


def test_memory_starts_anew_behind_the_loss():
    _, record = recorded(START, Row(0, 11, 1), Row(0, NAN, 2), Row(0, 13, 3), *NEXT)
    assert record.behavior[:, 0, 1].tolist() == [0, 1, 0, 1]


def test_what_is_bad_is_named_once_for_each_episode(caplog):
    rows = [START, Row(0, 11, 1), Row(0, NAN, NAN), Row(0, NAN, 2), Row(0, 20, first=True), Row(0, 21, INF), *NEXT]
    with caplog.at_level(logging.WARNING):
        recorded(*rows)
    told = [record.getMessage().split(" is cut")[0] for record in caplog.records]
    assert told == [
        "the observation 'obs' of lane 0 of role 'agent' is NaN after 2 steps of an episode, which",
        "the reward of lane 0 of role 'agent' is NaN after 2 steps of an episode, which",
        "the reward of lane 0 of role 'agent' is infinite after 1 steps of an episode, which",
    ]


def test_large_numbers_and_bytes_are_numbers():
    step = step_of(Row(0, 3e38, reward=-3e38), Row(1, 1))
    step.obs["camera"] = np.full((2, 4), 255, np.uint8)
    shown, stored = screen.Screen("agent", Scores(2), ())(step)
    assert stored is None or stored.all()
    np.testing.assert_array_equal(shown.obs["obs"], step.obs["obs"])
    np.testing.assert_array_equal(shown.reward, step.reward)


def test_a_lane_that_stays_lost_ends_the_run(monkeypatch):
    monkeypatch.setattr(screen, "PATIENCE", 5)
    look = screen.Screen("agent", Scores(1), ())
    for _ in range(5):
        look(step_of(Row(0, NAN, first=True)))
    with pytest.raises(EnvironmentBroke, match="lane 0 of role 'agent'.*max_step_each_iter"):
        look(step_of(Row(0, NAN, first=True)))
