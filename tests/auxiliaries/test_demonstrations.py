"""Behavior cloning and GAIL: known answers, every kind of policy, and a discriminator that decides for the player."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from algorithm.auxiliaries.cloning import BehaviorCloning
from algorithm.auxiliaries.gail import Gail
from algorithm.demonstrations import Demonstrations
from algorithm.errors import UserError
from algorithm.networks import Blueprint, FrameStack, Gru, Mlp, Vector
from algorithm.parts.demonstrations import make_replay
from algorithm.specs import ACTION_MASK, ActionSpec
from algorithm.training.learner import Learner
from tests.auxiliaries.cases import AGENTS
from tests.builders import make_role, make_sac, random_rollout_of, update

KINDS = {
    "branch": ActionSpec(branches=(3,)),
    "branches": ActionSpec(branches=(3, 2)),
    "continuous": ActionSpec(continuous=2),
    "hybrid": ActionSpec(continuous=1, branches=(3,)),
}
PLAIN = Blueprint({"*": Vector()}, body=Mlp(16))
RECURRENT = Blueprint({"*": FrameStack(2, Vector())}, body=Mlp(16), memory=Gru(8))


def make_player(role, rows: int = 200, seed: int = 0, offset: float = 0.0) -> Demonstrations:
    """Return episodes of a player whose actions follow from the signs of its observation, less `offset`."""
    rng, spec = np.random.default_rng(seed), role.action_spec
    obs = rng.normal(size=(rows, 3)).astype(np.float32)
    columns = [0.6 * np.sign(obs[:, i : i + 1]) for i in range(spec.continuous)]
    columns += [(obs[:, :1] > 0).astype(int) * (branch - 1) for branch in spec.branches]
    mask = {ACTION_MASK: np.ones((rows, sum(spec.branches)), np.uint8)} if ACTION_MASK in role.obs_specs else {}
    return Demonstrations(
        role=replace(role, lanes=1),
        obs={"obs": obs + np.float32(offset), **mask},
        action=np.concatenate(columns, -1).astype(np.float32),
        reward=np.zeros(rows, np.float32),
        alive=np.arange(1, rows + 1) % 20 != 0,
        first=np.arange(rows) % 20 == 0,
        is_bootstrap_row=np.zeros(rows, bool),
    )


def make_learner(
    auxiliary, agent_name: str, spec: ActionSpec, blueprint=PLAIN, masked=False, player=make_player, **changes
) -> Learner:
    role = make_role(spec=spec, masked=masked and bool(spec.branches))
    agent = AGENTS[agent_name](role, blueprint, **changes)
    auxiliary.open_demonstrations = partial(make_replay, player(role), agent, 7)
    return Learner(agent, role, {"it": auxiliary}, None)


def choose(learner: Learner, obs: np.ndarray) -> np.ndarray:
    """Return the most probable executed actions at the start of episodes."""
    agent = learner.agent
    statistics, _ = agent.policy.act({"obs": obs}, np.zeros((len(obs), agent.state_size), np.float32))
    return agent.family.to_action(agent.family.mode(statistics))


@pytest.mark.parametrize("agent_name", AGENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_pretraining_clones_every_kind_of_policy(agent_name, kind):
    if agent_name == "reactor" and KINDS[kind].continuous:
        pytest.skip("discrete actions only")
    cloning = BehaviorCloning(BehaviorCloning.Settings(pretraining_updates=300, batch_size=32))
    rate = {"learning_rate_policy" if agent_name == "sac" else "learning_rate": 6e-3}
    learner = make_learner(cloning, agent_name, KINDS[kind], **rate)
    first, last = learner.pretrain(cloning)
    assert last < first - 0.5
    player = make_player(make_role(spec=KINDS[kind]), seed=1)
    wrong = np.abs(choose(learner, player.obs["obs"]) - player.action) > 0.6  # another branch, or another sign
    assert wrong.mean() < 0.15
    for target in learner.agent.target_networks.values():
        torch.testing.assert_close(target.vector, target.source_vector)
    assert learner.updates == 0


def test_pretraining_normalizes_observations_as_the_run_does():
    spec, blueprint = KINDS["branch"], Blueprint({"*": Vector(normalize=True)}, body=Mlp(16))
    cloning = BehaviorCloning(BehaviorCloning.Settings(pretraining_updates=600, batch_size=32))
    learner = make_learner(cloning, "ppo", spec, blueprint, player=partial(make_player, offset=100), learning_rate=3e-3)
    learner.pretrain(cloning)
    player = make_player(make_role(spec=spec), seed=1, offset=100)
    learner.agent.observe(make_replay(player, learner.agent, 0).make_rollout())  # the first rollout of the run
    assert (choose(learner, player.obs["obs"]) != player.action).mean() < 0.15


@pytest.mark.parametrize("agent_name", AGENTS)
def test_a_memory_and_frames_are_rebuilt_from_the_rows_before_a_sequence(agent_name):
    cloning = BehaviorCloning(BehaviorCloning.Settings(pretraining_updates=5, batch_size=8))
    learner = make_learner(cloning, agent_name, KINDS["branch"], RECURRENT)
    batch = cloning.replay.sample(8, 0).convert(torch.from_numpy)
    statistics = learner.agent.compute_statistics(batch)
    rows, memory = [], np.zeros((8, learner.agent.state_size), np.float32)
    for t in range(len(batch)):  # one step at a time, as it acts
        memory[batch.first[t].numpy()] = 0
        row, memory = learner.agent.policy.act({"obs": batch.obs["obs"][t].numpy()}, memory)
        rows.append(row)
    np.testing.assert_allclose(np.stack(rows)[batch.burn_in :], statistics.detach().numpy(), atol=1e-5)
    learner.pretrain(cloning)


@pytest.mark.parametrize("agent_name", ["acer", "ppo", "sac"])
def test_the_loss_is_the_mean_negative_log_density_and_reaches_the_policy(agent_name):
    cloning = BehaviorCloning(BehaviorCloning.Settings(strength=0.5, batch_size=16))
    learner = make_learner(cloning, agent_name, KINDS["branch"], masked=True)
    batch = cloning.replay.sample(16, 3)  # 2 * 1 + 1: the batch of the first update
    inputs = type("Inputs", (), {"update": 1, "batch": batch.convert(torch.from_numpy)})
    loss, metrics = cloning.loss(inputs)
    obs = {name: torch.from_numpy(values[0]) for name, values in batch.obs.items()}
    logits = learner.agent.policy(obs, torch.zeros(16, 0))[0].log_softmax(-1)
    taken = logits.gather(-1, torch.from_numpy(batch.raw_action[0]).long()).squeeze(-1)
    expected = -(taken * torch.from_numpy(batch.valid[0])).sum() / batch.valid[0].sum()
    torch.testing.assert_close(loss, 0.5 * expected)
    torch.testing.assert_close(metrics["log_prob"], -expected)
    learner.parameters.gradient.zero_()
    loss.backward()
    parameters = learner.parameters
    trained = {name for name, part in parameters.group_slices.items() if parameters.gradient[part].any()}
    assert trained and trained <= cloning.agent_groups


def test_the_strength_falls_to_0_at_its_end():
    cloning = BehaviorCloning(BehaviorCloning.Settings(strength=2.0, end=0.5))
    learner = make_learner(cloning, "ppo", KINDS["branch"])
    strengths = []
    for progress in (0.0, 0.25, 0.5, 1.0):
        learner.agent.progress = progress
        strengths.append(cloning._compute_strength())
        assert cloning.has_loss(1) == (progress < 0.5)
    assert strengths == [2.0, 1.0, 0.0, 0.0]


def test_a_group_without_a_loss_of_the_agent_is_stepped_by_cloning():
    """SAC learns its policy in every second update here, cloning in each."""
    cloning = BehaviorCloning(BehaviorCloning.Settings(batch_size=8))
    learner = make_learner(cloning, "sac", KINDS["continuous"], policy_update_every=2)
    role = make_role(spec=KINDS["continuous"])
    part = learner.parameters.group_slices["policy"]
    before = learner.parameters.vector[part].clone()
    update(learner, random_rollout_of(learner.agent, role))
    assert not torch.equal(before, learner.parameters.vector[part])


def test_what_cannot_be_cloned_is_one_line():
    role = make_role()
    agent = make_sac(role, PLAIN, discrete_dqn_like=True)
    cloning = BehaviorCloning(BehaviorCloning.Settings())
    cloning.open_demonstrations = partial(make_replay, make_player(role), agent, 7)
    with pytest.raises(UserError, match="auxiliaries.it: the actions of discrete_dqn_like have no probabilities"):
        Learner(agent, role, {"it": cloning}, None)
    with pytest.raises(UserError, match="strength and pretraining_updates are 0"):
        make_learner(BehaviorCloning(BehaviorCloning.Settings(strength=0)), "ppo", KINDS["branch"])


def play(learner: Learner, policy, seed: int = 0):
    """Return a collected rollout whose actions are those of `policy`, a function of observations [T, B, 3]."""
    role = make_role()
    rollout = random_rollout_of(learner.agent, role, seed, rows=8)
    return replace(rollout, raw_action=policy(rollout.obs["obs"][:-1]).astype(np.float32), behavior=rollout.behavior)


@pytest.mark.parametrize("reward", ["logit", "positive"])
@pytest.mark.parametrize("agent_name", ["acer", "a2c", "sac"])
def test_the_discriminator_rewards_actions_of_the_player(agent_name, reward):
    gail = Gail(Gail.Settings(reward=reward, units=16, learning_rate=3e-3, gradient_penalty=0.1, policy_rows=100))
    learner = make_learner(gail, agent_name, KINDS["branch"])

    def act_like_the_player(obs):
        return 2.0 * (obs[..., :1] > 0)

    def act_otherwise(obs):
        return 2.0 * (obs[..., :1] <= 0)

    for seed in range(150):
        rollout = play(learner, act_otherwise, seed)
        learner.observe(rollout)
        learner.compute_gradients(rollout)
        learner.apply_gradients()
    batches = [play(learner, each).convert(torch.from_numpy) for each in (act_like_the_player, act_otherwise)]
    inputs = [learner.auxiliaries._make_inputs(batch) for batch in batches]
    good, bad = (gail.reward(each).mean() for each in inputs)
    assert good > bad + 1
    assert (gail.reward(inputs[1]) >= 0).all() == (reward == "positive")
    assert learner.auxiliaries.metrics["train/it_accuracy"] > 0.8


def compute_gail_rewards(gail: Gail, agent_name: str, output: float, **changes):
    """Return a batch, and its rewards if the discriminator has the same output everywhere."""
    learner = make_learner(gail, agent_name, KINDS["branch"], **changes)
    batch = play(learner, lambda obs: 0 * obs[..., :1])
    with torch.no_grad():
        gail.discriminator.output.weight.zero_()
        gail.discriminator.output.bias.fill_(output)
        rewards = gail.reward(learner.auxiliaries._make_inputs(batch.convert(torch.from_numpy)))
    assert not batch.alive.all()
    return batch, rewards.numpy()


@pytest.mark.parametrize(("reward", "of_row"), [("logit", 1.3), ("positive", np.log1p(np.exp(1.3)))])
def test_the_reward_follows_from_the_output_of_the_discriminator_and_from_the_ends_of_episodes(reward, of_row):
    gail = Gail(Gail.Settings(reward=reward, units=4, gamma=0.9))
    batch, rewards = compute_gail_rewards(gail, "ppo", 1.3, streams={"it": gail.stream}, gamma=0.5)
    np.testing.assert_allclose(rewards, np.where(batch.alive, of_row, 10 * of_row), rtol=1e-5)


def test_an_end_lasts_by_the_discount_of_an_agent_without_streams():
    gail = Gail(Gail.Settings(units=4, gamma=0.9, crosses_episodes=True))
    batch, rewards = compute_gail_rewards(gail, "sac", 1.3, gamma=0.5)
    np.testing.assert_allclose(rewards, np.where(batch.alive, 1.3, 2.6), rtol=1e-5)
    with pytest.raises(UserError, match="auxiliaries.it: the agent's gamma must be below 1"):
        make_learner(Gail(Gail.Settings(units=4)), "sac", KINDS["branch"], gamma=1.0)


def test_a_return_that_crosses_episodes_has_no_time_after_their_end():
    gail = Gail(Gail.Settings(units=4, crosses_episodes=True))
    _, rewards = compute_gail_rewards(gail, "ppo", 1.3, streams={"it": gail.stream})
    np.testing.assert_allclose(rewards, 1.3, rtol=1e-5)
    for crosses in (False, True):
        with pytest.raises(ValueError, match="gamma must be below 1"):
            Gail.Settings(gamma=1.0, crosses_episodes=crosses)


@pytest.mark.parametrize(("rows_after_end", "expected"), [(0.0, 2 / 100), (9.0, 20 / 118)])
def test_the_last_row_of_an_episode_is_drawn_as_often_as_it_lasts(rows_after_end, expected):
    gail = Gail(Gail.Settings(units=4))
    gail.rows_after_end = rows_after_end
    alive = np.arange(100) % 50 > 0  # two ends
    rows = gail._draw_rows(alive, 20_000, np.random.default_rng(0))
    assert np.isin(rows, [0, 50]).mean() == pytest.approx(expected, rel=0.05)
    assert np.unique(rows).size == 100
    assert gail._draw_rows(np.ones(5, bool), 7, np.random.default_rng(0)).max() < 5


def test_observations_after_the_last_step_are_not_rows_of_the_player():
    role, gail = make_role(), Gail(Gail.Settings(units=4, batch_size=500))
    agent = AGENTS["a2c"](role, PLAIN)
    player = replace(make_player(role), is_bootstrap_row=np.arange(1, 201) % 20 == 0, alive=np.ones(200, bool))
    gail.open_demonstrations = partial(make_replay, player, agent, 7)
    learner, read = Learner(agent, role, {"it": gail}, None), []
    gail.player.read_rows = lambda rows, of=gail.player.read_rows: (read.extend(rows), of(rows))[1]
    rollout = play(learner, lambda obs: 0 * obs[..., :1])
    learner.observe(rollout)
    learner.compute_gradients(rollout)
    assert len(read) == 500 and not player.is_bootstrap_row[read].any()


def test_the_gradient_penalty_is_that_of_a_linear_function():
    gail = Gail(Gail.Settings(units=4))
    make_learner(gail, "ppo", KINDS["branch"])
    slope = torch.tensor([3.0, 0.0, 4.0, 0.0, 0.0, 0.0])  # of length 5
    gail.discriminator.decide = lambda inputs: inputs @ slope
    assert gail._compute_penalty(torch.randn(9, 6), torch.randn(9, 6)).item() == pytest.approx(16)


@pytest.mark.parametrize("size", [50, 20, 500])
def test_the_newest_rows_of_the_policy_are_kept_and_restored(size):
    gail = Gail(Gail.Settings(units=4, policy_rows=50))
    learner = make_learner(gail, "ppo", KINDS["branch"])
    seen = []
    for seed in range(4):
        rollout = play(learner, lambda obs: 0 * obs[..., :1], seed)
        learner.observe(rollout)
        seen.append(rollout.obs["obs"][:-1][rollout.valid])
    rows = np.concatenate(seen)[:, 0]
    kept = gail.obs["obs"]
    assert gail.n_rows == len(rows) > 50
    np.testing.assert_array_equal(np.sort(kept[:, 0]), np.sort(rows[-50:]))
    other = Gail(Gail.Settings(units=4, policy_rows=size))
    restored = make_learner(other, "ppo", KINDS["branch"])
    restored.auxiliaries.restore(learner.auxiliaries.state())
    if size == 50:
        assert other.n_rows == gail.n_rows
        np.testing.assert_array_equal(other.obs["obs"], kept)
    n_kept = min(size, 50)
    np.testing.assert_array_equal(np.sort(other.obs["obs"][: other.n_rows, 0]), np.sort(rows[-n_kept:]))
    restored.observe(rollout)  # the next rows replace the oldest ones
    newest = np.concatenate([rows[-n_kept:], seen[-1][:, 0]])[-size:]
    np.testing.assert_array_equal(np.sort(other.obs["obs"][: other.n_rows, 0]), np.sort(newest))


def test_rows_of_an_earlier_version_have_no_ends():
    gail = Gail(Gail.Settings(units=4, policy_rows=50))
    learner = make_learner(gail, "ppo", KINDS["branch"])
    learner.observe(play(learner, lambda obs: 0 * obs[..., :1]))
    state = learner.auxiliaries.state()
    del state["auxiliary/it/alive"]
    other = Gail(Gail.Settings(units=4, policy_rows=50))
    make_learner(other, "ppo", KINDS["branch"]).auxiliaries.restore(state)
    assert other.alive.all() and other.n_rows == gail.n_rows
