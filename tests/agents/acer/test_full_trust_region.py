"""ACER with a full trust region: every kind of action and network, the divergence of every update, faults, resume."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from algorithm.networks import Attention, Blueprint, Conv, FrameStack, Gru, Lstm, Mlp, NoisyMlp, Vector
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner
from algorithm.training.optimizers import FisherMatrix
from tests.builders import make_acer, make_role, random_rollout, random_rollout_of, update

ROWS, COLUMNS, DELTA = 8, 4, 0.01
SPECS = {
    "discrete": (ActionSpec(branches=(3,)), {}),
    "branches": (ActionSpec(branches=(3, 2)), {}),
    "fixed std": (ActionSpec(continuous=2), {"std": "fixed"}),
    "learned std": (ActionSpec(continuous=2), {"std": "learned"}),
    "state-dependent std": (ActionSpec(continuous=2), {"std": "state_dependent"}),
    "hybrid": (ActionSpec(continuous=1, branches=(3,)), {"std": "learned"}),
}
BLUEPRINTS = {
    "shared body": Blueprint(body=Mlp(16)),
    "separate layers": Blueprint(policy=Mlp(16), critic=Mlp(8)),
    "linear": Blueprint(),
    "gru": Blueprint(body=Mlp(8), memory=Gru(6)),
    "lstm": Blueprint(body=Mlp(8), memory=Lstm(6)),
    "attention": Blueprint(body=Mlp(8), memory=Attention(8, heads=2, window=4)),
    "frame stack": Blueprint({"*": FrameStack(3, Vector(normalize=True))}, body=Mlp(16)),
}


def make_learner(spec="discrete", blueprint="shared body", masked=False, **changes):
    action_spec, settings = SPECS[spec]
    role = make_role(COLUMNS, spec=action_spec, masked=masked)
    changes = {"trust_region": "full", "learning_rate": 0.01, **settings, **changes}
    learner = Learner(make_acer(role, BLUEPRINTS[blueprint], **changes), role, {}, max_step=None)
    learner.role = role  # of its rollouts
    return learner


def make_rollout(learner, seed=0):
    return random_rollout_of(learner.agent, learner.role, seed, ROWS)


def compute_kl(learner, rollout):
    """Return the mean KL divergence of the policy from the average policy, by the definition of the agent's loss."""
    agent = learner.agent
    with torch.no_grad():
        result = agent.loss(rollout.convert(torch.from_numpy))[1]
        return result.compute_metrics()["train/kl_to_average"].item()


def follow(learner, rollouts):
    """Return the divergences before and after the natural step of every update, with that update's average policy."""
    pairs = []
    polyak_update = learner.agent.average_policy.polyak_update
    for rollout in rollouts:
        before = compute_kl(learner, rollout)
        learner.agent.average_policy.polyak_update = lambda rate: None
        metrics = update(learner, rollout).compute_metrics()
        after = compute_kl(learner, rollout)
        assert metrics["train/kl_after_step"].item() == pytest.approx(after, abs=1e-6)
        learner.agent.average_policy.polyak_update = polyak_update
        learner.agent.update_targets(0)
        pairs.append((before, after))
    assert learner.skipped_updates == 0
    return np.array(pairs)


@pytest.mark.parametrize(
    ("spec", "blueprint", "masked"),
    [
        *((spec, "shared body", False) for spec in SPECS if spec not in ("discrete", "hybrid")),
        *((spec, blueprint, False) for blueprint in BLUEPRINTS for spec in ("discrete", "hybrid")),
        *((spec, "shared body", True) for spec in ("discrete", "branches", "hybrid")),
    ],
)
def test_the_divergence_of_every_update_is_within_the_limit(spec, blueprint, masked):
    learner = make_learner(spec, blueprint, masked, trust_region_kl=DELTA, average_policy_decay=0.9)
    before, after = follow(learner, [make_rollout(learner, seed) for seed in range(4)]).T
    assert (after <= np.maximum(before, DELTA) + 1e-6).all()
    assert np.median(after) > DELTA / 4  # the policy moves


