"""SAC's gradients equal autograd's gradients of the papers' losses, which are computed row by row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from algorithm.agents.sac.agent import PolicyOutput, Sac
from algorithm.networks import Blueprint, FrameStack, Gru, Mlp, Vector
from algorithm.networks.passes import AutogradPass
from algorithm.rollout import Rollout
from algorithm.specs import ACTION_MASK, ActionSpec
from algorithm.training.learner import Learner
from tests.agents.sac.literal import COLUMNS, GAMMA, SPECS, Literal, make_case, sac_of
from tests.builders import compute_gradient, make_role, make_step, random_rollout_of, update
from tests.oracles import explain_variance


def assert_as_written(agent: Sac, spec: ActionSpec, rollout: Rollout, seed: int) -> None:
    torch.manual_seed(seed)
    losses, result = agent.loss(rollout)
    literal = Literal(agent, spec, rollout, seed)
    written = literal.losses()
    for name, group in agent.groups.items():
        wanted = compute_gradient(written[name], group.module)
        assert wanted.abs().max() > 1e-3
        torch.testing.assert_close(compute_gradient(losses[name], group.module), wanted, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(result.compute_td_errors(), literal.errors(), rtol=1e-7)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("seed", range(2))
def test_the_gradients_equal_the_papers_losses(spec, seed, mask):
    if mask and not spec.branches:
        pytest.skip("no branches")
    body, reduce = (Mlp(8), "min") if seed else (None, "auto")
    changes = {"ensemble_q_reduce": reduce, "alpha_critic_scale": 0.5 if seed else 1.0}
    agent, rollout = make_case(spec, seed, body=body, mask=mask, **changes)
    assert_as_written(agent, spec, rollout, seed)


@pytest.mark.parametrize("spec", [SPECS["continuous"], SPECS["discrete"], SPECS["hybrid"]], ids=str)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"estimator": "retrace"},
        {"use_n_step_is": False},
        {"v_lambda": 0.75, "v_rho": 2.0},
        {"rescale_values": True},
        {"rescale_values": True, "estimator": "retrace"},
        {"clip_epsilon": 0.5},
        {"alpha_critic_scale": 0.25, "ensemble_q_reduce": "mean"},
        {"estimator": "retrace", "use_n_step_is": False},
        {"n_step": 1, "sequence_length": 1, "ensemble_q_sample": 2},
        {"ensemble_q_sample": 2, "estimator": "retrace"},
        {"ensemble_q_sample": 2, "clip_epsilon": 0.5},
    ],
    ids=str,
)
@pytest.mark.parametrize("n_step", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_multi_step_targets_and_critics_of_an_ensemble_equal_their_definitions(spec, changes, n_step):
    settings = {"sequence_length": 4, "n_step": n_step, "ensemble_q_num": 3, "ensemble_q_sample": 3, **changes}
    agent, rollout = make_case(spec, 9, settings["sequence_length"], **settings)  # with an episode of four rows
    assert_as_written(agent, spec, rollout, 9)


def test_the_target_critics_are_updated_every_update_target_per_step():
    spec = SPECS["discrete"]
    agent = sac_of(spec, tau=0.25, update_target_per_step=3)
    role = make_role(COLUMNS, spec=spec)
    learner, moved = Learner(agent, role, {}, None), []
    for number in range(1, 7):
        before = agent.target.vector.clone()
        update(learner, random_rollout_of(agent, role, number, 1))
        moved.append(not torch.equal(before, agent.target.vector))
        if moved[-1]:
            wanted = before + 0.25 * (agent.target.source_vector - before)
            torch.testing.assert_close(agent.target.vector, wanted)
    assert moved == [False, False, True, False, False, True]


@pytest.mark.parametrize(("share", "step"), [(0.98, -0.178694), (0.5, 0.348640)], ids=["too little", "enough"])
def test_the_known_step_of_the_temperature(share, step):
    """Gradient descent: too little entropy raises log alpha, too much lowers it."""
    agent, _ = make_case(SPECS["discrete"], use_auto_alpha=True, target_d_alpha=share)
    policy = agent.family(torch.tensor([[[0.6, 0.3, 0.1]]], dtype=torch.float64).log())
    output = PolicyOutput(policy=policy, reparameterized=policy.rsample(), entropy_cost=torch.zeros_like(policy.probs))
    weights, values = torch.ones(1, 1).double(), torch.zeros_like(policy.probs)
    losses = agent.policy_learner.compute_losses(
        output, AutogradPass(policy.statistics.clone()), weights, lambda numbers: (values, None)
    )[0]
    (found,) = torch.autograd.grad(losses["alpha"], agent.policy_learner.temperature.log_alpha)
    assert found.item() == pytest.approx(step, abs=1e-6)


def test_each_update_samples_critics_of_the_ensemble():
    agent = sac_of(SPECS["continuous"], ensemble_q_num=5, ensemble_q_sample=2)
    parts = {tuple(sorted(agent._sample_critics())) for _ in range(200)}
    assert len(parts) == 10
    assert sac_of(SPECS["continuous"])._sample_critics() is None


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_metrics_are_means_over_valid_rows(spec):
    agent, rollout = make_case(spec, 5, 3, sequence_length=3, n_step=2)
    torch.manual_seed(0)
    metrics = {name: value.item() for name, value in agent.loss(rollout)[1].compute_metrics().items()}
    literal = Literal(agent, spec, rollout, 0)
    target, wanted = literal.targets(), {}
    rows = [(t, b) for t, b in np.argwhere(~np.isnan(target))]
    taken = {row: literal.taken(agent.critics, *row) for row in rows}
    wanted["train/critic_loss"] = [(0.5 * (target[row] - taken[row]).square()).mean().item() for row in rows]
    wanted["train/value"] = [taken[row].mean().item() for row in rows]
    wanted["train/explained_variance"] = [explain_variance([target[row] for row in rows], wanted["train/value"])]
    wanted["train/clip_fraction"] = [literal.log_rho(*row) > math.log(agent.settings.v_c) for row in rows]
    wanted["train/policy_objective"] = [
        sum(
            (log_d.exp() * (literal.reduced(literal.q(agent.critics, *row, k, c)) - literal.cost(log_d, log_c))).item()
            for k, (log_d, log_c, c) in enumerate(literal.policy_output[row])
        )
        for row in rows
    ]
    for kind, name, of_kind in (("d", "discrete", spec.branches), ("c", "continuous", spec.continuous)):
        if of_kind:
            wanted[f"train/alpha_{name}"] = [literal.alpha[kind]]
            logs = {
                row: [(log_d.exp(), {"d": log_d, "c": log_c}[kind]) for log_d, log_c, _ in literal.policy_output[row]]
                for row in rows
            }
            wanted[f"train/entropy_{name}"] = [-sum((p * log).item() for p, log in logs[row]) for row in rows]
    assert metrics == pytest.approx({name: np.mean(values) for name, values in wanted.items()}, rel=1e-6)


def test_discrete_dqn_like_takes_the_best_action_and_has_double_targets():
    spec = SPECS["discrete"]
    agent = sac_of(spec, discrete_dqn_like=True, discrete_dqn_epsilon=0.3)
    with torch.no_grad():
        for parameter in agent.target.network.parameters():
            parameter.normal_()
    rollout = random_rollout_of(agent, make_role(COLUMNS, spec=spec), 0, 1).convert(torch.from_numpy)
    rollout.weight[:] = 1
    obs = rollout.obs["obs"]
    statistics, _ = agent.policy.act({"obs": obs[0].numpy()}, np.zeros((COLUMNS, 0), np.float32))
    best = agent.critics(obs).mean(0).argmax(-1)
    wanted = np.full((COLUMNS, 3), 0.1)
    wanted[np.arange(COLUMNS), best[0]] += 0.7
    np.testing.assert_allclose(np.exp(statistics), wanted, rtol=1e-5)

    losses, result = agent.loss(rollout)
    assert list(losses) == ["critic"]
    following = agent.target.network(obs).mean(0)[1].gather(-1, best[1].unsqueeze(-1)).squeeze(-1)
    target = rollout.reward[0] + GAMMA * rollout.alive[0] * following
    taken = agent.critics(obs[:1]).gather(-1, rollout.raw_action.long().expand(2, -1, -1, -1)).squeeze(-1)[:, 0]
    error = 0.5 * (target - taken).square().mean(0)
    weight = rollout.valid[0] / rollout.valid[0].sum()
    found = result.compute_metrics()["train/critic_loss"].item()
    assert found == pytest.approx((weight * error).sum().item(), rel=1e-4)


def test_burn_in_has_no_gradient_and_updates_the_memory_of_each_network():
    spec = SPECS["continuous"]
    blueprint = Blueprint(body=Mlp(8), memory=Gru(6))
    agent = sac_of(spec, blueprint, burn_in_step=3, sequence_length=2)
    rollout = random_rollout_of(agent, make_role(COLUMNS, spec=spec), 0, 5).convert(torch.from_numpy)
    rollout.burn_in = 3
    rollout.obs["obs"].requires_grad_()
    losses, _ = agent.loss(rollout)
    (reached,) = torch.autograd.grad(losses["critic"], rollout.obs["obs"])
    assert (reached[:3] == 0).all() and reached[3:].abs().max() > 0


MEMORIES = {
    "no memory": (Blueprint(body=Mlp(4)), 0),
    "frames": (Blueprint(encoders={"*": FrameStack(3, Vector())}), 6),
    "frames and gru": (Blueprint(encoders={"*": FrameStack(3, Vector())}, memory=Gru(5)), 11),
}


@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("changes", [{}, {"discrete_dqn_like": True}], ids=str)
def test_uniform_actions_equal_those_by_the_masked_statistics_of_the_policy(name, mask, changes, monkeypatch):
    (blueprint, state_size), spec = MEMORIES[name], SPECS["multi-discrete" if changes else "hybrid"]
    agent, numbers = sac_of(spec, blueprint, mask=mask, **changes), np.random.default_rng(1)
    assert agent.state_size == state_size
    obs = {"obs": numbers.normal(size=(COLUMNS, 3)).astype(np.float32)}
    if mask:
        obs[ACTION_MASK] = np.ones((COLUMNS, sum(spec.branches)), np.uint8)
        obs[ACTION_MASK][1:3, 1] = 0
    step = make_step(obs)
    memory = numbers.normal(size=(COLUMNS, state_size)).astype(np.float32)
    statistics, next_memory = agent.policy.act(obs, memory)
    sample, behavior = agent.family.sample_uniformly(statistics, np.random.default_rng(2))
    if not agent.stored_state_size:  # the memory of a recurrent network needs the network
        monkeypatch.delattr(agent.policy, "_act")
    agent.rng = np.random.default_rng(2)
    decision = agent.act_uniformly(step, memory)
    for found, expected in ((decision.raw_action, sample), (decision.memory, next_memory)):
        assert found.dtype == expected.dtype and np.array_equal(found, expected)
    start = 2 * agent.family.n_means
    assert np.array_equal(decision.behavior[:, start:], behavior[:, start:]) and not decision.behavior[:, :start].any()


def test_uniform_actions_are_uniform_without_exploration_of_the_policy():
    agent = sac_of(SPECS["discrete"], discrete_dqn_like=True, discrete_dqn_epsilon=0.0)
    memory, step = np.zeros((COLUMNS, 0), np.float32), make_step({"obs": np.zeros((COLUMNS, 3), np.float32)})
    assert {action for _ in range(20) for action in agent.act_uniformly(step, memory).action[:, 0]} == {0, 1, 2}
