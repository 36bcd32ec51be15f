"""An update of SAC without autograd is the update by autograd, for every setting that it serves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from algorithm.networks import Blueprint, Mlp, Vector
from algorithm.networks.precision import Placement
from algorithm.rollout import Rollout
from algorithm.specs import ActionSpec
from algorithm.training.learner import Learner
from tests.builders import make_autograd_learner, make_role, make_sac, random_rollout_of

CONTINUOUS, HYBRID = ActionSpec(2), ActionSpec(2, (2, 3))
COLUMNS = 6
CASES = {
    "one step": (CONTINUOUS, {}),
    "mean of critics": (CONTINUOUS, {"ensemble_q_reduce": "mean"}),
    "some critics of an ensemble": (CONTINUOUS, {"ensemble_q_num": 4, "ensemble_q_sample": 2}),
    "rescaled values": (CONTINUOUS, {"rescale_values": True}),
    "categorical critic": (CONTINUOUS, {"critic": "categorical", "reward_normalization": "return_std"}),
    "no target critics": (CONTINUOUS, {"target": "none"}),
    "several steps": (CONTINUOUS, {"n_step": 3, "sequence_length": 4}),
    "several steps without ratios": (CONTINUOUS, {"n_step": 3, "sequence_length": 4, "use_n_step_is": False}),
    "clipped errors": (CONTINUOUS, {"clip_epsilon": 0.1}),
    "std in a range": (CONTINUOUS, {"std_min": 0.1, "std_max": 2.0}),
    "no minimum of std": (CONTINUOUS, {"std_min": 0.0}),
    "constant temperature": (CONTINUOUS, {"use_auto_alpha": False}),
    "policy in every second update": (CONTINUOUS, {"policy_update_every": 2}),
    "hybrid": (HYBRID, {}),
    "hybrid with several steps": (HYBRID, {"n_step": 3, "sequence_length": 4}),
    "discrete": (ActionSpec(0, (3,)), {}),  # the policy alone is without autograd
}


def make_learner(
    kind: Callable[..., Learner], spec: ActionSpec, blueprint: Blueprint | None = None, **changes
) -> Learner:
    torch.manual_seed(0)
    role = make_role(COLUMNS, spec=spec)
    blueprint = blueprint or Blueprint({"*": Vector()}, policy=Mlp(16, 8), critic=Mlp(8, 16))
    return kind(make_sac(role, blueprint, **changes), role, {}, None)


def make_batch(learner: Learner, spec: ActionSpec, seed: int) -> Rollout:
    role = make_role(COLUMNS, spec=spec)
    return random_rollout_of(learner.agent, role, seed, learner.agent.schedule.sequence_length)


def compute(learner: Learner, batch: Rollout, seed: int):
    """Return the gradient of an update, its metrics and TD errors; then step."""
    torch.manual_seed(seed)
    result = learner.compute_gradients(batch)
    results = learner.parameters.gradient.clone(), result.compute_metrics(), result.compute_td_errors()
    learner.apply_gradients()
    return results


@pytest.mark.parametrize("case", CASES)
def test_updates_are_those_of_autograd(case):
    spec, changes = CASES[case]
    by_hand, by_autograd = (make_learner(kind, spec, **changes) for kind in (Learner, make_autograd_learner))
    for number in range(4):
        batch = make_batch(by_hand, spec, number)
        (gradient, metrics, errors), (expected, expected_metrics, expected_errors) = (
            compute(learner, batch, number) for learner in (by_hand, by_autograd)
        )
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max()) + 1e-7)
        torch.testing.assert_close(metrics, expected_metrics, rtol=1e-3, atol=1e-5, equal_nan=True)
        torch.testing.assert_close(errors, expected_errors, rtol=1e-3, atol=1e-5)
        # The same parameters for the next update, since Adam magnifies differences of tiny gradients.
        by_autograd.parameters.load(by_hand.parameters.state())


def list_kinds(learner: Learner, spec: ActionSpec) -> dict[str, bool]:
    """Return whether the gradient of each group's loss is computed by hand."""
    losses, _ = learner.agent.loss(make_batch(learner, spec, 0).convert(torch.from_numpy))
    return {name: loss.is_leaf for name, loss in losses.items()}


def test_gradients_are_by_hand_where_layers_are_linear():
    continuous = list_kinds(make_learner(Learner, CONTINUOUS), CONTINUOUS)
    assert continuous == {"critic": True, "policy": True, "alpha": False}
    discrete = ActionSpec(0, (3,))
    assert list_kinds(make_learner(Learner, discrete), discrete) == {"critic": False, "policy": True, "alpha": False}
    assert not any(list_kinds(make_learner(make_autograd_learner, CONTINUOUS), CONTINUOUS).values())


def test_a_trained_torso_leaves_the_critics_to_autograd():
    blueprint = Blueprint({"*": Vector()}, body=Mlp(8), policy=Mlp(8), critic=Mlp(8))
    by_hand, by_autograd = (make_learner(kind, CONTINUOUS, blueprint) for kind in (Learner, make_autograd_learner))
    assert list_kinds(by_hand, CONTINUOUS) == {"critic": False, "policy": True, "alpha": False}
    batch = make_batch(by_hand, CONTINUOUS, 0)
    gradient, expected = (compute(learner, batch, 0)[0] for learner in (by_hand, by_autograd))
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_normalized_layers_are_left_to_autograd(norm):
    blueprint = Blueprint({"*": Vector()}, policy=Mlp(8, norm=norm), critic=Mlp(8, norm=norm))
    assert not any(list_kinds(make_learner(Learner, CONTINUOUS, blueprint), CONTINUOUS).values())


def test_bfloat16_is_left_to_autograd():
    learner = make_learner(make_autograd_learner, CONTINUOUS)
    role = make_role(COLUMNS, spec=CONTINUOUS)
    learner = Learner(learner.agent, role, {}, None, Placement(precision=torch.bfloat16))
    assert not any(list_kinds(learner, CONTINUOUS).values())


def freeze_first_layer(size: int) -> nn.Module:
    layers = Mlp(16, 8)(size)
    layers.layers[0].weight.requires_grad_(False)
    return layers


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_weights_that_are_not_trained_stay(optimizer):
    blueprint = Blueprint({"*": Vector()}, policy=freeze_first_layer, critic=freeze_first_layer)
    learner = make_learner(Learner, CONTINUOUS, blueprint, optimizer=optimizer, weight_decay=0.1)
    networks = [learner.agent.policy, learner.agent.critics]
    frozen = [each for network in networks for each in network.parameters() if not each.requires_grad]
    before = [each.clone() for each in frozen]
    for number in range(3):
        compute(learner, make_batch(learner, CONTINUOUS, number), number)
    assert len(frozen) == 3 and all(each.equal(old) for each, old in zip(frozen, before, strict=True))


def test_an_update_without_the_policy_has_no_metrics_of_it():
    learner = make_learner(Learner, CONTINUOUS, policy_update_every=2)
    names = [compute(learner, make_batch(learner, CONTINUOUS, number), number)[1].keys() for number in range(2)]
    assert "train/value" in names[0] and "train/entropy_continuous" not in names[0]
    assert {"train/entropy_continuous", "train/policy_objective"} <= names[1]
