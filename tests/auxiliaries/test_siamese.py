"""What atc and byol have in common: pairs within one episode, two encoders, augmentations, action values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithm.auxiliaries.siamese import add_noise, select_pairs
from algorithm.errors import UserError
from algorithm.networks import Blueprint, Gru, Mlp
from algorithm.networks.precision import Placement
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner
from tests.auxiliaries.cases import (
    AGENTS,
    KINDS,
    PLAIN,
    RECURRENT,
    ROLE,
    STACKED,
    compute_loss,
    make,
    make_inputs,
    make_learner,
    make_rollout,
)
from tests.builders import make_acer, make_reactor, make_role, make_sac, random_boundaries, update

each_kind = pytest.mark.parametrize("kind", KINDS)


def list_pairs(first: np.ndarray, steps: int) -> set[tuple[int, int]]:
    """Return the pairs of rows of one episode as indices of the flattened rows, by a loop over rows and columns."""
    rows, columns = first.shape
    return {
        (row * columns + column, (row + steps) * columns + column)
        for row in range(rows - max(steps, 1))
        for column in range(columns)
        if not first[row + 1 : row + steps + 1, column].any()
    }


@given(seed=st.integers(0, 2**31), rows=st.integers(1, 9), columns=st.integers(1, 4), steps=st.integers(0, 10))
def test_pairs_are_the_rows_of_one_episode(seed, rows, columns, steps):
    first, _, _ = random_boundaries(np.random.default_rng(seed), rows, columns)
    pairs = select_pairs(torch.from_numpy(first), steps, 512)
    k = min(steps, rows)
    assert (pairs.second - pairs.first == k * columns).all() and len(pairs.first) == (rows + 1 - max(k, 1)) * columns
    valid = pairs.valid.numpy()
    selected = set(zip(pairs.first.numpy()[valid], pairs.second.numpy()[valid], strict=True))
    assert selected == list_pairs(first, k)


@given(seed=st.integers(0, 2**31), steps=st.integers(0, 4), max_pairs=st.integers(2, 30))
def test_of_too_many_pairs_those_within_one_episode_are_drawn_first(seed, steps, max_pairs):
    first, _, _ = random_boundaries(np.random.default_rng(seed), 8, 3)
    torch.manual_seed(seed)
    pairs = select_pairs(torch.from_numpy(first), steps, max_pairs)
    allowed = list_pairs(first, steps)
    assert len(set(pairs.first.tolist())) == len(pairs.first) == min(max_pairs, (9 - max(steps, 1)) * 3)
    assert pairs.valid.sum() == min(len(allowed), max_pairs)
    assert set(pairs.first[pairs.valid].tolist()) <= {index for index, _ in allowed}


def test_all_pairs_are_drawn_equally_often():
    torch.manual_seed(0)
    counts = torch.zeros(6 * 2)
    for _ in range(2000):
        counts[select_pairs(torch.zeros(7, 2, dtype=torch.bool), 1, 4).first] += 1
    assert (counts / 2000 - 4 / 12).abs().max() < 0.05


@each_kind
@given(seed=st.integers(0, 2**31), steps=st.integers(0, 4))
@settings(max_examples=25, deadline=None)
def test_rows_of_excluded_pairs_change_nothing(kind, seed, steps):
    """Rows that belong to no pair of one episode have no effect, neither as observations nor as negatives."""
    torch.manual_seed(0)
    auxiliary = make(kind, steps=steps)
    learner = make_learner(auxiliary)
    rollout = make_rollout(learner.agent, seed)
    loss = compute_loss(auxiliary, learner.agent, rollout)
    used = {index for pair in list_pairs(rollout.first, steps) for index in pair}
    unused = np.array([index not in used for index in range(rollout.first.size)]).reshape(rollout.first.shape)
    obs = {name: value.copy() for name, value in rollout.obs.items()}
    obs["image"][unused], obs["vector"][unused] = 255 - obs["image"][unused], 9.0
    assert compute_loss(auxiliary, learner.agent, replace(rollout, obs=obs)).equal(loss)


@each_kind
def test_a_batch_without_pairs_has_no_loss_and_no_gradient(kind):
    auxiliary = make(kind, steps=2)
    learner = make_learner(auxiliary)
    rollout = make_rollout(learner.agent)
    loss = compute_loss(auxiliary, learner.agent, replace(rollout, first=np.ones_like(rollout.first)))
    loss.backward()
    assert loss.item() == 0 and not learner.parameters.gradient.any()
    assert compute_loss(auxiliary, learner.agent, replace(rollout, first=np.zeros_like(rollout.first))).item() > 0


@each_kind
def test_only_the_agent_s_encoder_and_the_trained_heads_get_a_gradient(kind):
    auxiliary = make(kind)
    learner = make_learner(auxiliary, "acer", RECURRENT)
    agent, parameters = learner.agent, learner.parameters
    compute_loss(auxiliary, agent, make_rollout(agent)).backward()
    torso = agent.policy.torso
    for part in (torso.encoders, torso.body, learner.auxiliaries.modules["auxiliary/siamese"]):
        assert all(parameter.grad.any() for parameter in part.parameters())
    assert not any(each.grad.any() for part in (torso.memory, agent.policy.heads) for each in part.parameters())
    assert parameters.target_slices.keys() >= {"auxiliary/siamese/torso", "auxiliary/siamese/projector"}
    for target in auxiliary.make_target_networks().values():
        assert all(parameter.grad is None and not parameter.requires_grad for parameter in target.network.parameters())


@each_kind
def test_targets_start_equal_and_move_by_tau(kind):
    auxiliary = make(kind, tau=0.25)
    learner = make_learner(auxiliary)
    for target in auxiliary.make_target_networks().values():
        assert target.vector.equal(target.source_vector)
    before = {name: target.vector.clone() for name, target in auxiliary.make_target_networks().items()}
    update(learner, make_rollout(learner.agent))
    for name, target in auxiliary.make_target_networks().items():
        expected = before[name] + 0.25 * (target.source_vector - before[name])
        torch.testing.assert_close(target.vector, expected)
        assert not target.vector.equal(before[name])


@each_kind
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("blueprint", [PLAIN, STACKED, RECURRENT], ids=["plain", "stacked", "recurrent"])
@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_learns_with_it(kind, name, blueprint, precision):
    changes = {"adaptive": True} if precision == torch.float32 else {}
    agent = AGENTS[name](ROLE, blueprint)
    learner = Learner(agent, ROLE, {"siamese": make(kind, **changes)}, None, Placement(precision=precision))
    before = learner.parameters.vector.clone()
    for burn_in in (0, 3) if agent.schedule.uses_replay and blueprint is not PLAIN else (0,):
        rollout = make_rollout(agent, rows=8, burn_in=burn_in)
        if agent.schedule.epochs:
            rollout = learner.prepare(rollout)
            rollout = rollout if agent.state_size else rollout.split_rows()
        report = update(learner, rollout)
        assert learner.skipped_updates == 0
        metrics = report.compute_metrics()
        assert 0 < metrics["train/siamese_loss"] < 10
    for name, columns in learner.parameters.group_slices.items():
        assert not learner.parameters.vector[columns].equal(before[columns]), name


def test_stacked_frames_are_those_of_the_agent():
    """The input of each row equals that of the agent's own pass, from the start of the batch and after its burn-in."""
    learner = make_learner(make("atc"), "acer", STACKED)
    agent, torso = learner.agent, learner.agent.policy.torso
    for burn_in in (0, 2):
        rollout = make_rollout(agent, rows=8)
        if burn_in:
            rollout = replace(rollout, memory=rollout.memory[:, :0], burn_in=burn_in)
        inputs = make_inputs(agent, rollout)
        features = torso.encode_inputs(inputs.select_inputs(torso)).unflatten(0, (9 - burn_in, ROLE.lanes))
        torch.testing.assert_close(features, agent.features(inputs.batch))


