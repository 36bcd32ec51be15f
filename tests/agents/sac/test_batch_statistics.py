"""SAC's passes with batch norms: which statistics each of them uses, and which the running statistics learn from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from algorithm.agents.agent import select_statistics_rows, unroll
from algorithm.agents.sac.agent import Sac
from algorithm.networks import Blueprint, Mlp, Residual, Vector, batch_statistics
from algorithm.networks.normalization import BatchNorm, find_batch_norms
from algorithm.rollout import Rollout
from algorithm.specs import ActionSpec
from algorithm.training.learner import Learner
from tests.builders import make_role, make_sac, random_rollout_of, update

COLUMNS = 6
SPECS = [ActionSpec(2), ActionSpec(0, (3,)), ActionSpec(1, (3,))]
every_spec = pytest.mark.parametrize("spec", SPECS, ids=str)
NORMED = Mlp(5, norm="batch")


def make(spec: ActionSpec, policy=NORMED, critic=NORMED, body=None, **changes) -> Sac:
    """Return an agent whose running statistics are far from those of batches."""
    blueprint = Blueprint(encoders={"*": Vector()}, body=body, policy=policy, critic=critic)
    agent = make_sac(make_role(COLUMNS, spec=spec), blueprint, **changes)
    networks = [agent.policy, agent.critics, *(target.network for target in agent.target_networks.values())]
    for norm in find_batch_norms(networks):
        norm.running = 0.5 + torch.rand_like(norm.running)
    return agent


def make_rollout(agent: Sac, spec: ActionSpec, rows: int = 1, seed: int = 0) -> Rollout:
    return random_rollout_of(agent, make_role(COLUMNS, spec=spec), seed, rows).convert(torch.from_numpy)


def literal_norm(norm: BatchNorm, x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Return the normalization by the moments of the valid rows."""
    mean, variance = x[valid].mean(0), x[valid].var(0, correction=0)
    return (x - mean) / (variance + norm.epsilon).sqrt() * norm.weight + norm.bias


