"""Agents that appear and request decisions at any tick: their lanes, rows and returns; statistics of scenes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from algorithm.adapters.scenes.scene import Batch, LaneAssignment, StatisticsCollector


def batch(*rows: tuple) -> Batch:
    """Return a Batch of rows (agent, observation, reward, interrupted)."""
    rows = [(*row, 0.0, False)[:4] if len(row) == 2 else (*row, False)[:4] for row in rows]
    agent, obs, reward, interrupted = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Batch(
        agent=np.array(agent, np.int64),
        obs={"obs": np.array(obs, np.float32).reshape(-1, 1)},
        reward=np.array(reward, np.float32),
        interrupted=np.array(interrupted, bool),
        group=np.zeros(len(rows), np.int64),
    )


def shown(step) -> list[tuple]:
    """Return (lane, observation, first, final, reward, alive) of each row."""
    if step is None:
        return []
    fields = (step.lane, step.obs["obs"][:, 0], step.first, step.is_bootstrap_row, step.reward, step.alive)
    return list(zip(*(field.tolist() for field in fields), strict=True))


def reject(lanes: int) -> int:
    """Raise an error for more agents than lanes."""
    raise OverflowError


def start(*agents: int, first=0, add=reject, **how) -> LaneAssignment:
    """Return the lanes from `first` on, in which the episodes of the agents have started."""
    lanes = LaneAssignment(first, len(agents), add, **how)
    lanes(batch(*((agent, 1) for agent in agents)), batch())
    return lanes


def ask(lanes: LaneAssignment, *rows: tuple) -> list[tuple]:
    """Return the shown rows of a tick in which no episode ends."""
    return shown(lanes(batch(*rows), batch())[1])


def test_a_truncation_with_a_new_request_is_a_final_row_and_then_a_first():
    lanes = start(7, 3, first=4)
    final, following, returns = lanes(batch((3, 3, 1), (7, 9, 0.25)), batch((7, 8, 2, True)))
    assert shown(final) == [(4, 8, False, True, 2, True)]
    assert shown(following) == [(4, 9, True, False, 0, True), (5, 3, False, False, 1, True)]
    assert returns == [2]


def test_a_termination_with_a_new_request_is_part_of_the_next_first_row():
    lanes = start(7, 3)
    final, following, returns = lanes(batch((3, 3, 1), (7, 9, 0.25)), batch((7, 8, 2)))
    assert final is None
    assert shown(following) == [(0, 9, True, False, 2, False), (1, 3, False, False, 1, True)]
    assert returns == [2]


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_termination_without_a_new_request_is_a_final_row(interrupted):
    lanes = start(7)
    final, following, _ = lanes(batch(), batch((7, 8, 2, interrupted)))
    assert shown(final) == [(0, 8, False, True, 2, interrupted)]
    assert following is None
    assert lanes(batch(), batch())[:2] == (None, None)
    assert ask(lanes, (7, 9, 5)) == [(0, 9, True, False, 0, True)]


def test_an_agent_keeps_its_lane_though_others_end_before_it():
    lanes = start(1, 2, 3)
    lanes(batch((1, 1)), batch((3, 3), (2, 2)))
    assert ask(lanes, (3, 4), (1, 5), (2, 6)) == [
        (0, 5, False, False, 0, True),
        (1, 6, True, False, 0, True),
        (2, 4, True, False, 0, True),
    ]


def test_a_new_agent_takes_the_lane_whose_episode_ended_first():
    lanes = start(1, 2)
    lanes(batch((1, 1)), batch((2, 2)))
    lanes(batch(), batch((1, 1)))
    assert ask(lanes, (9, 4)) == [(1, 4, True, False, 0, True)]
    assert ask(lanes, (2, 5), (9, 6, 1)) == [(0, 5, True, False, 0, True), (1, 6, False, False, 1, True)]


def test_a_new_agent_does_not_take_the_lane_of_an_agent_with_a_new_request():
    lanes = start(1, 2)
    lanes(batch((1, 1)), batch((2, 2)))
    lanes(batch(), batch((1, 1)))
    assert [row[:2] for row in ask(lanes, (9, 4), (2, 5))] == [(0, 4), (1, 5)]


def test_a_lane_is_added_for_an_agent_that_finds_none_free_and_the_others_keep_theirs():
    there = []

    def add(lanes):
        there.append(lanes)
        return 9 + len(there)

    lanes = start(1, 2, first=4, add=add)
    assert ask(lanes, (5, 7, 3), (2, 3, 0.5)) == [(5, 3, False, False, 0.5, True), (10, 7, True, False, 0, True)]
    assert lanes.active_lanes.tolist() == [10, 5]
    assert lanes.order_actions(np.array([1, 5, 10]), np.arange(3)[:, None]).ravel().tolist() == [2, 1]
    final, following, returns = lanes(batch((6, 1), (1, 4, 2)), batch((5, 8, 1)))
    # The new agent takes the lane of the ended one instead of another lane.
    assert shown(final) == [(10, 8, False, True, 1, False)]
    assert shown(following) == [(4, 4, False, False, 2, True), (10, 1, True, False, 0, True)]
    assert (returns, there) == ([1], [2])
    lanes.forget_episodes()
    assert [row[0] for row in ask(lanes, (7, 1), (8, 1), (9, 1), (11, 1))] == [4, 5, 10, 11]
    assert (there, len(lanes.lanes)) == ([2, 3], 4)


def test_a_silent_agent_loses_its_lane_and_its_episode_is_truncated():
    lanes = start(1, 2, max_silent_ticks=3)
    for _ in range(2):
        lanes(batch((1, 1)), batch())
    assert ask(lanes, (1, 1, 1), (5, 7, 3)) == [(0, 1, False, False, 1, True), (1, 7, True, False, 0, True)]
    with pytest.raises(OverflowError):
        lanes(batch((2, 2)), batch())


def test_an_agent_without_requests_keeps_its_lane_if_no_other_needs_it():
    lanes = start(1, 2, max_silent_ticks=3)
    for _ in range(20):
        lanes(batch((1, 1)), batch())
    assert ask(lanes, (2, 3, 4)) == [(1, 3, False, False, 4, True)]


def test_an_episode_without_a_decision_is_left_out():
    lanes = LaneAssignment(0, 2, reject)
    lanes(batch((1, 1)), batch())
    assert lanes(batch(), batch((2, 5, 3), (9, 9, 9, True))) == (None, None, [])


def test_returns_are_the_sums_of_the_rewards_of_the_rows():
    rng = np.random.default_rng(0)
    lanes, total, returned = LaneAssignment(0, 4, reject), 0.0, 0.0
    for _ in range(300):
        asking = rng.permutation(4)[: rng.integers(5)]
        ending = rng.permutation(4)[: rng.integers(2)]
        final, following, returns = lanes(
            batch(*[(int(a), 0, float(rng.integers(9))) for a in asking]),
            batch(*[(int(a), 0, float(rng.integers(9)), bool(rng.integers(2))) for a in ending]),
        )
        total += sum(float(step.reward.sum()) for step in (final, following) if step is not None)
        returned += sum(returns)
    assert returned + sum(lane.episode_return for lane in lanes.lanes) == total
    assert returned > 100


def test_statistics_are_aggregated_as_the_scene_requests():
    statistics = StatisticsCollector()
    statistics.add({"mean": [(1.0, 0), (3.0, 0)], "last": [(5.0, 1)], "sum": [(1.0, 2)]})
    statistics.add({"mean": [(8.0, 0)], "last": [(7.0, 1)], "sum": [(2.0, 2)], "shape": [(4.0, 3), (6.0, 3)]})
    assert statistics.take() == {"mean": 4.0, "last": 7.0, "sum": 3.0, "shape": 5.0}
    assert statistics.take() == {}


def test_groups_have_numbers_that_are_unique_over_all_scenes():
    first, second = (LaneAssignment(lane, 2, reject) for lane in (0, 2))
    steps = []
    for lanes, groups in ((first, [5, 0]), (second, [5, 5])):
        decisions = replace(batch((1, 0), (2, 0)), group=np.array(groups))
        steps.append(lanes(decisions, batch())[1].group.tolist())
    assert steps[0][1] < 0 < steps[0][0] != steps[1][0] == steps[1][1] > 0
