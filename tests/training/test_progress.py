import json
from math import isnan

import numpy as np

from algorithm.training.invalid_values import Episode
from algorithm.training.progress import WINDOW, Counters, History, RecentEpisodes
from tests.adapters.configs import config
from tests.doubles import ParityAgent, make_components
from tests.fakes import Skipping


def history_of(lanes: int) -> History:
    parts = make_components(Skipping(config("", lanes, {})), ParityAgent(rollout_length=4))
    parts.get("agent")
    return History(parts, Counters())


def end_episodes(history: History, active: dict[str, np.ndarray], *lanes: int) -> int:
    """End an episode in each of these lanes in one tick. Return the number of iterations."""
    episodes = [Episode(role="agent", lane=lane, episode_return=1.0, length=5) for lane in lanes]
    history.add_episodes(episodes, active)
    return history.counters.iterations


def shown(lanes: int) -> dict[str, np.ndarray]:
    return {"agent": np.ones(lanes, bool)}


def test_the_mean_needs_an_episode_and_the_best_a_full_window():
    recent = RecentEpisodes()
    assert isnan(recent.mean) and isnan(recent.length)
    for _ in range(WINDOW - 1):
        recent.add(3.0, 7)
    assert (recent.mean, recent.length, recent.is_full, recent.best) == (3, 7, False, None)
    recent.add(3.0, 7)
    assert (recent.is_full, recent.first, recent.best) == (True, 3, 3)


def test_an_iteration_is_over_when_every_lane_has_ended_an_episode():
    history = history_of(lanes=2)
    assert [end_episodes(history, shown(2), lane) for lane in (0, 0, 1, 1, 0)] == [0, 0, 1, 1, 2]
    assert history.counters.episodes == 5


def test_episodes_of_one_tick_end_one_iteration_and_the_others_belong_to_the_next():
    history = history_of(lanes=2)
    end_episodes(history, shown(2), 1)
    assert end_episodes(history, shown(2), 0, 1) == 1 and history.state()["ended"] == {"agent": [1]}
    assert end_episodes(history, shown(2), 0) == 2


def test_an_iteration_waits_for_added_lanes_but_not_for_inactive_ones():
    history, lanes = history_of(lanes=2), shown(2)
    end_episodes(history, lanes, 0)
    lanes = shown(3)  # an agent was added in the middle of the iteration
    assert end_episodes(history, lanes, 1) == 0
    assert end_episodes(history, lanes, 2) == 1 and lanes["agent"].tolist() == [False] * 3
    lanes["agent"][:2] = True  # and has had no row since
    assert end_episodes(history, lanes, 0, 1) == 2


def test_a_restored_history_continues_as_the_first():
    first, second = history_of(lanes=2), history_of(lanes=2)
    for number in range(2 * WINDOW + 1):
        episode = Episode(role="agent", lane=number % 2, episode_return=float(-number), length=number)
        first.add_episodes([episode], shown(2))
    second.restore(json.loads(json.dumps(first.state())))
    for history in (first, second):
        end_episodes(history, shown(2), 1)
    assert second.state() == first.state()
    assert second.counters.iterations == 1  # lane 0 had ended its episode before
    assert second.recent["agent"].mean == first.recent["agent"].mean
