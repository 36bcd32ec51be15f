from __future__ import annotations

import logging

import numpy as np
import pytest

from algorithm.rollout import Step
from algorithm.specs import ACTION_MASK
from algorithm.training import invalid_values
from algorithm.training.invalid_values import Episode, InvalidEpisodes, RunningEpisodes
from tests.doubles import ParityAgent, Row, ScriptedAdapter, collect_lanes, make_step

NAN, INF = np.nan, np.inf


@pytest.fixture(autouse=True)
def _low_limits(monkeypatch):
    monkeypatch.setattr(invalid_values, "MAX_DISCARDED", 10)
    monkeypatch.setattr(invalid_values, "MAX_LOST_TICKS", 10)


def play(*steps: Step, lanes=1):
    """Return an actor that has collected some steps, and its rollouts as one column of each lane."""
    script = ScriptedAdapter([{"agent": step} for step in steps] + [{}], agent=lanes)
    return collect_lanes(script, ParityAgent(1), 0, len(steps))


def recorded(*rows: Row):
    """Return an actor that has collected the rows of one lane, and its rollouts as one column."""
    actor, lanes = play(*map(make_step, rows))
    return actor, lanes[0]


def valid_rows(record) -> list[tuple]:
    """Return (obs, reward, alive, next obs) of every valid row."""
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
        lambda bad: [Row(0, bad, 2), Row(0, 13, 3)],  # in the middle of an episode, whose rest is not stored
        lambda bad: [Row(0, 12, bad), Row(0, 13, 3)],
        lambda bad: [Row(0, bad, bad), Row(0, bad, bad)],
        lambda bad: [Row(0, bad, 2, is_bootstrap_row=True)],
        lambda bad: [Row(0, 12, bad, is_bootstrap_row=True)],
        lambda bad: [Row(0, 12, bad), Row(0, 13, 3, alive=False, is_bootstrap_row=True)],
        lambda bad: [Row(0, 12, bad, alive=False, is_bootstrap_row=True)],
    ],
)
def test_the_row_before_is_not_valid_and_the_rest_of_the_episode_is_not_stored(broken, bad):
    actor, record = recorded(START, Row(0, 11, 1), *broken(bad), *NEXT)
    assert valid_rows(record) == [(10, 1, True, 11), *LEARNED_FROM_NEXT]
    assert record.first[:, 0].tolist() == [True, False, True, False, False]
    assert actor.env_steps == 5
    assert not actor.episodes


BEGIN, LEARNED = [START, Row(0, 11, 1)], [(10, 1, True, 11)]


@pytest.mark.parametrize(
    ("rows", "learned", "episodes"),
    [
        pytest.param([*BEGIN, Row(0, 20, NAN, first=True)], LEARNED, [], id="the reward of the next start"),
        pytest.param([*BEGIN, Row(0, 20, NAN, alive=False, first=True)], LEARNED, [], id="the reward of a termination"),
        pytest.param([*BEGIN, Row(0, NAN, 2), Row(0, 20, 3, alive=False, first=True)], LEARNED, [], id="a lost end"),
        pytest.param([Row(0, NAN, first=True), Row(0, 11, 1), NEXT[0]], [], [], id="the first observation"),
        pytest.param(
            [*BEGIN, Row(0, NAN, 2, alive=False, is_bootstrap_row=True), NEXT[0]],
            [*LEARNED, (11, 2, False, 0)],
            [Episode(role="agent", lane=0, episode_return=3, length=2)],
            id="any observation after a termination",
        ),
    ],
)
def test_only_the_row_before_an_invalid_value_and_the_rest_of_the_episode_are_lost(rows, learned, episodes):
    actor, record = recorded(*rows, *NEXT[1:])
    assert valid_rows(record) == [*learned, *LEARNED_FROM_NEXT]
    assert list(actor.episodes) == episodes
    assert record.behavior[-2:, 0, 1].tolist() == [0, 1]  # memory is zero after a lost episode