@pytest.mark.parametrize(
    ("spec", "blueprint"), [*((spec, "shared body") for spec in SPECS), ("hybrid", "gru"), ("hybrid", "attention")]
)
def test_the_product_with_the_fisher_matrix_equals_a_double_backward_pass(spec, blueprint):
    masked = spec in ("branches", "hybrid")
    learner = make_learner(spec, blueprint, masked)
    agent = learner.agent
    update(learner, make_rollout(learner))
    divergence = agent.divergence(make_rollout(learner, 1).convert(torch.from_numpy))
    parameters = list(agent.policy.parameters())
    vector = torch.randn(sum(parameter.numel() for parameter in parameters))
    policy = divergence.compute_policy()
    found = FisherMatrix(policy, divergence.weights, parameters, damping=0.0)(vector)
    fixed = agent.family(policy.statistics.detach())
    first = torch.autograd.grad(
        (divergence.weights * policy.kl(fixed)).sum(), parameters, create_graph=True, materialize_grads=True
    )
    product = torch.cat([part.flatten() for part in first]) @ vector
    second = torch.autograd.grad(product, parameters, materialize_grads=True)
    expected = torch.cat([part.flatten() for part in second])
    assert expected.norm() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item())


def test_images_and_burn_in():
    role = Role(COLUMNS, {"image": ObsSpec((2, 8, 8), "uint8", high=255)}, ActionSpec(branches=(3,)))
    blueprint = Blueprint({"*": Conv((4, 3, 2), units=8)}, memory=Gru(6))
    learner = Learner(make_acer(role, blueprint, trust_region="full", burn_in_step=2), role, {}, None)
    rng = np.random.default_rng(0)
    image = rng.integers(256, size=(ROWS + 1, COLUMNS, 2, 8, 8)).astype(np.uint8)
    memory = np.zeros((COLUMNS, 6), np.float32)
    rollout = replace(random_rollout(rng, ROWS, COLUMNS), obs={"image": image}, memory=memory, burn_in=2)
    _, after = follow(learner, [rollout] * 3).T
    assert (after <= DELTA + 1e-6).all() and after.max() > DELTA / 4


def test_a_policy_outside_of_the_trust_region_returns_to_it():
    learner = make_learner(trust_region_kl=DELTA)
    rollout = make_rollout(learner)
    generator = torch.Generator().manual_seed(0)
    policy = learner.parameters.vector[learner.parameters.group_slices["policy"]]
    policy.add_(torch.randn(len(policy), generator=generator), alpha=0.5)
    start = compute_kl(learner, rollout)
    assert start > 5 * DELTA
    before, after = follow(learner, [rollout] * 10).T
    assert before[0] == start
    is_outside = before > DELTA
    assert (after[is_outside] < before[is_outside]).all()
    assert after[-1] <= DELTA + 1e-6


def test_the_natural_step_leaves_the_critic_unchanged_and_the_critic_the_policy():
    learner = make_learner("hybrid")
    rollout, parameters = make_rollout(learner), learner.parameters
    policy, critic = (parameters.vector[parameters.group_slices[name]] for name in ("policy", "critic"))
    learner.compute_gradients(rollout)
    for optimizer, moved, fixed in zip(learner.optimizers, (critic, policy), (policy, critic), strict=True):
        assert optimizer.name == {id(critic): "critic", id(policy): "policy"}[id(moved)]
        before, other = moved.clone(), fixed.clone()
        optimizer.step(optimizer.compute_rate(0.0))
        assert fixed.equal(other) and not moved.equal(before)


@pytest.mark.parametrize("spec", ["discrete", "hybrid"])
def test_the_gradients_of_both_groups_are_those_of_one_network(spec):
    """With separate layers and no trust region, one network has the same gradients as two."""
    single = make_learner(spec, "separate layers", trust_region="off")
    double = make_learner(spec, "separate layers")
    network, policy, critic = single.agent.policy, double.agent.policy, double.agent.separate_critic
    pairs = [(network.heads.layers[0], policy.heads.layers[0]), (network.heads.heads[0], policy.heads.heads[0])]
    pairs += [(network.heads.layers[1], critic.heads.layers[0]), (network.heads.heads[1], critic.heads.heads[0])]
    if spec == "hybrid":
        pairs += [(network.advantage_head, critic.advantage_head)]
        with torch.no_grad():
            network.std_head.log_std.copy_(policy.std_head.log_std)
    for source, target in pairs:
        target.load_state_dict(source.state_dict())
    for learner in (single, double):
        learner.agent.average_policy.polyak_update(1.0)
        torch.manual_seed(0)
        learner.compute_gradients(make_rollout(learner))
    for source, target in pairs:
        for expected, found in zip(source.parameters(), target.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-5, atol=1e-6)


