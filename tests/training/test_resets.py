"""Resets of parameters: new initial ones, shrink-and-perturb, target networks, moments, and what stays."""

from __future__ import annotations

import pytest
import torch

from algorithm.networks import Blueprint, Mlp, Vector
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner
from tests.builders import make_sac, random_rollout_of, update
from tests.training.test_learner import Loud

ROLE = Role(4, {"obs": ObsSpec((3,))}, ActionSpec(1, (3,)))
BLUEPRINT = Blueprint(encoders={"*": Vector(normalize=True)}, body=Mlp(8), critic=Mlp(8))


def make_learner(**changes) -> Learner:
    agent = make_sac(ROLE, BLUEPRINT, reset_every=3, **changes)
    return Learner(agent, ROLE, {"loud": Loud(1.0)}, None)


def make_updates(learner: Learner, count: int) -> None:
    for seed in range(count):
        rollout = random_rollout_of(learner.agent, ROLE, seed, 1)
        learner.observe(rollout)
        update(learner, rollout)


@pytest.mark.parametrize("shrink", [0.0, 0.75])
def test_parameters_and_target_networks_are_reset_by_the_same_new_parameters(shrink):
    learner, twin = make_learner(reset_shrink=shrink), make_learner(reset_shrink=shrink)
    twin.agent.reset = None
    for one in (learner, twin):
        torch.manual_seed(7)
        make_updates(one, 2)
    assert learner.parameters.vector.equal(twin.parameters.vector)
    for one in (learner, twin):
        torch.manual_seed(8)
        make_updates(one, 1)
    old, new = twin.parameters, learner.parameters
    # What was added to the shrunk parameters are the same new parameters in critics and target critics.
    critics, targets = new.group_slices["critic"], new.target_slices["target"]
    added = new.vector[critics] - shrink * old.vector[critics]
    added_to_targets = new.target_vector[targets] - shrink * old.target_vector[targets]
    torch.testing.assert_close(added, added_to_targets, rtol=0, atol=1e-6)
    assert added.abs().max() > 0.01
    initial = (1 - shrink) * 2**0.5  # orthogonal columns with gain sqrt(2)
    weight = learner.agent.critics.torso.body.layers[0].weight - shrink * twin.agent.critics.torso.body.layers[0].weight
    torch.testing.assert_close(weight.norm(dim=0), torch.full((3,), initial), rtol=0, atol=1e-5)
    if not shrink:
        assert learner.agent.policy_learner.temperature.log_alpha.tolist() == pytest.approx([-2.3, -2.3])


def test_moments_are_reset_and_auxiliaries_and_statistics_stay():
    learner, twin = make_learner(), make_learner()
    twin.agent.reset = None
    for one in (learner, twin):
        torch.manual_seed(7)
        make_updates(one, 3)
    for name, moments in learner.state().items():
        if name.startswith("moments/"):
            assert moments.any() == (name == "moments/auxiliary/loud")
    states = learner.parameters.state(), twin.parameters.state()
    assert states[0]["statistics"].keys() == states[1]["statistics"].keys()
    assert all(value.equal(states[1]["statistics"][name]) for name, value in states[0]["statistics"].items())
    name = "auxiliary/loud"
    assert states[0]["parameters"][name].equal(states[1]["parameters"][name])


def test_resets_follow_every_few_updates():
    learner, sizes = make_learner(), []
    for _ in range(7):
        critics = learner.parameters.vector[learner.parameters.group_slices["critic"]]
        before = critics.clone()
        make_updates(learner, 1)
        sizes.append(bool((critics - before).abs().max() > 0.1))
    assert sizes == [False, False, True, False, False, True, False]
