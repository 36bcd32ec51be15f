from __future__ import annotations

import numpy as np
import pytest

from algorithm.adapters.probe import ProbeAdapter
from algorithm.loop.evaluator import Evaluator
from tests.doubles import Row, ScriptedAdapter, ShowingAgent, step_of


def lane_row(lane: int, t: int, length: int, reward: float, shown: bool) -> Row:
    """Episodes of `length` decisions, cut with a final row where `shown`, else ended by death."""
    age = t % (length + shown)
    first, began = age == 0, t == 0
    return Row(
        lane,
        obs=10 * lane + age,
        reward=0 if began or (first and shown) else reward,
        alive=began or not first or shown,
        first=first,
        final=age == length,
    )


def adapter_of(*lanes: tuple[int, float], shown: bool = False, ticks: int = 60) -> ScriptedAdapter:
    """A lane for each (length, reward per decision)."""
    return ScriptedAdapter(
        [
            {
                "agent": step_of(
                    *[lane_row(lane, t, length, reward, shown) for lane, (length, reward) in enumerate(lanes)]
                )
            }
            for t in range(ticks)
        ],
        agent=len(lanes),
    )


def play(adapter, episodes, agent=None, greedy=True):
    agent = agent or ShowingAgent(collect_steps=1)
    return Evaluator(adapter, lambda role: agent, greedy).play(episodes, seed=0)["agent"]


@pytest.mark.parametrize("shown", [False, True], ids=["deaths", "cuts"])
def test_short_episodes_count_no_more_than_long_ones(shown):
    played = play(adapter_of((1, 1.0), (9, 1.0), shown=shown), episodes=6)
    assert sorted(played.lengths) == [1, 1, 1, 9, 9, 9]
    assert played.length == 5


@pytest.mark.parametrize(("episodes", "each"), [(1, 1), (3, 1), (4, 2), (20, 7)])
def test_every_lane_plays_as_many_episodes_and_all_at_least_what_was_asked(episodes, each):
    played = play(adapter_of((1, 1.0), (2, 10.0), (3, 100.0)), episodes)
    assert sorted(played.returns) == [1] * each + [20] * each + [300] * each


def test_returns_are_raw_and_undiscounted():
    played = play(adapter_of((4, -250.5), (2, 0.25)), episodes=2)
    assert sorted(played.returns) == [-1002, 0.5]
    assert played.mean == pytest.approx((-1002 + 0.5) / 2)
    assert played.std == pytest.approx((1002 + 0.5) / 2)


def test_final_rows_are_no_part_of_a_length_or_of_a_return():
    played = play(adapter_of((3, 2.0), shown=True), episodes=3)
    assert (played.returns, played.lengths) == ([6, 6, 6], [3, 3, 3])


@pytest.mark.parametrize(("greedy", "actions"), [(True, [1, 0, 1]), (False, [0, 1, 0])])
def test_actions_are_greedy_where_that_was_asked(greedy, actions):
    adapter = adapter_of((5, 1.0))
    play(adapter, episodes=1, greedy=greedy)
    assert [action["agent"].item() for action in adapter.actions][:3] == actions


def test_memory_is_zero_at_every_first_row():
    class Remembering(ShowingAgent):
        def greedy(self, step, memory):
            seen.append(memory.ravel().tolist())
            return super().greedy(step, memory)

    seen = []
    play(adapter_of((2, 1.0), (3, 1.0)), episodes=4, agent=Remembering(collect_steps=1))
    assert seen[:6] == [[0, 0], [1, 1], [0, 2], [1, 0], [0, 1], [1, 2]]


def test_every_role_plays_its_episodes():
    ticks = [
        {"left": step_of(lane_row(0, t, 1, 1.0, False)), "right": step_of(lane_row(0, t, 4, 1.0, False))}
        for t in range(30)
    ]
    agent = ShowingAgent(collect_steps=1)
    played = Evaluator(ScriptedAdapter(ticks, left=1, right=1), lambda role: agent, greedy=True).play(3, seed=0)
    assert played["left"].lengths == [1, 1, 1]
    assert played["right"].lengths == [4, 4, 4]


def test_the_simulator_is_seeded():
    adapter = adapter_of((1, 1.0))
    agent = ShowingAgent(collect_steps=1)
    Evaluator(adapter, lambda role: agent, greedy=True).play(1, seed=77)
    assert adapter.seed == 77


def test_playing_again_starts_anew():
    adapter = ProbeAdapter("truncation", 3, {})
    agent = ShowingAgent(collect_steps=1)
    evaluator = Evaluator(adapter, lambda role: agent, greedy=True)
    for seed in (1, 2):
        played = evaluator.play(6, seed)["agent"]
        assert played.lengths == [10] * 6
        np.testing.assert_array_equal(played.returns, 10)
