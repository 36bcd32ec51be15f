"""The auxiliaries of a learner: rewards, losses, gradients, records, statistics, and their state."""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from algorithm.auxiliaries.auxiliary import Auxiliary, AuxiliaryInputs, masked_mean
from algorithm.auxiliaries.settings import AuxiliarySettings
from algorithm.networks import Blueprint, FrameStack, Gru, Mlp, TargetNetwork, Vector
from algorithm.replay.ring import Ring
from algorithm.returns import RewardStream
from algorithm.training.learner import Learner
from tests.builders import make_a2c, make_acer, make_ppo, make_reactor, make_role, make_sac, random_rollout_of, update

LANES, ROWS, WEIGHT = 4, 6, 0.5
STREAM = RewardStream(gamma=0.9, weight=2.0, crosses_episodes=True)
STEPS = {"n_step": 3, "sequence_length": 3}
MAKERS = {
    "acer": make_acer,
    "acer with state values": partial(make_acer, critic="state_value", estimator="vtrace"),
    "sac": make_sac,
    "sac of first rows": partial(make_sac, discrete_dqn_like=True, learned_rows="first", use_n_step_is=False, **STEPS),
    "a2c": make_a2c,
    "ppo": make_ppo,
    "reactor": make_reactor,
}


WITH_STREAM = {"streams": {"sum": STREAM}}
STREAM_MAKERS = {
    "acer with a stream": partial(make_acer, critic="state_value", estimator="vtrace", **WITH_STREAM),
    "a2c with a stream": partial(make_a2c, **WITH_STREAM),
    "ppo with a stream": partial(make_ppo, **WITH_STREAM),
}


class Sum(Auxiliary):
    """An auxiliary whose bonus is the sum of the next observation, and whose loss is of the sum of the features."""

    has_record = True

    def __init__(self, *, shapes_features=False, stream=None, with_reward=True, scale=1.0):
        super().__init__(AuxiliarySettings())
        self.reward_weight, self.stream, self.shapes_features = WEIGHT, stream, shapes_features
        self.with_reward, self.scale = with_reward, scale

    def build(self, agent, role):
        self.module = nn.Linear(agent.policy.torso.size, 1)
        self.sums = torch.zeros(role.lanes)
        return self.module

    def reward(self, inputs):
        self.encodes_with_gradient = self._encode(inputs).requires_grad
        return self.scale * inputs.rollout.obs["obs"][1:].sum(-1) if self.with_reward else None

    def loss(self, inputs):
        self.encodes_with_gradient = self._encode(inputs).requires_grad
        outputs = self.module(inputs.features).squeeze(-1)[:-1]
        return masked_mean(outputs.square(), inputs.rollout.same_episode), {"output": outputs.mean()}

    def record(self, rollout, *_):
        return rollout.obs["obs"][1:].sum(-1)

    def observe(self, rollout):
        self.sums += torch.from_numpy(rollout.reward.sum(0))

    def grow(self, lanes):
        self.sums = torch.cat((self.sums, torch.zeros(lanes - len(self.sums))))

    def state(self):
        return {"sums": self.sums.clone()}

    def restore(self, state):
        self.sums = state["sums"].clone()

    @staticmethod
    def _encode(inputs):
        return inputs.encode({name: value[0] for name, value in inputs.rollout.obs.items()})


class Silent(Sum):
    """An auxiliary without a reward and without a record."""

    has_record = False

    def __init__(self, **changes):
        super().__init__(with_reward=False, **changes)

    def record(self, rollout, *_):
        return None


def make_learner(make=make_acer, auxiliaries=None, blueprint=None, lanes=LANES):
    role = make_role(lanes)
    agent = make(role, blueprint)
    learner = Learner(agent, role, auxiliaries or {}, None)
    torch.manual_seed(5)  # the modules of auxiliaries draw random numbers, too
    return learner


