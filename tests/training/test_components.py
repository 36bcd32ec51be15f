from dataclasses import replace

import numpy as np
import pytest

from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training import components
from algorithm.training.actor import Actor
from algorithm.training.components import PHASES, AgentComponents, Timer
from tests.adapters.configs import config
from tests.builders import make_acer, make_role, make_sac
from tests.doubles import ParityAgent, Row, UpdateCounter, make_components, make_step
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


def test_cpu_seconds_count_from_the_start_of_the_timer_with_those_that_are_added():
    measured = iter([100.0, 103.0, 104.0])
    timer = Timer(lambda: next(measured))
    assert timer.cpu_seconds == 3
    timer.add_cpu_seconds(0.5)
    assert timer.cpu_seconds == 4.5


def test_the_first_rows_have_uniformly_random_actions():
    role = Role(500, {"obs": ObsSpec((3,))}, ActionSpec(2))
    agent, learner = make_sac(role, random_steps=700, std_init=0.02), UpdateCounter()
    components = AgentComponents(role=role, agent=agent, scheduler=None, learner=learner)
    obs = {"obs": np.zeros((500, 3), np.float32)}
    step = replace(make_step(*(Row(lane, 0) for lane in range(500))), obs=obs)
    for learner.rows_seen, spread in [(0, 1.0), (699, 1.0), (700, 0.1)]:
        decision = components.act(step, np.zeros((500, 0), np.float32))
        assert 0.5 * spread < np.abs(decision.action).max() <= spread
        np.testing.assert_allclose(np.tanh(decision.raw_action), decision.action, atol=1e-6)
        assert decision.behavior.shape == (500, 4)
    with pytest.raises(NotImplementedError, match="Acer sets random_steps, but has no `act_uniformly`"):
        make_acer(make_role()).act_uniformly(step, np.zeros((500, 0), np.float32))


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
