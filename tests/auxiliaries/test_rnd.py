"""Random network distillation: the bonus and its running std by literal loops, the fixed target, novelty, warm-up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from algorithm.auxiliaries.auxiliary import AuxiliaryInputs
from algorithm.auxiliaries.episodic import Episodic
from algorithm.auxiliaries.rnd import Rnd
from algorithm.auxiliaries.settings import RndSettings
from algorithm.returns import RewardStream
from algorithm.rollout import Rollout
from algorithm.training.learner import Learner
from tests.auxiliaries.cases import AGENTS, PLAIN, RECURRENT, ROLE, STACKED, make_rollout
from tests.builders import make_a2c, make_acer, make_ppo, make_role, random_rollout, update


def make_learner(make=make_acer, role=None, blueprint=None, **settings) -> tuple[Learner, Rnd]:
    """Return a learner with an Rnd of small networks, which has no warm-up unless the settings have one.

    A2C and PPO have a value of its rewards.
    """
    role, rnd = role or make_role(), Rnd(RndSettings(**{"units": 16, "outputs": 8, "warmup_steps": 0, **settings}))
    streams = {"streams": {"rnd": rnd.stream}} if make in (make_a2c, make_ppo) and rnd.stream else {}
    return Learner(make(role, blueprint, **streams), role, {"rnd": rnd}, None), rnd


def make_inputs(rollout: Rollout) -> AuxiliaryInputs:
    batch = rollout.convert(torch.from_numpy)
    return AuxiliaryInputs(batch=batch, torso=None, compute_features=None, encode=None, update=1)


def mark_replayed(rollout: Rollout) -> Rollout:
    """Return the same rows as of a replayed batch."""
    return replace(rollout, index=np.arange(len(rollout.lane)))


@torch.no_grad()
def compute_reward(rnd: Rnd, rollout: Rollout) -> np.ndarray:
    return rnd.reward(make_inputs(rollout)).numpy()


def compute_bonus(rnd: Rnd, obs: np.ndarray, action: np.ndarray | None = None) -> float:
    """Return the error of the predictor for one vector, normalized by the statistics of `rnd`."""
    moments = rnd.normalizer.normalizers[0].moments
    x = np.clip((obs - moments.mean.numpy()) / moments.std.numpy(), -5, 5)
    rows = {"obs": torch.from_numpy(x.astype(np.float32)).unsqueeze(0)}
    one_hot = (
        np.zeros((1, 1, 0), np.float32) if action is None else np.eye(3, dtype=np.float32)[None, action.astype(int)]
    )
    with torch.no_grad():
        difference = rnd.target(rows, torch.from_numpy(one_hot)) - rnd.predictor(rows, torch.from_numpy(one_hot))
    return float(difference.square().mean())


@pytest.mark.parametrize("name", ["observation", "observation_and_action"])
def test_the_bonus_is_that_of_a_literal_loop(name):
    learner, rnd = make_learner(input=name)
    rollouts = [random_rollout(np.random.default_rng(seed), rows=7) for seed in range(3)]
    for rollout in rollouts:
        learner.observe(rollout)
    rollout, std = rollouts[-1], float(rnd.return_moments.std)
    expected = np.zeros_like(rollout.reward)
    for t, lane in np.ndindex(expected.shape):
        ends = rollout.first[t + 1, lane]
        if name == "observation" and not ends:
            expected[t, lane] = compute_bonus(rnd, rollout.obs["obs"][t + 1, lane]) / std
        if name == "observation_and_action" and not (ends and rollout.alive[t, lane]):
            expected[t, lane] = compute_bonus(rnd, rollout.obs["obs"][t, lane], rollout.raw_action[t, lane]) / std
    assert 0 < (expected == 0).mean() < 0.7
    for batch in (rollout, mark_replayed(rollout)):
        np.testing.assert_allclose(compute_reward(rnd, batch), expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("make", "is_set", "crosses_episodes"), [(make_a2c, True, True), (make_a2c, False, False), (make_acer, True, False)]
)
def test_the_divisor_is_the_std_of_the_discounted_sums_up_to_each_row(make, is_set, crosses_episodes, monkeypatch):
    learner, rnd = make_learner(make, gamma=0.9, crosses_episodes=is_set)
    rng, sums, seen = np.random.default_rng(0), {}, []
    for number in range(6):
        rollout = random_rollout(rng, rows=5, columns=4)
        rollout.lane = np.array([0, 2, 2, 3])  # two columns of lane 2, one after the other
        rollout.continues_previous = np.array([True, number % 2 == 0, True, number != 3])
        error = rng.exponential(size=rollout.reward.shape).astype(np.float32)
        monkeypatch.setattr(rnd, "_compute_error", lambda obs, action, error=error: torch.from_numpy(error).flatten())
        learner.observe(rollout)
        for column, lane in enumerate(rollout.lane):
            total = sums.get(lane, 0.0) if rollout.continues_previous[column] else 0.0
            for t in range(5):
                if rollout.first[t, column] and not crosses_episodes:
                    total = 0.0
                if rollout.valid[t, column]:
                    total = 0.9 * total + float(error[t, column]) * (not rollout.first[t + 1, column])
                    seen.append(total)
            sums[lane] = total
    assert float(rnd.return_moments.std) == pytest.approx(np.std(seen), rel=1e-10)
    np.testing.assert_allclose(rnd.running_sums, [sums[0], 0, sums[2], sums[3]], rtol=1e-12)


def test_rewards_are_zero_until_enough_rows_have_been_observed():
    learner, rnd = make_learner(warmup_steps=40)
    rng = np.random.default_rng(0)
    for _ in range(3):
        rollout = random_rollout(rng)
        learner.observe(rollout)
        is_warm = learner.rows_seen >= 40
        for batch in (rollout, mark_replayed(rollout)):
            assert compute_reward(rnd, batch).any() == is_warm
        assert bool(rnd.return_moments.count) == is_warm
    assert is_warm


def test_a_strength_of_zero_adds_no_reward():
    learner, rnd = make_learner(make_a2c, strength=0.0)
    rollout = random_rollout(np.random.default_rng(0))
    learner.observe(rollout)
    assert rnd.reward(make_inputs(rollout)) is None


@pytest.mark.parametrize("kind", [Rnd, Episodic])
def test_a_stream_has_the_settings(kind):
    auxiliary = kind(kind.Settings(strength=0.3, gamma=0.95, crosses_episodes=False))
    assert auxiliary.stream == RewardStream(gamma=0.95, weight=0.3, crosses_episodes=False)
    assert auxiliary.reward_weight == 0.3
    assert kind(kind.Settings(strength=0.0)).stream is None
    with pytest.raises(ValueError, match="gamma 1 needs crosses_episodes: false"):
        kind.Settings(gamma=1.0, crosses_episodes=True)
    assert kind.Settings(gamma=1.0, crosses_episodes=False).gamma == 1


def test_the_gradient_of_the_loss_reaches_the_predictor_only():
    learner, rnd = make_learner(predictor_share=1.0)
    rollout = random_rollout(np.random.default_rng(0))
    learner.observe(rollout)
    learner.parameters.gradient.zero_()
    loss, _ = rnd.loss(make_inputs(rollout))
    loss.backward()
    columns = learner.parameters.group_slices["auxiliary/rnd"]
    assert learner.parameters.gradient[columns].any()
    learner.parameters.gradient[columns] = 0
    assert not learner.parameters.gradient.any()
    assert not any(parameter.requires_grad for parameter in rnd.target.parameters())
    error = rnd._collected_error.numpy()[rollout.same_episode]
    assert loss.item() == pytest.approx(error.mean(), rel=1e-5)


def test_the_loss_reads_a_share_of_the_rows(monkeypatch):
    rnd = make_learner(predictor_share=0.25)[1]
    rollout, counts = random_rollout(np.random.default_rng(0), rows=6, columns=3), []
    compute_error = rnd._compute_error
    monkeypatch.setattr(
        rnd, "_compute_error", lambda obs, action: (counts.append(len(action)), compute_error(obs, action))[1]
    )
    assert rnd.loss(make_inputs(rollout))[0] > 0
    assert counts == [5]  # of 18
    rollout.first[1:] = True
    assert rnd.loss(make_inputs(rollout))[0] == 0


def test_the_novelty_of_actions_is_the_error():
    learner, rnd = make_learner(input="observation_and_action")
    rollout = random_rollout(np.random.default_rng(0), rows=1)
    learner.observe(rollout)
    obs, actions = rollout.obs["obs"][0], np.tile(np.arange(3, dtype=np.float32)[:, None], (4, 1, 1))
    novelty = rnd.compute_novelty({"obs": obs}, actions)
    expected = [[compute_bonus(rnd, obs[lane], np.array([action])) for action in range(3)] for lane in range(4)]
    np.testing.assert_allclose(novelty, expected, rtol=1e-5)
    assert make_learner()[1].compute_novelty is None


def test_added_lanes_start_with_a_sum_of_zero_and_sums_are_restored():
    learner, rnd = make_learner()
    learner.observe(random_rollout(np.random.default_rng(0)))
    state = rnd.state()
    assert (state["running_sums"] > 0).all()
    rnd.grow(6)
    np.testing.assert_array_equal(rnd.running_sums, [*state["running_sums"], 0, 0])
    other = make_learner()[1]
    other.restore(state)
    np.testing.assert_array_equal(other.running_sums, state["running_sums"])


def test_a_reward_that_is_not_finite_is_named_and_changes_no_statistic(caplog):
    learner, rnd = make_learner()
    rollout = random_rollout(np.random.default_rng(0))
    learner.observe(rollout)
    moments = rnd.return_moments.mean.clone()
    with torch.no_grad():
        rnd.predictor.output.bias.fill_(torch.nan)
    rollout.first[:] = False
    learner.observe(rollout)
    learner.compute_gradients(rollout)
    assert "the reward of auxiliaries.rnd is NaN" in caplog.text
    assert rnd.return_moments.mean == moments


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("blueprint", [PLAIN, STACKED, RECURRENT], ids=["plain", "stacked", "recurrent"])
def test_every_agent_learns_with_it(name, blueprint):
    learner, _ = make_learner(AGENTS[name], ROLE, blueprint)
    rollout = make_rollout(learner.agent)
    learner.observe(rollout)
    group = learner.parameters.group_slices["auxiliary/rnd"]
    before = learner.parameters.vector[group].clone()
    batch = learner.prepare(rollout) if name == "ppo" else rollout
    if name == "ppo" and not learner.agent.state_size:
        batch = batch.split_rows().take_columns(np.arange(9))
    metrics = update(learner, batch).compute_metrics()
    assert metrics["train/rnd_loss"] > 0 and metrics["train/rnd_reward"] > 0
    assert not torch.equal(learner.parameters.vector[group], before)