def collect(agent, seed=0, rows=ROWS):
    return random_rollout_of(agent, make_role(LANES), seed, rows)


def make_batch(learner, seed=0):
    """Return a batch in numpy, and for an agent that learns in epochs a minibatch of single rows."""
    rollout = collect(learner.agent, seed)
    if learner.agent.schedule.epochs is None:
        return rollout
    return learner.prepare(rollout).split_rows().take_columns(np.arange(3, 17))


def upload(rollout):
    return rollout.convert(torch.from_numpy)


# Rewards


def test_a_reward_is_weighted_and_added_to_the_transformed_reward_of_agents_without_streams():
    auxiliary = Sum(stream=STREAM, shapes_features=True)
    learner = make_learner(auxiliaries={"sum": auxiliary})
    batch = upload(collect(learner.agent))
    raw, batch.reward = batch.reward, 3 * batch.reward
    learner.auxiliaries.add_rewards(batch)
    torch.testing.assert_close(batch.reward, 3 * raw + WEIGHT * batch.obs["obs"][1:].sum(-1))
    assert batch.bonuses == {} and not auxiliary.encodes_with_gradient and not batch.reward.requires_grad


@pytest.mark.parametrize("make", STREAM_MAKERS.values(), ids=STREAM_MAKERS)
def test_a_reward_with_a_stream_is_a_bonus_of_weight_1_where_the_agent_has_a_value_for_it(make):
    learner = make_learner(make, {"sum": Sum(stream=STREAM), "added": Sum()})
    for burn_in in (0, 2):  # whose rows have no reward of auxiliaries
        batch = upload(replace(collect(learner.agent), burn_in=burn_in))
        raw, bonus = batch.reward.clone(), batch.obs["obs"][1:].sum(-1)
        bonus[:burn_in] = 0
        learner.auxiliaries.add_rewards(batch)
        torch.testing.assert_close(batch.reward, raw + WEIGHT * bonus)  # of the auxiliary without a stream
        assert list(batch.bonuses) == ["sum"] and batch.bonuses["sum"].equal(bonus)


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite")])
def test_a_reward_that_is_not_finite_counts_as_0_and_is_logged_once_until_all_are_finite(value, word, caplog):
    learner = make_learner(auxiliaries={"sum": Sum(), "fine": Silent()})
    bad = collect(learner.agent)
    bad.obs["obs"][3, 2, 1] = value  # the observation after row 2

    def add(rollout):
        batch = upload(deepcopy(rollout))
        learner.auxiliaries.add_rewards(batch)
        return batch.reward

    with caplog.at_level(logging.WARNING):
        rewards = [add(bad) for _ in range(3)]
        lines = [record.message for record in caplog.records]
        assert lines == [f"the reward of auxiliaries.sum is {word} for lane 2; such rewards count as 0"]
        add(collect(learner.agent))
        add(bad)
        assert len(caplog.records) == 2
    assert all(reward.isfinite().all() for reward in rewards)
    assert rewards[0][2, 2] == bad.reward[2, 2]
    assert learner.auxiliaries.metrics["train/sum_reward"].isfinite()


@pytest.mark.parametrize("make", [*MAKERS.values(), *STREAM_MAKERS.values()], ids=[*MAKERS, *STREAM_MAKERS])
def test_no_reward_of_an_auxiliary_enters_a_collected_rollout(make):
    """A replay stores the arrays of the rollout, and a batch on the CPU shares their memory."""
    learner = make_learner(make, {"sum": Sum(stream=STREAM)})
    rollout = collect(learner.agent)
    before = deepcopy(rollout)
    learner.observe(rollout)
    stored = learner.record(rollout)
    if learner.agent.schedule.epochs is not None:
        learner.prepare(stored)
    else:
        update(learner, stored)
    assert rollout.bonuses == stored.bonuses == {} and stored.reward is rollout.reward
    for name in ("reward", "first", "alive", "raw_action", "behavior"):
        np.testing.assert_array_equal(getattr(rollout, name), getattr(before, name))
    np.testing.assert_array_equal(rollout.obs["obs"], before.obs["obs"])
    torch.testing.assert_close(learner.auxiliaries.by_name["sum"].sums, torch.from_numpy(before.reward.sum(0)))


