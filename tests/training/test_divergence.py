from unittest.mock import Mock

import numpy as np
import pytest

from algorithm.rollout import Rollout
from algorithm.training.components import AgentComponents, Diverged, DivergenceDetector, TrainingComponents
from algorithm.training.learner import Learner
from tests.builders import make_acer, make_role, random_rollout, update

GOOD = random_rollout(np.random.default_rng(0))
BAD = random_rollout(np.random.default_rng(0))
BAD.reward[:] = np.nan


def team() -> AgentComponents:
    role = make_role()
    agent = make_acer(role)
    return AgentComponents(role=role, agent=agent, scheduler=None, learner=Learner(agent, role, {}, None))


def learn(limit: int, *rounds: dict[str, Rollout], **teams: AgentComponents) -> DivergenceDetector:
    """Return a detector that has counted an update of each role from its batch in each round."""
    divergence = DivergenceDetector(TrainingComponents(None, None, teams), limit)
    for batches in rounds:
        for role, batch in batches.items():
            update(teams[role].learner, batch)
            divergence.count_update()
    return divergence


def test_successive_skipped_updates_end_the_run():
    one = team()
    learn(3, *[{"agent": BAD}] * 2, agent=one)
    assert one.learner.consecutive_skips == 2
    with pytest.raises(Diverged, match="the last 3 updates of role 'agent'.*max_nonfinite_updates is 3"):
        learn(3, *[{"agent": BAD}] * 3, agent=team())


def test_a_finite_update_resets_the_count(caplog):
    one = team()
    learn(3, *[{"agent": BAD}, {"agent": BAD}, {"agent": GOOD}] * 4, agent=one)
    assert one.learner.skipped_updates == 8
    assert one.learner.consecutive_skips == 0
    assert "2 updates of role 'agent' were skipped up to update 3:" in caplog.text


def test_each_role_is_counted_and_logged_separately(caplog):
    with pytest.raises(Diverged, match="role 'bad'"):
        learn(2, *[{"good": GOOD, "bad": BAD}] * 2, good=team(), bad=team())
    assert "'good'" not in caplog.text


def test_updates_that_were_skipped_before_a_resume_are_not_logged_again(caplog):
    one = team()
    update(one.learner, BAD)
    learn(5, agent=one).check()
    assert not caplog.records


def test_checks_are_rare(monkeypatch):
    divergence = learn(1000)
    monkeypatch.setattr(divergence, "check", check := Mock())
    for _ in range(250):
        divergence.count_update()
    assert check.call_count == 2