def literal_critic(critic: nn.Module, x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Return the outputs of a critic with one hidden layer for a batch, of which `valid` rows count."""
    (layer,), (first, second) = critic.layers.layers, critic.layers.norms
    hidden = torch.relu(layer(literal_norm(first, x, valid)))
    return critic.head(literal_norm(second, hidden, valid))


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("target", ["average", "none"])
@pytest.mark.parametrize("spec", [SPECS[0], SPECS[2]], ids=str)
def test_critics_normalize_taken_and_next_actions_jointly(spec, target, rows):
    agent = make(spec, target=target)
    rollout = make_rollout(agent, spec, rows)
    obs, valid = rollout.obs["obs"], rollout.valid
    actions = torch.randn(rows, COLUMNS, agent.family.n_combinations, spec.continuous).tanh()
    _, taken, next_outputs = agent.evaluator.evaluate_pairs(rollout, obs, obs, actions, [0, 1])
    next_encoded = agent.family.encode_per_combination(actions)
    shape = next_encoded.shape[:-1]
    x = torch.cat((obs[:-1], agent.family.encode(rollout.raw_action)), -1).flatten(0, 1)
    y = torch.cat((obs[1:].unsqueeze(2).expand(*shape, -1), next_encoded), -1).flatten(0, 2)
    counts = torch.cat((valid.flatten(), (valid & rollout.alive).flatten().repeat_interleave(shape[-1])))
    for critics, output, part in [
        (agent.critics, taken.outputs, slice(len(x))),
        (agent.critics if target == "none" else agent.target.network, next_outputs, slice(len(x), None)),
    ]:
        expected = torch.stack([literal_critic(c, torch.cat((x, y)), counts)[part, 0] for c in critics.critics])
        torch.testing.assert_close(output.flatten(1), expected, rtol=1e-4, atol=1e-5)
    assert taken.make_loss(taken.outputs).requires_grad and not next_outputs.requires_grad


@pytest.mark.parametrize("rows", [1, 4])
def test_critics_of_all_actions_normalize_each_row_once(rows):
    spec = SPECS[1]
    agent = make(spec)
    rollout = make_rollout(agent, spec, rows)
    obs, counts = rollout.obs["obs"], select_statistics_rows(rollout)
    outputs, _, next_outputs = agent.evaluator.evaluate_pairs(rollout, obs, obs, torch.zeros(rows, COLUMNS, 1, 0), [0])
    expected = literal_critic(agent.critics.critics[0], obs.flatten(0, 1), counts.flatten()).unflatten(0, counts.shape)
    torch.testing.assert_close(outputs[0], expected[:-1], rtol=1e-4, atol=1e-5)
    expected = literal_critic(agent.target.network.critics[0], obs.flatten(0, 1), counts.flatten())
    torch.testing.assert_close(next_outputs[0], expected.unflatten(0, counts.shape)[1:], rtol=1e-4, atol=1e-5)


def record(owner, name, add):
    """Call `add` with the arguments and the result of each call of a method."""
    method = getattr(owner, name)

    def call(*arguments):
        result = method(*arguments)
        add(arguments, result)
        return result

    setattr(owner, name, call)


@every_spec
@pytest.mark.parametrize("body", [None, Residual(4, 1)], ids=["no body", "body"])
def test_actions_of_targets_and_values_of_the_policys_actions_use_running_statistics(spec, body):
    agent = make(spec, body=body)
    rollout = make_rollout(agent, spec, 2)
    compute, seen, values, calls = agent.policy.compute_outputs, [], [], []
    record(agent.policy, "compute_outputs", lambda arguments, result: seen.append(result))
    record(agent.evaluator, "evaluate_policy_actions", lambda arguments, result: calls.append(arguments))
    for name in ("reduce_ensemble", "differentiate_ensemble"):
        record(agent.critic, name, lambda arguments, result: values.append(arguments[0].detach()))
    agent.loss(rollout)
    with torch.no_grad():
        running = unroll(agent.policy.torso, rollout)
        learned, acted = seen
        torch.testing.assert_close(acted, compute(running[1:]), rtol=1e-4, atol=1e-5)
        with batch_statistics(select_statistics_rows(rollout)):
            features = unroll(agent.policy.torso, rollout)
            torch.testing.assert_close(learned, compute(features), rtol=1e-4, atol=1e-5)
        assert (learned[1:] - acted).abs().max() > 1e-3
        encoded = agent.family.encode_per_combination(calls[0][-1].detach()) if spec.continuous else None
        of_targets, of_policy = values[0], values[-1]
        expected = agent.critics(running[:-1], encoded)
        torch.testing.assert_close(of_policy, expected, rtol=1e-4, atol=1e-5)
        assert of_targets.shape == of_policy.shape


@every_spec
@pytest.mark.parametrize("target", ["average", "none"])
def test_running_statistics_learn_once_from_each_update(spec, target):
    agent = make(spec, target=target, policy_update_every=2)
    role = make_role(COLUMNS, spec=spec)
    learner = Learner(agent, role, {}, None)
    for number in range(1, 5):
        rollout = random_rollout_of(agent, role, number, 1)
        rollout.first[:], rollout.alive[:] = False, True
        norms = {"critic": agent.critics.critics[0].layers.norms[0], "policy": agent.policy.heads.layers[0].norms[0]}
        before = {name: norm.running.clone() for name, norm in norms.items()}
        update(learner, rollout)
        obs = torch.from_numpy(rollout.obs["obs"]).flatten(0, 1)
        batch = torch.cat((obs.mean(0), obs.var(0)))
        for name, norm in norms.items():
            part = [*range(3), *range(norm.size, norm.size + 3)]  # of the observation
            learns = name == "critic" or number % 2 == 0
            if name == "critic" and spec.branches and spec.continuous:
                continue  # next rows count once for each combination
            expected = torch.lerp(before[name][part], batch, 0.01) if learns else before[name][part]
            torch.testing.assert_close(norm.running[part], expected, rtol=1e-4, atol=1e-5)


@every_spec
@pytest.mark.parametrize("changes", [{}, {"n_step": 3, "sequence_length": 3, "estimator": "retrace"}], ids=str)
def test_without_target_critics_the_targets_are_those_of_equal_target_critics(spec, changes):
    blueprint = Blueprint(encoders={"*": Vector()}, policy=Mlp(5), critic=Mlp(5))
    role = make_role(COLUMNS, spec=spec)
    agents = first, second = [make_sac(role, blueprint, target=kind, **changes) for kind in ("none", "average")]
    second.critics.load_state_dict(first.critics.state_dict())
    second.policy.load_state_dict(first.policy.state_dict())
    second.target.network.load_state_dict(first.critics.state_dict())
    rollout = make_rollout(first, spec, changes.get("n_step", 1))
    errors = []
    for agent in agents:
        torch.manual_seed(0)
        errors.append(agent.loss(rollout)[1].compute_td_errors())
    np.testing.assert_allclose(*errors, rtol=1e-5)
    assert errors[0].max() > 0.01
    first.update_targets(1)  # nothing to update