# Losses and gradients


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_an_auxiliary_that_shapes_no_features_changes_no_weight_of_the_agent(make):
    """Bit for bit, but for PPO, whose minibatches then have one observation more: its sums are in another order."""
    vectors = []
    for auxiliaries in ({}, {"silent": Silent()}):
        learner = make_learner(make, auxiliaries)
        for seed in range(3):
            update(learner, make_batch(learner, seed))
        slices = [part for name, part in learner.parameters.group_slices.items() if "auxiliary" not in name]
        vectors.append([learner.parameters.vector[part].clone() for part in slices])
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if make is make_ppo else {"rtol": 0, "atol": 0}
    for one, other in zip(*vectors, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("shapes_features", [False, True])
def test_a_loss_reaches_the_torso_only_if_it_shapes_the_features(make, shapes_features):
    auxiliary = Silent(shapes_features=shapes_features)
    learner, alone = make_learner(make, {"silent": auxiliary}), make_learner(make)
    for each in (learner, alone):
        torch.manual_seed(7)
        each.compute_gradients(make_batch(each))
    own = learner.parameters.gradient[learner.parameters.group_slices["auxiliary/silent"]]
    assert own.any() and auxiliary.encodes_with_gradient == shapes_features
    for name, parameter in learner.agent.policy.named_parameters():
        other = dict(alone.agent.policy.named_parameters())[name]
        if "torso" not in name.split(".") or not shapes_features:
            torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-4, atol=1e-7, msg=name)
        elif "weight" in name:
            assert (parameter.grad - other.grad).abs().max() > 1e-6, name


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_an_auxiliary_learns_in_every_kth_update_only(make):
    auxiliary = Silent()
    auxiliary.update_every = 3
    learner = make_learner(make, {"silent": auxiliary})
    batch, weight = make_batch(learner), auxiliary.module.weight
    changes, losses = [], []
    for _ in range(7):
        before = weight.detach().clone()
        losses.append(learner.compute_gradients(batch).compute_metrics().get("train/silent_loss"))
        learner.apply_gradients()
        changes.append(not torch.equal(before, weight))
    assert changes == [False, False, True, False, False, True, False]
    # An update without a loss of the auxiliary has the metrics of its last one.
    assert losses[1] is None and losses[2] is losses[4] and losses[4] != losses[5]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_metrics_have_the_name_of_the_auxiliary(make):
    learner = make_learner(make, {"sum": Sum(), "silent": Silent()})
    batch = make_batch(learner)
    metrics = learner.compute_gradients(batch).compute_metrics()
    names = {name for name in metrics if "sum" in name or "silent" in name}
    endings = ("loss", "output", "learning_rate", "gradient_norm")
    assert names == {"train/sum_reward", *(f"train/{one}_{two}" for one in ("sum", "silent") for two in endings)}
    rollout = collect(learner.agent)
    mean = rollout.obs["obs"][1:].sum(-1)[rollout.valid].mean()
    assert metrics["train/sum_reward"].item() == pytest.approx(mean, rel=1e-4, abs=1e-6)
    assert not any(value.requires_grad for value in metrics.values())