def test_other_lanes_continue():
    steps = [
        make_step(Row(0, 10, first=True), Row(1, 50, first=True)),
        make_step(Row(0, NAN, 1), Row(1, 51, 1)),
        make_step(Row(0, 12, 1), Row(1, 52, 2)),
        make_step(Row(0, 20, 1, first=True), Row(1, 53, 3)),
        make_step(Row(0, 21, 4), Row(1, 54, 4)),
    ]
    actor, lanes = play(*steps, lanes=2)
    assert valid_rows(lanes[0]) == [(20, 4, True, 21)]
    assert [row[1] for row in valid_rows(lanes[1])] == [1, 2, 3, 4]
    # The environment receives an action for every lane, and the agent a finite observation of each.
    assert [actions["agent"].ravel().tolist() for actions in actor.training.adapter.actions] == [
        [0, 0],
        [0, 1],
        [0, 0],
        [0, 1],
        [1, 0],
    ]


def test_an_invalid_value_is_logged_once_per_episode(caplog):
    rows = [START, Row(0, 11, 1), Row(0, NAN, NAN), Row(0, NAN, 2), Row(0, 20, first=True), Row(0, 21, INF), *NEXT]
    with caplog.at_level(logging.WARNING):
        recorded(*rows)
    messages = [record.getMessage().split(" is truncated")[0] for record in caplog.records]
    assert messages == [
        "the observation 'obs' of lane 0 of role 'agent' is NaN after 2 steps of an episode, which",
        "the reward of lane 0 of role 'agent' is NaN after 2 steps of an episode, which",
        "the reward of lane 0 of role 'agent' is infinite after 1 steps of an episode, which",
    ]


def test_large_numbers_and_bytes_are_finite():
    step = make_step(Row(0, 3e38, reward=-3e38), Row(1, 1))
    step.obs["camera"] = np.full((2, 4), 255, np.uint8)
    shown, stored = RunningEpisodes("agent", 2, ())(step)
    assert stored is None or stored.all()
    np.testing.assert_array_equal(shown.obs["obs"], step.obs["obs"])
    np.testing.assert_array_equal(shown.reward, step.reward)


def test_a_lane_that_stays_lost_ends_the_run(monkeypatch):
    monkeypatch.setattr(invalid_values, "MAX_LOST_TICKS", 5)
    look = RunningEpisodes("agent", 1, ())
    for _ in range(5):
        look(make_step(Row(0, NAN, first=True)))
    with pytest.raises(InvalidEpisodes, match="lane 0 of role 'agent'.*max_step_each_iter"):
        look(make_step(Row(0, NAN, first=True)))


def add(look: RunningEpisodes, *rows: Row) -> np.ndarray | None:
    """Add a tick with these rows. Return which of them are stored."""
    step, stored = look(make_step(*rows))
    look.add(step if stored is None else step.take(stored))
    return stored


def play_episodes(look: RunningEpisodes, *ends: float) -> None:
    """Play an episode of two decisions in each lane, whose second observations are `ends`."""
    add(look, *(Row(lane, 1, first=True) for lane in range(len(ends))))
    add(look, *(Row(lane, end, 1) for lane, end in enumerate(ends)))


@pytest.mark.parametrize(("ends", "episodes"), [((NAN,), 10), ((NAN, INF), 5)])
def test_invalid_episodes_in_a_row_end_the_run(ends, episodes):
    look = RunningEpisodes("agent", len(ends), ())
    for _ in range(episodes):
        play_episodes(look, *ends)
    kind = "infinite" if INF in ends else "NaN"
    with pytest.raises(InvalidEpisodes, match=f"all 1. episodes of role 'agent'.*'obs' of lane . .*is {kind} after 1"):
        play_episodes(look, *ends)


def test_a_lane_whose_episodes_are_all_invalid_ends_the_run():
    look = RunningEpisodes("agent", 3, ())
    for _ in range(10):
        play_episodes(look, 1, NAN, 1)
    with pytest.raises(InvalidEpisodes, match="all 11 episodes of lane 1 of role 'agent'"):
        play_episodes(look, 1, NAN, 1)


