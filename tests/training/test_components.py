import pytest

from algorithm.training import components
from algorithm.training.actor import Actor
from algorithm.training.components import PHASES, Timer
from tests.adapters.configs import config
from tests.doubles import ParityAgent, make_components
from tests.fakes import Skipping


@pytest.fixture
def wait(monkeypatch):
    """A clock that the test advances."""
    now = [100.0]
    monkeypatch.setattr(components, "perf_counter", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def test_time_counts_for_the_phase_that_ended(wait):
    booked = Timer()
    wait(1)
    booked.lap("acting")
    wait(2)
    booked.lap("environment")
    wait(4)
    booked.lap("acting")
    assert booked.seconds == {**dict.fromkeys(PHASES, 0.0), "acting": 5, "environment": 2}
    assert booked.last_lap == 107
    assert booked.total == 7


def test_a_lap_is_divided_in_proportion(wait):
    timer = Timer()
    wait(8)
    timer.split_lap({"environment": 3.0, "acting": 0.0, "learning": 1.0})
    wait(5)
    timer.split_lap({"environment": 0.0, "acting": 0.0})
    assert timer.seconds == {**dict.fromkeys(PHASES, 0.0), "environment": 6, "learning": 2 + 5}
    assert timer.total == 13


def test_a_restarted_lap_counts_for_no_phase(wait):
    timer = Timer()
    wait(3)
    timer.restart()
    wait(2)
    timer.lap("acting")
    assert timer.total == timer.seconds["acting"] == 2


def test_a_tick_is_acting_and_then_the_environment(wait):
    class Slow(Skipping):
        def step(self, actions):
            wait(3)
            return super().step(actions)

    class Thoughtful(ParityAgent):
        def act(self, step, memory):
            wait(5)
            return super().act(step, memory)

    parts = make_components(Slow(config("", 2)), Thoughtful(rollout_length=4))
    actor = Actor(parts, seed=0)
    for _ in range(2):
        actor.collect()
    assert parts.timer.seconds == {**dict.fromkeys(PHASES, 0.0), "acting": 10, "environment": 6}