def test_the_observations_after_the_rows_are_in_the_minibatches_of_epochs_only_for_auxiliaries():
    learner = make_learner(make_ppo, {"silent": Silent()})
    rollout = collect(learner.agent)
    prepared = learner.prepare(rollout)
    np.testing.assert_array_equal(prepared.obs["obs"], rollout.obs["obs"])
    split = prepared.split_rows()
    assert split.obs["obs"].shape == (2, ROWS * LANES, 3) and split.first.shape == (2, ROWS * LANES)
    for t in range(ROWS):
        columns = slice(t * LANES, (t + 1) * LANES)
        np.testing.assert_array_equal(split.obs["obs"][:, columns], rollout.obs["obs"][t : t + 2])
        for name in ("same_episode", "valid"):
            np.testing.assert_array_equal(getattr(split, name)[0, columns], getattr(rollout, name)[t])
        np.testing.assert_array_equal(split.reward[0, columns], prepared.reward[t])
    assert split.take_columns(np.array([3, 1])).obs["obs"].shape == (2, 2, 3)
    assert len(make_learner(make_ppo).prepare(rollout).obs["obs"]) == ROWS


# Records, statistics, state


def test_records_are_stored_and_replayed_with_their_rows():
    learner, without = (make_learner(auxiliaries=each) for each in ({"sum": Sum(), "b": Silent()}, {"b": Silent()}))
    rollout = collect(learner.agent, rows=8)
    assert without.record(rollout) is rollout and without.auxiliaries.n_records == 0
    rollout = learner.record(rollout)
    assert list(rollout.records) == ["sum"] and learner.auxiliaries.n_records == 1
    ring = Ring(rows=16, lanes=LANES, chunk=8)
    ring.write(rollout)
    replayed = replace(ring.read(np.array([1, 3]), np.array([0, 2]), 5), burn_in=1)
    for column, (lane, start) in enumerate([(1, 0), (3, 2)]):
        expected = rollout.obs["obs"][start + 1 : start + 6, lane].sum(-1)
        np.testing.assert_allclose(replayed.records["sum"][:, column], expected, rtol=1e-6)
    np.testing.assert_array_equal(replayed.drop_burn_in().records["sum"], replayed.records["sum"][1:])
    np.testing.assert_array_equal(rollout.split_rows().records["sum"][0], rollout.records["sum"].reshape(-1))
    part = replayed.take_columns(np.array([1]))
    np.testing.assert_array_equal(part.records["sum"], replayed.records["sum"][:, [1]])


def test_the_state_by_lane_is_saved_restored_and_grows():
    pair = [make_learner(auxiliaries={"sum": Sum(), "b": Sum()}) for _ in range(2)]
    rollout = collect(pair[0].agent)
    pair[0].observe(rollout)
    assert {"auxiliary/sum/sums", "auxiliary/b/sums"} <= pair[0].own_state().keys() <= pair[0].state().keys()
    pair[1].restore(pair[0].state())
    for learner in pair:
        learner.grow(LANES + 2)
    for auxiliary in pair[1].auxiliaries.by_name.values():
        torch.testing.assert_close(auxiliary.sums[:LANES], torch.from_numpy(rollout.reward.sum(0)))
        assert auxiliary.sums[LANES:].eq(0).all() and len(auxiliary.sums) == LANES + 2


class WithEncoder(Silent):
    """An auxiliary with an encoder of its own and a network that is never trained."""

    def build(self, agent, role):
        self.encoder, self.frozen = agent.policy.torso.make_encoder(), nn.Linear(2, 2)
        return nn.ModuleDict({"encoder": self.encoder, "linear": super().build(agent, role)})

    def make_target_networks(self):
        return {"frozen": TargetNetwork(None, self.frozen)}

    def loss(self, inputs):
        return self.module(inputs.unroll(self.encoder)).square().mean(), {}


def test_an_own_encoder_normalizes_observations_as_that_of_the_agent_does():
    blueprint = Blueprint(encoders={"*": Vector(normalize=True)}, body=Mlp(8))
    learner = make_learner(auxiliaries={"own": WithEncoder()}, blueprint=blueprint)
    for seed in range(2):
        learner.observe(collect(learner.agent, seed))
    auxiliary, torso = learner.auxiliaries.by_name["own"], learner.agent.policy.torso
    buffers, expected = (list(network.buffers()) for network in (auxiliary.encoder, torso))
    assert buffers and all(one.equal(other) for one, other in zip(buffers, expected, strict=True))
    saved = learner.parameters.state()["statistics"]["auxiliary/own"]
    assert len(saved) == sum(buffer.numel() for buffer in buffers) and saved.any()


