"""Curiosity: Eq. 2-7 of Pathak et al. 2017 row by row, episode boundaries, features, and what becomes predictable."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from algorithm.auxiliaries.curiosity import Curiosity
from algorithm.auxiliaries.settings import CuriositySettings
from algorithm.networks import Blueprint, Gru, Mlp
from algorithm.specs import ActionSpec
from algorithm.training.learner import Learner
from tests.auxiliaries.cases import make_inputs
from tests.builders import PassThrough, make_a2c, make_acer, make_role, random_rollout_of, to_float64, update

LANES, ROWS = 4, 6
SPECS = {
    "discrete": ActionSpec(branches=(3,)),
    "several branches": ActionSpec(branches=(3, 2)),
    "several branches, one distribution": ActionSpec(branches=(3, 2)),  # of ACER; each branch has a prediction
    "continuous": ActionSpec(2),
    "hybrid": ActionSpec(2, (3, 2)),
}


def make_case(spec: ActionSpec, memory: bool = False, make=make_a2c, **settings):
    """Return an agent, its curiosity, the trained module, and a batch, all in float64."""
    role = make_role(LANES, spec=spec)
    agent = make(role, Blueprint(encoders={"*": PassThrough()}, body=Mlp(5), memory=Gru(4) if memory else None))
    agent.policy.double()
    curiosity = Curiosity(CuriositySettings(units=7, **settings))
    module = curiosity.build(agent, role)
    for part in (curiosity.encoder, curiosity.forward_model, curiosity.inverse_model):
        if part is not None:
            part.double()
    return agent, curiosity, module, to_float64(random_rollout_of(agent, role, rows=ROWS))


def apply_model(model: nn.Module, x: Tensor) -> Tensor:
    """Return the output of a network with one hidden layer of rectified units."""
    weight, bias, weight_out, bias_out = model.parameters()
    return (x @ weight.T + bias).clamp(min=0) @ weight_out.T + bias_out


def compute_errors(agent, curiosity, batch, spec) -> dict[tuple[int, int], tuple[Tensor, Tensor]]:
    """Return the errors of the forward and of the inverse model, for each pair of rows of one episode."""
    phi = agent.features(batch)
    if curiosity.encoder is not None:
        phi = torch.stack([curiosity.encoder.encode({"obs": row}) for row in batch.obs["obs"]])
    continuous, errors = spec.continuous, {}
    for t in range(ROWS):
        for b in range(LANES):
            if batch.first[t + 1, b]:
                continue
            action = batch.raw_action[t, b]
            bounded = agent.family.encode(batch.raw_action[t : t + 1, b])[0, :continuous]
            indices = action[continuous:].long()
            codes = [torch.eye(n).double()[index] for n, index in zip(spec.branches, indices, strict=True)]
            predicted = apply_model(curiosity.forward_model, torch.cat((phi[t, b], bounded, *codes)))
            forward = sum((predicted[i] - phi[t + 1, b, i]) ** 2 for i in range(len(predicted))) / 2
            outputs = apply_model(curiosity.inverse_model, torch.cat((phi[t, b], phi[t + 1, b])))
            inverse = sum((outputs[i] - bounded[i]) ** 2 for i in range(continuous)) / 2
            start = continuous
            for n, index in zip(spec.branches, indices, strict=True):
                inverse = inverse - outputs[start : start + n].softmax(-1)[index].log()
                start += n
            errors[t, b] = forward, inverse
    return errors


@pytest.mark.parametrize("features", ["own", "agent"])
@pytest.mark.parametrize("model", ["both", "forward", "inverse"])
@pytest.mark.parametrize("kind", SPECS)
def test_rewards_and_losses_are_those_of_the_paper(kind, model, features):
    make = make_acer if "one distribution" in kind else make_a2c
    agent, curiosity, _, batch = make_case(SPECS[kind], make=make, model=model, features=features, forward_share=0.3)
    errors = compute_errors(agent, curiosity, batch, SPECS[kind])
    inputs = make_inputs(agent, batch)
    reward, (loss, metrics) = curiosity.reward(inputs), curiosity.loss(inputs)
    assert 0 < len(errors) < ROWS * LANES
    for t in range(ROWS):
        for b in range(LANES):
            expected = errors[t, b][model == "inverse"].item() if (t, b) in errors else 0.0
            assert reward[t, b].item() == pytest.approx(expected, rel=1e-6)
    forward, inverse = (sum(pair[i].item() for pair in errors.values()) / len(errors) for i in (0, 1))
    expected_loss = {"both": 0.3 * forward + 0.7 * inverse, "forward": forward, "inverse": inverse}[model]
    assert loss.item() == pytest.approx(expected_loss, rel=1e-6)
    expected_metrics = {"forward_error": forward, "inverse_error": inverse}
    if model != "both":
        expected_metrics = {f"{model}_error": expected_metrics[f"{model}_error"]}
    assert {name: value.item() for name, value in metrics.items()} == pytest.approx(expected_metrics, rel=1e-6)


def test_a_batch_without_a_pair_has_no_reward_and_no_loss():
    agent, curiosity, module, batch = make_case(SPECS["discrete"])
    inputs = make_inputs(agent, replace(batch, first=torch.ones_like(batch.first)))
    loss = curiosity.loss(inputs)[0]
    loss.backward()
    assert curiosity.reward(inputs).eq(0).all() and loss == 0
    assert all(parameter.grad.eq(0).all() for parameter in module.parameters() if parameter.grad is not None)


@pytest.mark.parametrize(
    ("settings", "trained"),
    [
        ({}, {"encoder", "forward_model", "inverse_model"}),
        ({"model": "inverse"}, {"encoder", "inverse_model"}),
        ({"model": "forward"}, {"forward_model"}),  # alone, it would shape its features to a constant
        ({"features": "agent"}, {"forward_model", "inverse_model"}),
        ({"features": "agent", "model": "forward"}, {"forward_model"}),
    ],
    ids=["both", "inverse", "forward", "both on features of the agent", "forward on features of the agent"],
)
def test_each_model_trains_itself_and_its_own_encoder(settings, trained):
    agent, curiosity, module, batch = make_case(SPECS["discrete"], strength=0.25, **settings)
    features = agent.policy.torso.unroll(batch.obs, batch.first, batch.memory).detach()
    curiosity.loss(make_inputs(agent, batch, features))[0].backward()
    with_gradient = {
        name.partition(".")[0]
        for name, parameter in module.named_parameters()
        if parameter.grad is not None and parameter.grad.any()
    }
    assert with_gradient == trained
    assert not curiosity.shapes_features and curiosity.reward_weight == 0.25
    assert all(parameter.grad is None for parameter in agent.policy.parameters())


@pytest.mark.parametrize("features", ["own", "agent"])
def test_the_errors_of_the_reward_are_reused_in_the_loss_of_the_same_batch_only(features):
    agent, curiosity, module, batch = make_case(SPECS["hybrid"], features=features)
    inputs = make_inputs(agent, batch)

    def compute_gradient() -> Tensor:
        loss, _ = curiosity.loss(inputs)
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(module.parameters()))])

    expected = compute_gradient()
    torch.no_grad()(curiosity.reward)(inputs)
    assert torch.equal(compute_gradient(), expected)
    other = make_inputs(agent, to_float64(random_rollout_of(agent, make_role(LANES, spec=SPECS["hybrid"]), seed=1)))
    torch.no_grad()(curiosity.reward)(other)
    assert torch.equal(compute_gradient(), expected)


def test_batch_norms_of_its_encoder_learn_from_each_batch():
    role = make_role(LANES)
    agent = make_a2c(role, Blueprint(encoders={"*": PassThrough()}, body=Mlp(5, norm="batch")))
    learner = Learner(agent, role, {"curiosity": Curiosity(CuriositySettings(update_every=1))}, None)
    statistics = learner.parameters.batch_statistics[learner.parameters.batch_statistics_slices["auxiliary/curiosity"]]
    before = statistics.clone()
    update(learner, random_rollout_of(agent, role, rows=ROWS))
    assert not torch.equal(statistics, before)


def test_the_features_of_the_agent_contain_its_memory():
    agent, curiosity, _, batch = make_case(SPECS["discrete"], memory=True, features="agent")
    other = curiosity.reward(make_inputs(agent, replace(batch, memory=batch.memory + 1)))
    assert not other.equal(curiosity.reward(make_inputs(agent, batch)))
