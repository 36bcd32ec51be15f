"""Reactor's gradient is that of the loss of the paper, computed row by row and differentiated by autograd."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from algorithm.networks import Attention, Blueprint, FrameStack, Gru, Lstm, Mlp
from algorithm.specs import ACTION_MASK, ActionSpec, ObsSpec, Role
from tests.agents.literal import COLUMNS, GAMMA, ROWS, SPECS
from tests.agents.reactor.literal import compute_literal_loss, compute_literal_terms
from tests.builders import PassThrough, compute_gradient, make_exact_reactor, make_role, random_rollout_of, to_float64
from tests.oracles import explain_variance

KINDS = {
    "one branch": ("discrete", False),
    "one branch, masked": ("discrete", True),
    "combinations of branches": ("several branches", False),
    "combinations of branches, masked": ("several branches", True),
}
CRITICS = {"categorical": {"critic": "categorical"}, "scalar": {"critic": "scalar"}}
LEAVE_ONE_OUT = {
    f"{beta}, uniform fraction {fraction}": {
        "loo_beta": beta,
        "importance_clip": 2.0,
        "policy_uniform_fraction": fraction,
    }
    for beta in ("one", "inverse", "truncated")
    for fraction in (0.0, 0.1)
}
TRUNCATED_IMPORTANCE = {
    f"truncated importance, uniform fraction {fraction}": {
        "policy_gradient": "truncated_importance",
        "importance_clip": 1.1,
        "policy_uniform_fraction": fraction,
    }
    for fraction in (0.0, 0.1)
}
ESTIMATORS = {**LEAVE_ONE_OUT, **TRUNCATED_IMPORTANCE}
NETWORKS = {
    "linear": {},
    "layers of each branch": {"body": Mlp(6), "policy": Mlp(5), "critic": Mlp(4)},
    "memory after the body": {"body": Mlp(6), "memory": Gru(4)},
    "memory of the policy": {"body": Mlp(6), "policy": Gru(4)},
    "memory of the critic": {"body": Mlp(6), "critic": Lstm(4)},
    "memories of policy and critic": {"policy": Lstm(3), "critic": Attention(4, heads=2, window=3)},
    "all memories": {"body": Mlp(6), "memory": Gru(4), "policy": Gru(3), "critic": Lstm(5)},
    "all memories and frames": {
        "encoders": {"*": FrameStack(3, PassThrough())},
        "memory": Lstm(4),
        "policy": Gru(3),
        "critic": Gru(5),
    },
    "frames and a memory of the policy": {"encoders": {"*": FrameStack(2, PassThrough())}, "policy": Gru(3)},
}
MEMORIES = [name for name in NETWORKS if name not in ("linear", "layers of each branch")]


def make_case(kind="one branch", network="layers of each branch", rows=ROWS, seed=0, **changes):
    """Return an agent, its spec, and a rollout with the whole memory before row 0."""
    name, masked = KINDS[kind]
    role = make_role(COLUMNS, spec=SPECS[name], masked=masked)
    blueprint = Blueprint(**{"encoders": {"*": PassThrough()}, **NETWORKS[network]})
    settings = {
        "gamma": GAMMA,
        "trace_lambda": 0.9,
        "value_coef": 0.7,
        "entropy_coef": 0.1,
        "reward_normalization": None,
        "n_atoms": 6,
        "v_min": -1.5,
        "v_max": 2.5,
        **changes,
    }
    agent = make_exact_reactor(role, blueprint, **settings)
    return agent, SPECS[name], to_float64(random_rollout_of(agent, role, seed, rows))


def assert_gradient_is_literal(agent, spec, rollout):
    expected = compute_gradient(compute_literal_loss(agent, spec, rollout), agent.policy)
    actual = compute_gradient(agent.loss(rollout)[0]["reactor"], agent.policy)
    assert expected.abs().max() > 1e-2
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
@pytest.mark.parametrize("critic", CRITICS.values(), ids=CRITICS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_the_paper(kind, critic, estimator):
    agent, spec, rollout = make_case(kind, **critic, **estimator)
    assert not rollout.valid.all() and not rollout.alive.all()
    assert_gradient_is_literal(agent, spec, rollout)


@pytest.mark.parametrize("burn_in", [0, 2])
@pytest.mark.parametrize("critic", CRITICS.values(), ids=CRITICS)
@pytest.mark.parametrize("network", NETWORKS)
def test_the_gradient_is_that_of_the_paper_with_every_network(network, critic, burn_in):
    agent, spec, rollout = make_case("combinations of branches, masked", network, rows=8, **critic)
    assert_gradient_is_literal(agent, spec, replace(rollout, burn_in=burn_in))


@pytest.mark.parametrize("burn_in_step", [0, 2])
@pytest.mark.parametrize("network", MEMORIES)
def test_the_gradient_of_a_replayed_sequence_continues_from_the_stored_states(network, burn_in_step):
    agent, spec, rollout = make_case(network=network, rows=9, burn_in_step=burn_in_step)
    burn_in = agent.schedule.burn_in
    assert burn_in == burn_in_step + agent.policy.torso.warmup_rows
    rollout = replace(rollout, memory=rollout.memory[:, : agent.stored_state_size], burn_in=burn_in)
    assert_gradient_is_literal(agent, spec, rollout)


def test_burn_in_rows_of_another_episode_have_no_effect():
    """The states of the branches are reset in the burn-in and after it."""
    for first_row in (1, 2, 3):
        agent, spec, rollout = make_case(network="all memories", rows=8, seed=first_row)
        first = torch.zeros_like(rollout.first)
        first[first_row] = True
        rollout = replace(rollout, first=first, alive=torch.ones_like(rollout.alive), burn_in=2)
        rollout.alive[first_row - 1] = False
        assert_gradient_is_literal(agent, spec, rollout)
        other = replace(rollout, memory=rollout.memory + 1)
        gradients = [compute_gradient(agent.loss(each)[0]["reactor"], agent.policy) for each in (rollout, other)]
        assert torch.allclose(*gradients) == (first_row <= 2)


def test_the_recursive_form_has_the_same_gradient_with_respect_to_the_policy():
    """Its targets have the same mean as long as nothing is clipped."""
    gradients = []
    for form in ("direct", "recursive"):
        agent, _, rollout = make_case(distributional=form, v_min=-30.0, v_max=30.0, value_coef=1.0)
        gradients.append({})
        for name, part in (("policy", agent.policy.policy), ("critic", agent.policy.critic)):
            gradients[-1][name] = compute_gradient(agent.loss(rollout)[0]["reactor"], part)
    torch.testing.assert_close(gradients[0]["policy"], gradients[1]["policy"])
    assert not torch.allclose(gradients[0]["critic"], gradients[1]["critic"], atol=1e-6)


@pytest.mark.parametrize("critic", CRITICS.values(), ids=CRITICS)
@pytest.mark.parametrize("kind", KINDS)
def test_priorities_are_the_largest_and_the_mean_error_of_each_column(kind, critic):
    """The error is the total variation between target and critic, or the temporal difference of a scalar critic."""
    agent, spec, rollout = make_case(kind, "memory of the critic", rows=8, **critic)
    rollout = replace(rollout, burn_in=1)
    terms, valid = compute_literal_terms(agent, spec, rollout), rollout.drop_burn_in().valid
    expected = [[], []]
    for b in range(COLUMNS):
        errors = terms.td_error[:, b][valid[:, b]]
        expected[0].append(errors.max())
        expected[1].append(errors.mean())
    actual = agent.loss(rollout)[1].compute_td_errors()
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64))
    assert critic["critic"] == "scalar" or actual.max() > 0.1
    assert not actual.requires_grad


@pytest.mark.parametrize("critic", CRITICS.values(), ids=CRITICS)
@pytest.mark.parametrize("kind", KINDS)
def test_metrics_are_means_over_valid_rows(kind, critic):
    agent, spec, rollout = make_case(kind, **critic)
    terms = compute_literal_terms(agent, spec, rollout)
    metrics = {name: value.item() for name, value in agent.loss(rollout)[1].compute_metrics().items()}
    means = {
        "train/critic_loss": terms.critic,
        "train/entropy": terms.entropy,
        "train/importance_ratio": terms.rho,
        "train/clip_fraction": (terms.rho > 1).double(),
        "train/policy_objective": terms.policy,
        "train/value": terms.value,
    }
    expected = {name: value[rollout.valid].mean().item() for name, value in means.items()}
    targets, values = (each[rollout.valid].numpy() for each in (terms.return_, terms.q_taken))
    expected["train/explained_variance"] = explain_variance(targets, values)
    assert metrics == pytest.approx(expected)


@pytest.mark.parametrize("fraction", [0.0, 0.1])
@pytest.mark.parametrize("scale", [1e3, 1e8, 1e20])
@pytest.mark.parametrize("estimator", ["leave_one_out", "truncated_importance"])
@pytest.mark.parametrize("critic", CRITICS.values(), ids=CRITICS)
def test_extreme_logits_have_finite_gradients_in_float32(critic, estimator, scale, fraction):
    spec = ActionSpec(branches=(3, 2))
    role = Role(COLUMNS, {"obs": ObsSpec((3,)), ACTION_MASK: ObsSpec((5,), "uint8")}, spec)
    agent = make_exact_reactor(
        role, policy_gradient=estimator, policy_uniform_fraction=fraction, entropy_coef=0.1, **critic
    )
    agent.policy.float()
    agent.target.network.float()
    with torch.no_grad():
        agent.policy.policy.head.linear.bias.copy_(scale * torch.tensor([1, -1, 0.5, 1, 0, -0.2]))
    rollout = random_rollout_of(agent, role).convert(torch.from_numpy)
    losses, result = agent.loss(rollout)
    assert np.isfinite(losses["reactor"].item())
    assert compute_gradient(losses["reactor"], agent.policy).isfinite().all()
    assert all(value.isfinite() for value in result.compute_metrics().values())
    assert result.compute_td_errors().isfinite().all()