def test_images_are_shifted_and_vectors_get_noise():
    auxiliary = make("atc", noise=0.5, shift=2)
    learner = make_learner(auxiliary)
    rows = make_inputs(learner.agent, make_rollout(learner.agent)).select_inputs(learner.agent.policy.torso)
    index = torch.zeros(4000, dtype=torch.int64)
    torch.manual_seed(0)
    augmented = auxiliary._augment(rows, index)
    assert len(augmented["image"].unique(dim=0)) == 25 and augmented["image"].dtype == torch.uint8
    difference = augmented["vector"] - rows["vector"][0]
    assert difference.mean().abs() < 0.03 and (difference.std() - 0.5).abs() < 0.03


def test_noise_is_of_vectors_of_real_numbers_alone():
    specs = {"real": ObsSpec((3,)), "codes": ObsSpec((4,), "uint8"), "image": ObsSpec((2, 6, 7), "uint8")}
    auxiliary = make("atc", noise=0.1, shift=0)
    make_learner(auxiliary, blueprint=Blueprint(body=Mlp(4)), role=Role(4, specs, ActionSpec(branches=(3,))))
    assert auxiliary.augmentations.keys() == {"real"}
    rows = torch.randn(5, 3)
    assert add_noise(rows, 0.0).equal(rows)


def test_strength_scales_the_loss():
    losses = []
    for strength in (1.0, 0.5, 0.0):
        torch.manual_seed(0)
        auxiliary = make("atc", strength=strength)
        learner = make_learner(auxiliary)
        losses.append(compute_loss(auxiliary, learner.agent, make_rollout(learner.agent)).item())
    assert losses == [losses[0], 0.5 * losses[0], 0] and losses[0] > 0