def test_a_linear_learning_rate_shrinks_the_trust_region():
    learner = make_learner(learning_rate_schedule="linear", trust_region_kl=0.01)
    rollout = make_rollout(learner)
    learner.max_step = 4 * int(rollout.valid.sum())
    for left in (0.75, 0.5, 0.25, 0.0):
        learner.observe(rollout)
        before, after = follow(learner, [rollout])[0]
        assert after <= max(left * 0.01, before) + 1e-6
    assert before < 0.005 and after <= before


@pytest.mark.parametrize("looks", [True, False], ids=["as on a processor", "as on a device"])
@pytest.mark.parametrize("place", ["gradient", "natural step"])
def test_an_update_that_is_not_finite_changes_nothing(place, looks, monkeypatch):
    learner, twin = make_learner(), make_learner()
    for either in (learner, twin):
        either.checks_gradient = looks
        update(either, make_rollout(either))
    rollout = make_rollout(learner, 1)
    if place == "gradient":
        rollout.reward[rollout.valid] = np.nan
        update(learner, rollout)
    else:
        divergence = learner.agent.divergence

        def compute_divergence(batch):
            found = divergence(batch)
            return replace(found, weights=found.weights * float("nan"))

        with monkeypatch.context() as patch:
            patch.setattr(learner.agent, "divergence", compute_divergence)
            update(learner, rollout)
    assert learner.skipped_updates == learner.consecutive_skips == 1
    assert_equal_state(learner, twin, {"updates"})
    for either in (learner, twin):
        update(either, make_rollout(either, 2))
    assert_equal_state(learner, twin, {"updates"})
    assert (learner.skipped_updates, learner.consecutive_skips) == (1, 0)


def assert_equal_state(learner, twin, ignored=frozenset()):
    assert learner.parameters.all_parameters.equal(twin.parameters.all_parameters)
    states = [learner.state(), twin.state()]
    assert all(states[0][name].equal(states[1][name]) for name in states[0] if name not in ignored)


def test_an_update_without_valid_rows_leaves_the_policy_unchanged():
    learner = make_learner()
    rollout = make_rollout(learner)
    rollout.first[:], rollout.alive[:] = True, True
    policy = learner.parameters.vector[learner.parameters.group_slices["policy"]]
    before = policy.clone()
    update(learner, rollout)
    assert policy.equal(before) and learner.skipped_updates == 0


def test_the_critic_has_the_layers_of_the_body_or_its_own():
    sizes = {
        name: [
            layer.out_features for layer in make_learner(blueprint=name).agent.separate_critic.heads.layers[0].layers
        ]
        for name in ("shared body", "separate layers")
    }
    assert sizes == {"shared body": [16], "separate layers": [8]}


def test_the_groups_have_the_settings():
    agent = make_acer(
        trust_region="full",
        trust_region_kl=0.5,
        trust_region_iterations=3,
        trust_region_damping=0.25,
        trust_region_halvings=2,
        learning_rate=0.125,
        optimizer="rmsprop",
    )
    policy, critic = agent.groups["policy"], agent.groups["critic"]
    assert (policy.optimizer, critic.optimizer) == ("natural", "rmsprop")
    assert (policy.learning_rate, policy.cg_iterations, policy.damping, policy.max_halvings) == (0.5, 3, 0.25, 2)
    assert critic.learning_rate == 0.125 and critic.module is agent.separate_critic
    assert policy.module is agent.policy and agent.average_policy.source is agent.policy


def test_noisy_layers_are_refused():
    with pytest.raises(ValueError, match="^trust_region full does not support noisy layers.*use Mlp in place of"):
        make_acer(make_role(), Blueprint(body=NoisyMlp(8)), trust_region="full")
