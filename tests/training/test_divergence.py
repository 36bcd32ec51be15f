import logging

import numpy as np
import pytest

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


def make_components(**teams: AgentComponents) -> TrainingComponents:
    return TrainingComponents(None, None, teams)


def learn(divergence: DivergenceDetector, one: AgentComponents, *batches) -> None:
    for batch in batches:
        update(one.learner, batch)
        divergence.count_update()


def test_successive_skipped_updates_end_the_run():
    one = team()
    divergence = DivergenceDetector(make_components(agent=one), 3)
    learn(divergence, one, BAD, BAD)
    assert one.learner.consecutive_skips == 2
    with pytest.raises(Diverged, match="the last 3 updates of role 'agent'.*max_nonfinite_updates is 3"):
        learn(divergence, one, BAD)


def test_a_finite_update_resets_the_count(caplog):
    one = team()
    divergence = DivergenceDetector(make_components(agent=one), 3)
    learn(divergence, one, *[BAD, BAD, GOOD] * 4)
    assert one.learner.skipped_updates == 8
    assert one.learner.consecutive_skips == 0
    assert "2 updates of role 'agent' were skipped up to update 3:" in caplog.text


def test_each_role_is_counted_and_logged_separately(caplog):
    good, bad = team(), team()
    divergence = DivergenceDetector(make_components(good=good, bad=bad), 2)
    with caplog.at_level(logging.WARNING), pytest.raises(Diverged, match="role 'bad'"):
        for _ in range(2):
            learn(divergence, good, GOOD)
            learn(divergence, bad, BAD)
    assert "'good'" not in caplog.text


def test_updates_that_were_skipped_before_a_resume_are_not_logged_again(caplog):
    one = team()
    update(one.learner, BAD)
    divergence = DivergenceDetector(make_components(agent=one), 5)
    divergence.check()
    assert not caplog.records


def test_checks_are_rare(monkeypatch):
    looks = []
    divergence = DivergenceDetector(make_components(), 1000)
    monkeypatch.setattr(divergence, "check", lambda: looks.append(1))
    for _ in range(250):
        divergence.count_update()
    assert len(looks) == 2