def test_invalid_episodes_between_valid_ones_do_not_end_the_run():
    look = RunningEpisodes("agent", 2, ())
    for _ in range(5):
        for _ in range(4):
            play_episodes(look, NAN, NAN)
        for _ in range(2):  # an episode is finished by the start of the next one
            play_episodes(look, 1, 1)
    assert look.discarded.tolist() == [0, 0]


def test_many_lanes_may_begin_with_an_invalid_episode():
    look = RunningEpisodes("agent", 30, ())
    play_episodes(look, *[NAN] * 20, *[1] * 10)
    assert look.discarded_in_row == 20


def test_an_episode_is_discarded_once():
    look = RunningEpisodes("agent", 1, ())
    bad = Row(0, NAN, 1)
    for row in (START, bad, bad, Row(0, 13, 1), START, Row(0, 11, 1), Row(0, 20, NAN, first=True)):
        look(make_step(row))
    assert (look.discarded.tolist(), look.discarded_in_row) == ([2], 2)


def test_added_lanes_are_not_lost_and_leave_the_others_unchanged():
    look = RunningEpisodes("agent", 2, ())
    add(look, Row(0, 1, first=True), Row(1, 5, first=True))
    add(look, Row(0, NAN), Row(1, 6, 2))
    look.grow(3)
    assert add(look, Row(0, 3, 7), Row(1, 7, 1), Row(2, 9, first=True)).tolist() == [False, True, True]
    assert (look.returns.tolist(), look.lengths.tolist()) == ([0, 3, 0], [0, 3, 1])
    assert (look.lost.tolist(), look.lost_ticks.tolist()) == ([True, False, False], [2, 0, 0])


ALL, NO_FIRST, NO_SECOND = [1, 1, 1, 1, 1], [0, 0, 0, 1, 0], [0, 1, 0, 0, 0]


def show(*rows: tuple[Row, list[int]]) -> list[tuple[Step, bool]]:
    """Return the steps of a lane with masks of 3 and 2 actions as agents receive them, and whether each is stored."""
    look, found = RunningEpisodes("agent", 1, (3, 2)), []
    for row, mask in rows:
        step = make_step(row)
        step.obs[ACTION_MASK] = np.array([mask], np.uint8)
        shown, stored = look(step)
        found.append((shown, stored is None or bool(stored.all())))
    return found


@pytest.mark.parametrize(("mask", "branch"), [(NO_FIRST, 0), (NO_SECOND, 1)])
def test_a_mask_that_forbids_every_action_of_a_branch_loses_the_lane(mask, branch, caplog):
    episode = [(START, ALL), (Row(0, 11, 1), ALL), (Row(0, 12, 2), mask), (Row(0, 13, 3), mask), (Row(0, 14, 4), ALL)]
    shown = show(*episode, (Row(0, 20, first=True), [0, 1, 0, 0, 1]), (Row(0, 21, 5), ALL))
    assert [stored for _, stored in shown] == [True, True, False, False, False, True, True]
    (message,) = [record.getMessage() for record in caplog.records]
    lost = f"the observation 'action_mask' of lane 0 of role 'agent' forbids every action of branch {branch} after "
    assert message.startswith(lost)


@pytest.mark.parametrize("alive", [True, False])
def test_the_mask_of_a_bootstrap_row_may_forbid_everything(alive, caplog):
    shown = show((START, ALL), (Row(0, 11, 2, alive=alive, is_bootstrap_row=True), [0] * 5), (NEXT[0], ALL))
    assert all(stored for _, stored in shown) and not caplog.records


def test_the_mask_of_a_start_after_a_termination_counts():
    end = Row(0, 20, 2, alive=False, first=True)
    assert [stored for _, stored in show((START, ALL), (end, NO_FIRST), (NEXT[0], ALL))] == [True, False, True]


def test_a_lost_lane_keeps_its_mask():
    ((shown, stored),) = show((Row(0, NAN, first=True), [0, 1, 0, 0, 1]))
    assert not stored
    assert shown.obs[ACTION_MASK].tolist() == [[0, 1, 0, 0, 1]] and shown.obs["obs"].tolist() == [[0]]
