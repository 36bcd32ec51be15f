import json
from math import isnan

from algorithm.loop.actor import Episode
from algorithm.loop.history import WINDOW, Counters, History, Recent
from tests.adapters.configs import config
from tests.doubles import ShowingAgent, parts_of
from tests.fakes import Skipping


def history_of(lanes: int) -> History:
    parts = parts_of(Skipping(config("", lanes, {})), ShowingAgent(collect_steps=4))
    parts.team("agent")
    return History(parts, Counters())


def test_there_is_no_mean_before_an_episode_and_no_best_before_a_full_window():
    recent = Recent()
    assert isnan(recent.mean) and isnan(recent.length)
    for _ in range(WINDOW - 1):
        recent.add(3.0, 7)
    assert (recent.mean, recent.length, recent.full, recent.best) == (3, 7, False, None)
    recent.add(3.0, 7)
    assert (recent.full, recent.first, recent.best) == (True, 3, 3)


def test_the_mean_is_of_the_last_episodes_and_the_best_of_all_windows():
    recent = Recent()
    for reward in [*[-10.0] * WINDOW, *[10.0] * WINDOW, *[0.0] * WINDOW]:
        recent.add(reward, 1)
    assert (recent.mean, recent.first, recent.best) == (0, -10, 10)


def test_an_iteration_is_over_when_every_lane_has_ended_an_episode():
    history = history_of(lanes=2)
    for lane, iterations in [(0, 0), (0, 0), (1, 1), (1, 1), (0, 2)]:
        history.episode(Episode("agent", lane, 1.0, 5))
        assert history.counters.iterations == iterations
    assert history.counters.episodes == 5


def test_a_restored_history_counts_on_as_the_first_would():
    first, second = history_of(lanes=2), history_of(lanes=2)
    for number in range(2 * WINDOW + 1):
        first.episode(Episode("agent", number % 2, float(-number), number))
    second.restore(json.loads(json.dumps(first.state())))
    for history in (first, second):
        history.episode(Episode("agent", 1, 8.0, 3))
    assert second.state() == first.state()
    assert second.counters.iterations == 1  # lane 0 had ended its episode before
    assert second.recent["agent"].mean == first.recent["agent"].mean
