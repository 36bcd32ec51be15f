"""The limits of a run."""

from __future__ import annotations

from dataclasses import replace

from algorithm.training.limits import Limits
from algorithm.training.progress import Counters


def test_the_limits_that_a_run_has_reached_before_it_starts():
    counters = Counters(env_steps=1200, iterations=3)
    limits = Limits(log_every=10, max_step=1000, max_iter=3, pause_at=900, evaluation_episodes=20)
    assert limits.list_reached(counters) == [
        "the run has ended already, after 1,200 env steps: base_config.max_step above 1,000 continues it",
        "the run has ended already, after 3 iterations: base_config.max_iter above 3 continues it",
    ]
    assert replace(limits, max_step=1201, max_iter=None).list_reached(counters) == []