def test_a_target_network_without_a_source_is_saved_loaded_and_never_changed():
    learner, other = (make_learner(auxiliaries={"own": WithEncoder()}) for _ in range(2))
    frozen, name = learner.auxiliaries.by_name["own"].frozen, "auxiliary/own/frozen"
    before = [parameter.clone() for parameter in frozen.parameters()]
    trained = learner.parameters.vector.clone()
    for seed in range(3):
        update(learner, collect(learner.agent, seed))
    assert not learner.parameters.vector.equal(trained)
    assert all(one.equal(parameter) for one, parameter in zip(before, frozen.parameters(), strict=True))
    state = learner.parameters.state()
    assert state["target_networks"][name].equal(torch.cat([one.flatten() for one in before]))
    with torch.no_grad():
        for parameter in other.auxiliaries.by_name["own"].frozen.parameters():
            parameter.zero_()
    other.parameters.load(state)
    loaded = other.auxiliaries.by_name["own"].frozen.parameters()
    assert all(one.equal(parameter) for one, parameter in zip(before, loaded, strict=True))


# Encoders of auxiliaries


def test_an_encoder_has_other_weights_the_same_layers_and_no_memory():
    torso = make_acer(make_role(), Blueprint(body=Mlp(8), memory=Gru(5))).policy.torso
    encoder = torso.make_encoder()
    assert (encoder.size, encoder.memory, encoder.state_size) == (8, None, 0)
    mine, its = dict(encoder.named_parameters()), dict(torso.named_parameters())
    assert mine.keys() == {name for name in its if not name.startswith("memory")}
    assert all(mine[name].shape == its[name].shape for name in mine)
    assert all(not mine[name].equal(its[name]) for name in mine if "weight" in name)


@pytest.mark.parametrize("memory", [None, Gru(5)], ids=["without memory", "with memory"])
@pytest.mark.parametrize("burn_in", [0, 3], ids=["collected", "replayed"])
@pytest.mark.parametrize("frames", [None, 3], ids=["one frame", "stacked frames"])
def test_an_encoder_unrolls_the_frames_that_the_agent_acted_with(frames, burn_in, memory):
    """Features of each row are those of the rows computed one after the other, as in acting."""
    vector = FrameStack(frames, Vector()) if frames else Vector()
    blueprint = Blueprint(encoders={"*": vector}, body=Mlp(8), memory=memory)
    agent = make_acer(make_role(LANES), blueprint)
    encoder, rows = agent.policy.torso.make_encoder(), 8
    batch = upload(collect(agent, rows=rows))
    past = batch.memory[:, agent.stored_state_size :]
    expected = []
    for t in range(rows + 1):
        past = past * ~batch.first[t].unsqueeze(-1)
        features, past = encoder.step({"obs": batch.obs["obs"][t]}, past)
        expected.append(features)
    if burn_in:  # a replayed sequence from row 2 on, whose warm-up rebuilds the past frames
        start = 2
        batch = replace(
            batch,
            obs={"obs": batch.obs["obs"][start:]},
            **{name: getattr(batch, name)[start:] for name in ("first", "raw_action", "reward", "alive", "behavior")},
            memory=batch.memory[:, : agent.stored_state_size],
            burn_in=burn_in,
        )
        expected = expected[start + burn_in :]
    inputs = AuxiliaryInputs(
        batch=batch, torso=agent.policy.torso, compute_features=lambda: None, encode=agent.encode, update=1
    )
    actual = inputs.unroll(encoder)
    torch.testing.assert_close(actual, torch.stack(expected), rtol=1e-5, atol=1e-6)
    assert len(actual) == len(inputs.rollout) + 1