CONTINUOUS = Role(4, ROLE.obs_specs, ActionSpec(2))
BRANCHES = Role(4, ROLE.obs_specs, ActionSpec(branches=(3, 2)))
WITH_VALUES = [
    pytest.param(make_sac, ROLE, {}, id="sac"),
    pytest.param(make_sac, CONTINUOUS, {}, id="sac, continuous"),
    pytest.param(make_acer, ROLE, {"critic": "action_value"}, id="acer"),
    pytest.param(make_reactor, ROLE, {}, id="reactor"),
    pytest.param(make_reactor, BRANCHES, {"critic": "scalar"}, id="reactor, scalar"),
]


@pytest.mark.parametrize(("make_agent", "role", "changes"), WITH_VALUES)
def test_the_error_of_action_values(make_agent, role, changes):
    """It is 0 while both encoders are equal and see the same, and shapes the critic with them."""
    torch.manual_seed(0)
    auxiliary = make("byol", shift=0, steps=1, action_values=True, max_pairs=3)
    agent = make_agent(role, PLAIN, **changes)
    learner = Learner(agent, role, {"siamese": auxiliary}, None)
    rollout = make_rollout(agent, role=role)
    assert auxiliary.loss(make_inputs(agent, rollout))[1]["q_error"].item() < 1e-9
    auxiliary.target_torso.vector.mul_(0.5)
    inputs = make_inputs(agent, rollout)
    torch.manual_seed(1)
    error = auxiliary.loss(inputs)[1]["q_error"]
    torch.manual_seed(1)
    index = select_pairs(inputs.rollout.first, 1, 3).first
    rows = {name: value[index] for name, value in inputs.select_inputs(agent.policy.torso).items()}
    taken = inputs.rollout.raw_action.flatten(0, 1)[index]
    both = [net.encode_inputs(rows) for net in (agent.policy.torso, auxiliary.target_torso.network)]
    q, target_q = (agent.evaluate_actions(features, taken) for features in both)
    torch.testing.assert_close(error, sum((one - other).square().mean(0).mean() for one, other in [(q, target_q)]))
    assert q.shape[1:] == (3,) and error.item() > 1e-8
    learner.parameters.gradient.zero_()
    error.backward()
    assert learner.parameters.gradient.any()
    assert all(parameter.grad is None for parameter in auxiliary.target_torso.network.parameters())


def test_action_values_of_acer_and_reactor_are_those_of_their_losses():
    features = torch.randn(5, 8)
    action = torch.tensor([[0.0], [2], [1], [1], [2]])
    acer = make_acer(ROLE, PLAIN, critic="action_value")
    values = acer.policy.compute_outputs(features)[:, 3:]
    torch.testing.assert_close(acer.evaluate_actions(features, action)[0], values.gather(-1, action.long())[:, 0])
    reactor = make_reactor(ROLE, PLAIN, v_min=-2.0, v_max=2.0, n_atoms=5)
    with torch.no_grad():
        reactor.policy.critic.head.linear.weight.normal_()
    outputs = reactor.policy.critic.head(features)
    state, *advantages = outputs.split(5, -1)
    expected = [((state + advantage).softmax(-1) * torch.arange(-2.0, 3)).sum(-1) for advantage in advantages]
    expected = torch.stack(expected, -1).gather(-1, action.long())[:, 0]
    torch.testing.assert_close(reactor.evaluate_actions(features, action)[0], expected)


VECTORS = {"blueprint": Blueprint(body=Mlp(8)), "role": make_role()}


@pytest.mark.parametrize(
    ("changes", "others", "message"),
    [
        ({"steps": 0}, VECTORS, "both observations of a pair would be equal: set steps above 0, a shift"),
        ({"steps": 0, "shift": 0}, {}, "both observations of a pair would be equal"),
        ({"shift": 6}, {}, r"an image \[2, 6, 7\] is too small for a shift of up to 6 pixels"),
        ({}, {"blueprint": Blueprint()}, "has parameters to shape; add a body"),
        ({}, {"blueprint": Blueprint(memory=Gru(4))}, "has parameters to shape"),
        ({}, {"trust_region": "full"}, "trust_region full does not support.*use trust_region efficient"),
        ({"action_values": True}, {"agent_name": "a2c"}, "A2C has values of states only, not of actions"),
        ({"action_values": True}, {"agent_name": "ppo"}, "Ppo has values of states only"),
        ({"action_values": True}, {"role": CONTINUOUS}, "only for a single discrete branch, with critic action_value"),
        ({"action_values": True}, {"critic": "state_value", "estimator": "vtrace"}, "with critic action_value"),
        ({"action_values": True}, {"blueprint": RECURRENT}, "action_values needs a network without memory"),
        (
            {"action_values": True},
            {"agent_name": "reactor", "blueprint": Blueprint(body=Mlp(4), critic=Gru(3))},
            "the critic has a memory",
        ),
    ],
)
@each_kind
def test_errors_are_one_line(kind, changes, others, message):
    with pytest.raises(UserError, match=f"^auxiliaries.siamese.*{message}") as error:
        make_learner(make(kind, **changes), **others)
    assert "\n" not in str(error.value)
