"""Residual layers, layers with norms, and the constraints of their weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from algorithm.networks import Blueprint, Chain, Mlp, Residual, UnitSphere, batch_statistics
from algorithm.networks.constraints import find_constraints
from algorithm.networks.layers import LayerStack
from algorithm.networks.normalization import NORMS, BatchNorm, RmsNorm, find_batch_norms
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner
from tests.builders import make_a2c, make_acer, make_ppo, make_reactor, make_sac, perturb, random_rollout_of, update

CONTINUOUS, DISCRETE = ActionSpec(2), ActionSpec(branches=(3,))
AGENTS = {
    "sac": (make_sac, CONTINUOUS, {"n_step": 1}),
    "sac, discrete": (make_sac, DISCRETE, {"n_step": 3, "sequence_length": 4}),
    "sac, hybrid": (make_sac, ActionSpec(1, (2,)), {"n_step": 1}),
    "sac like dqn": (make_sac, DISCRETE, {"n_step": 1, "discrete_dqn_like": True}),
    "acer": (make_acer, CONTINUOUS, {}),
    "acer, discrete": (make_acer, DISCRETE, {}),
    "a2c": (make_a2c, CONTINUOUS, {}),
    "ppo": (make_ppo, DISCRETE, {}),
    "reactor": (make_reactor, DISCRETE, {}),
}
FACTORIES = {
    **{f"residual, {norm}": Residual(6, 2, expansion=2, norm=norm) for norm in (*NORMS, None)},
    **{f"mlp, {norm}": Mlp(6, 5, norm=norm) for norm in NORMS},
    "tanh": Mlp(6, activation="tanh", norm="batch_renorm"),
    "chain": Chain(UnitSphere(), Residual(4), Mlp(7, norm="layer")),
}


def random_rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def make_learner(kind: str, layers) -> tuple[Learner, Role]:
    """Return the learner of an agent that has these layers in every place, and its role."""
    make, spec, changes = AGENTS[kind]
    role = Role(4, {"obs": ObsSpec((3,))}, spec)
    agent = make(role, Blueprint(body=layers, policy=layers, critic=layers), **changes)
    return Learner(agent, role, {}, max_step=None), role


def run_update(learner: Learner, role: Role, seed: int = 0) -> None:
    rollout = random_rollout_of(learner.agent, role, seed)
    if learner.agent.schedule.epochs:
        rollout = learner.prepare(rollout)
    update(learner, rollout)


def list_networks(learner: Learner) -> list[nn.Module]:
    agent = learner.agent
    return [
        *(group.module for group in agent.groups.values()),
        *(target.network for target in agent.target_networks.values()),
    ]


def test_a_block_follows_its_formula():
    layers = perturb(Residual(4, 1, expansion=3)(5))
    block, x = layers.blocks[0], random_rows(9, 5)
    valid = torch.arange(9) < 7

    def normalize(norm: BatchNorm, x):
        mean, variance = x[valid].mean(0), x[valid].var(0, correction=0)
        return (x - mean) / (variance + 1e-5).sqrt() * norm.weight + norm.bias

    h = normalize(layers.input_norm, x) @ layers.input.weight.T
    hidden = normalize(block.expand_norm, h @ block.expand.weight.T).relu()
    h = h + normalize(block.reduce_norm, hidden @ block.reduce.weight.T).relu()
    expected = h / (h.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layers.output_norm.weight
    with batch_statistics(valid):
        torch.testing.assert_close(layers(x), expected, rtol=1e-4, atol=1e-5)
    assert block.expand.weight.shape == (12, 4)
    assert all(linear.bias is None for linear in (layers.input, block.expand, block.reduce))


@pytest.mark.parametrize("name", FACTORIES)
def test_numpy_equals_torch(name):
    module = perturb(FACTORIES[name](5))
    x = random_rows(4, 5)
    y = module(x).detach()
    assert y.shape == (4, module.size)
    in_numpy = module.numpy()
    np.testing.assert_allclose(in_numpy(x.numpy()), y, rtol=1e-4, atol=1e-5)
    perturb(module)
    np.testing.assert_allclose(in_numpy(x.numpy()), module(x).detach(), rtol=1e-4, atol=1e-5)


def test_the_unit_sphere_keeps_the_length_of_a_row():
    x = random_rows(6, 4)
    y = UnitSphere(2.0)(4)(x)
    torch.testing.assert_close(y.norm(dim=-1), torch.ones(6))
    torch.testing.assert_close(2 * y[:, :4] / y[:, 4:], x)


@pytest.mark.parametrize("kind", AGENTS)
def test_unit_weights_hold_after_every_step_also_of_targets(kind):
    learner, role = make_learner(kind, Residual(6, 2, unit_weights=True))
    before = [network.state_dict() for network in list_networks(learner)]
    before = [{name: value.clone() for name, value in state.items()} for state in before]
    for seed in range(-1, 3):
        if seed >= 0:
            run_update(learner, role, seed)
        n_layers = 0
        for network in list_networks(learner):
            for layers in (part for part in network.modules() if type(part) is LayerStack):
                n_layers += 1
                for part in layers.modules():
                    own = [parameter.detach() for parameter in part.parameters(recurse=False)]
                    if isinstance(part, BatchNorm | RmsNorm):
                        norm = torch.cat(own).norm()
                        torch.testing.assert_close(norm, torch.tensor(float(len(own[0]))).sqrt(), rtol=1e-5, atol=0)
                    elif own:
                        norms = own[0].norm(dim=1)
                        torch.testing.assert_close(norms, torch.ones_like(norms), rtol=1e-5, atol=0)
        assert n_layers >= 3
    for network, old in zip(list_networks(learner), before, strict=True):
        assert any(not torch.equal(value, old[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize("kind", AGENTS)
def test_each_trained_layer_commits_its_statistics(kind):
    """The target networks have averages of the statistics of their sources."""
    learner, role = make_learner(kind, Residual(6, 1))
    parameters = learner.parameters
    initial = parameters.batch_statistics.clone()
    run_update(learner, role)
    for group in learner.agent.groups.values():
        for norm in find_batch_norms([group.module]):
            mean, variance = norm.running.chunk(2)
            assert mean.count_nonzero() >= 0.5 * norm.size  # the mean of a feature without variation may stay 0
            assert (variance != 1).any()
    assert not torch.equal(parameters.batch_statistics, initial)
    for target in learner.agent.target_networks.values():
        assert len(target.statistics) == len(target.source_statistics) > 0


def test_target_networks_average_the_statistics_of_their_source():
    learner, role = make_learner("sac", Residual(6, 1))
    target = learner.agent.target_networks["target"]
    for seed in range(2):
        before = target.statistics.double().clone()
        run_update(learner, role, seed)
        source = target.source_statistics.double()
        expected = before + learner.agent.settings.tau * (source - before)
        torch.testing.assert_close(target.statistics.double(), expected, rtol=1e-6, atol=1e-7)
    own = torch.cat([norm.running for norm in find_batch_norms([target.network])])
    assert torch.equal(own, target.statistics)


@pytest.mark.parametrize("checks_gradient", [True, False])
@pytest.mark.parametrize("kind", ["sac", "acer", "reactor"])
def test_a_bad_gradient_changes_neither_weights_nor_statistics(kind, checks_gradient):
    learner, role = make_learner(kind, Residual(6, 1, unit_weights=True))
    learner.checks_gradient = checks_gradient
    run_update(learner, role)
    before = learner.parameters.all_parameters.clone()
    learner.compute_gradients(random_rollout_of(learner.agent, role, 1))
    learner.parameters.gradient[3] = torch.nan
    learner.apply_gradients()
    assert learner.skipped_updates == 1
    assert torch.equal(learner.parameters.all_parameters, before)
    run_update(learner, role, 1)
    assert learner.skipped_updates == 1
    assert not torch.equal(learner.parameters.batch_statistics, before[-len(learner.parameters.batch_statistics) :])


def test_a_saved_state_contains_the_statistics():
    learner, role = make_learner("sac", Residual(6, 1))
    run_update(learner, role)
    state = learner.parameters.state()
    assert set(state["batch_statistics"]) == {"critic", "policy", "target/target"}
    other, _ = make_learner("sac", Residual(6, 1))
    other.parameters.load(state)
    assert torch.equal(other.parameters.all_parameters, learner.parameters.all_parameters)
    with pytest.raises(ValueError, match="batch_statistics 'critic' are missing"):
        other.parameters.load({kind: values for kind, values in state.items() if kind != "batch_statistics"})
    without, _ = make_learner("acer", Residual(6, 1, norm="layer"))
    assert "batch_statistics" not in without.parameters.state() and not len(without.parameters.batch_statistics)


@pytest.mark.parametrize("layers", [Mlp(6, 5, spectral_norm=True), Residual(6, 1, norm=None, spectral_norm=True)])
def test_spectral_norms_hold_after_every_step(layers):
    learner, role = make_learner("acer", layers)
    learner.parameters.vector *= 3
    run_update(learner, role)
    constrained = [found for network in list_networks(learner)[:1] for found in find_constraints(network)]
    assert len(constrained) >= 6
    for _, (weight, *_) in constrained:
        assert torch.linalg.matrix_norm(weight.detach(), 2) <= 1.0001
