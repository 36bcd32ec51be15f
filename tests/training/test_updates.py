"""The updates that follow a collected rollout."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from algorithm.agents.agent import LossResult
from algorithm.training.batch_scheduler import OnPolicyScheduler
from algorithm.training.components import AgentComponents, run_updates
from algorithm.training.learner import Learner
from tests.builders import make_a2c, make_ppo, make_role, random_rollout

LANES, ROWS = 4, 6


class RecordingComponents:
    """Components whose calls are recorded; the batches are numbers, and those in `ending` end the epochs."""

    def __init__(self, batches, ending=()):
        self.calls = []
        self.learner = self.scheduler = self
        self.batches, self.ending = batches, ending

    def __call__(self, rollout):
        self.calls.append(("schedule", rollout.name))
        for batch in self.batches:
            self.calls.append(("yield", batch))
            yield batch

    def observe(self, rollout):
        self.calls.append(("observe", rollout))

    def record(self, rollout):
        self.calls.append(("record", rollout))
        return SimpleNamespace(name=f"{rollout} with records", raw_action="its actions")

    def compute_gradients(self, batch):
        self.calls.append(("compute", batch))
        return LossResult(dict, f"errors {batch}", kl_excess=1.0 if batch in self.ending else -1.0)

    def apply_gradients(self):
        self.calls.append(("apply",))

    def prioritize(self, batch, errors):
        self.calls.append(("prioritize", batch, errors))

    def compute_metrics(self, batch):
        return {"batch": batch}


def learn(components, rollout="rollout"):
    recorded = []
    run_updates(components, rollout, recorded.append)
    return recorded


def test_each_batch_is_learned_from_before_the_next_is_drawn():
    components = RecordingComponents([1, 2])
    reports = learn(components)
    assert [result.compute_metrics() for result in reports] == [{"batch": 1}, {"batch": 2}]
    assert {result.raw_action for result in reports} == {"its actions"}
    expected = [("observe", "rollout"), ("record", "rollout"), ("schedule", "rollout with records")]
    for batch in (1, 2):
        expected += [("yield", batch), ("compute", batch), ("apply",), ("prioritize", batch, f"errors {batch}")]
    assert components.calls == expected


def test_a_batch_that_ends_the_epochs_is_not_stepped_or_recorded_and_the_last():
    components = RecordingComponents([1, 2, 3], ending=[2])
    assert [result.compute_metrics() for result in learn(components)] == [{"batch": 1}]
    assert components.calls[-2:] == [("yield", 2), ("compute", 2)]


def make_components(agent) -> AgentComponents:
    role = make_role(LANES)
    learner = Learner(agent, role, {}, max_step=1000)
    scheduler = OnPolicyScheduler(
        agent.schedule, learner.prepare, has_memory=False, initial_lanes=LANES, rng=np.random.default_rng(0)
    )
    return AgentComponents(role=role, agent=agent, scheduler=scheduler, learner=learner)


def collect(seed: int = 0):
    return random_rollout(np.random.default_rng(seed), ROWS, LANES)


@pytest.mark.parametrize(
    ("make", "changes", "updates"),
    [
        (make_a2c, {}, 1),
        (make_ppo, {"epochs": 3, "minibatches": 2}, 6),
        (make_ppo, {"epochs": 3, "minibatches": 2, "target_kl": 1e9}, 6),
    ],
)
def test_an_update_follows_from_each_rollout_or_each_minibatch_of_each_epoch(make, changes, updates):
    components = make_components(make(make_role(LANES), **changes))
    assert len(learn(components, collect())) == components.learner.updates == updates
    assert components.learner.rows_seen == collect().valid.sum()


def test_the_target_kl_ends_the_epochs_before_a_step():
    agent = make_ppo(make_role(LANES), epochs=3, minibatches=2, target_kl=1e-3, learning_rate=0.1)
    components, rollout = make_components(agent), collect()
    for t in range(ROWS):
        rollout.behavior[t] = agent.policy.act({"obs": rollout.obs["obs"][t]}, np.zeros((LANES, 0), np.float32))[0]
    assert len(learn(components, rollout)) == components.learner.updates == 1  # then the divergence is larger
    vector = components.learner.parameters.vector.clone()
    assert learn(components, rollout) == [] and components.learner.parameters.vector.equal(vector)


def test_schedules_are_linear_in_the_collected_steps():
    agent = make_ppo(make_role(LANES), clip_ratio_schedule="linear", entropy_coef_schedule="linear", epochs=1)
    components, seen = make_components(agent), 0
    for seed in range(3):
        learn(components, collect(seed))
        seen += collect(seed).valid.sum()
        assert agent.progress == pytest.approx(seen / 1000)
        assert agent._compute_scale("linear", 0.0) == pytest.approx(1 - seen / 1000)
        assert agent._compute_scale("linear", 0.5) == pytest.approx(1 - seen / 2000)
        assert agent._compute_scale("constant", 0.0) == 1


def test_rewards_are_transformed_once_and_with_the_statistics_of_the_rollout():
    changes = {"reward_scale": 0.5, "reward_normalization": "return_std", "gamma": 0.5, "gae_lambda": 0.0}
    agent = make_ppo(make_role(LANES), epochs=2, minibatches=1, normalize_advantages=False, **changes)
    components, rollout, prepared = make_components(agent), collect(), []
    loss = agent.loss
    agent.loss = lambda batch: prepared.append(batch) or loss(batch)
    learn(components, rollout)
    scale = 0.5 / components.learner.reward_normalizer.moments.std.item()
    valid = rollout.valid
    for batch in prepared:  # two epochs of one minibatch each
        np.testing.assert_allclose(np.sort(batch.reward[0]), np.sort(scale * rollout.reward[valid]), rtol=1e-5)
