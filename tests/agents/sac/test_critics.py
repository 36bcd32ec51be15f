"""The critics of SAC: targets of the categorical one by definition, gradients by autograd, errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from algorithm.agents.sac.critics import Experience, TakenActions, make_critic
from algorithm.distributions import HybridFamily
from algorithm.specs import ActionSpec
from algorithm.training.learner import Learner
from tests.agents.sac.literal import COLUMNS, GAMMA, SPECS, CategoricalLiteral, make_case, sac_of
from tests.builders import (
    compute_gradient,
    make_role,
    make_step,
    random_boundaries,
    random_rollout_of,
    sac_settings,
    update,
)

ATOMS = {"critic": "categorical", "n_atoms": 21, "v_min": -8.0, "v_max": 8.0}
CRITICS, ROWS = 3, 5


def random_experience(spec: ActionSpec, seed: int, has_taken: bool) -> Experience:
    """Return a batch with every kind of episode boundary, in float64."""
    generator, family = torch.Generator().manual_seed(seed), HybridFamily(spec.continuous, spec.branches)
    first, alive, _ = map(torch.from_numpy, random_boundaries(np.random.default_rng(seed), ROWS, COLUMNS))

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    policy, behavior = (family(draw(ROWS, COLUMNS, family.statistics_size)) for _ in range(2))
    raw_action = torch.cat([draw(ROWS, COLUMNS, spec.continuous), torch.ones(ROWS, COLUMNS, len(spec.branches))], -1)
    taken = TakenActions(
        raw_action=raw_action, policy=policy, behavior=behavior, entropy_cost=0.1 * draw(ROWS, COLUMNS)
    )
    return Experience(
        reward=draw(ROWS, COLUMNS),
        discount=GAMMA * alive.double(),
        valid=~(first[1:] & alive),
        next_probs=draw(ROWS, COLUMNS, family.n_combinations).softmax(-1),
        next_entropy_cost=0.1 * draw(ROWS, COLUMNS, family.n_combinations),
        taken=taken if has_taken else None,
        critic_indices=range(CRITICS),
        evaluate_target=lambda indices: pytest.fail("this target reads no other values"),
    )


@pytest.mark.parametrize("spec", [SPECS["continuous"], SPECS["multi-discrete"], SPECS["hybrid"]], ids=str)
@pytest.mark.parametrize("n_step", [1, 2, 9])
@pytest.mark.parametrize("reduce", ["min", "mean"])
def test_the_mean_of_the_target_is_the_scalar_target_unless_positions_are_clipped(spec, n_step, reduce):
    changes = {**ATOMS, "v_min": -50.0, "v_max": 50.0, "n_step": n_step, "sequence_length": 9, "use_n_step_is": False}
    settings = sac_settings(**changes, ensemble_q_reduce=reduce)
    critic = make_critic(settings, is_continuous=bool(spec.continuous))
    scalar = make_critic(replace(settings, critic="scalar"), is_continuous=bool(spec.continuous))
    experience = random_experience(spec, n_step, has_taken=n_step > 1)
    outputs = torch.randn(CRITICS, *experience.next_probs.shape, 21, dtype=torch.float64)
    target = critic._compute_target(outputs, experience)
    expected = scalar._compute_target(critic.compute_values(outputs), experience)
    atoms, valid = torch.linspace(-50, 50, 21, dtype=torch.float64), experience.valid
    assert valid.any() and not valid.all()
    torch.testing.assert_close((target @ atoms)[valid], expected[valid], rtol=0, atol=1e-9)
    torch.testing.assert_close(target.sum(-1), torch.ones(ROWS, COLUMNS).double())
    assert target.min() >= 0


@pytest.mark.parametrize("changes", [{}, {"rescale_values": True}, {"ensemble_q_reduce": "mean"}], ids=str)
def test_equal_critics_share_the_gradient_of_their_minimum(changes):
    critic = make_critic(sac_settings(**changes), is_continuous=True)
    outputs = torch.tensor([[1.0, 2.0, -1.0], [1.0, 3.0, -1.0], [4.0, 2.0, -1.0]])  # [3 critics, 3 rows]
    q, gradient = critic.differentiate_ensemble(outputs)
    expected = torch.tensor([[1 / 2, 1 / 2, 1 / 3], [1 / 2, 0, 1 / 3], [0, 1 / 2, 1 / 3]])
    if changes:
        inputs = outputs.clone().requires_grad_()
        (expected,) = torch.autograd.grad(critic.reduce_ensemble(inputs).sum(), inputs)
    torch.testing.assert_close(gradient, expected)
    assert q.equal(critic.reduce_ensemble(outputs))


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_gradients_equal_autograd_of_the_losses(spec):
    agent, rollout = make_case(spec, 1, **ATOMS)
    torch.manual_seed(1)
    losses, result = agent.loss(rollout)
    literal = CategoricalLiteral(agent, spec, rollout, 1)
    expected = {**literal.losses(), "critic": literal.critic_loss()}
    for name, group in agent.groups.items():
        wanted = compute_gradient(expected[name], group.module)
        assert wanted.abs().max() > 1e-3
        torch.testing.assert_close(compute_gradient(losses[name], group.module), wanted, rtol=1e-6, atol=1e-8)
    errors = result.compute_td_errors()
    assert (errors >= 0).all() and (errors <= 1).all() and errors.max() > 0.01  # total variations


def test_categorical_discrete_dqn_like_is_double_c51():
    agent = sac_of(SPECS["discrete"], **ATOMS, discrete_dqn_like=True, discrete_dqn_epsilon=0.0)
    for network in (agent.critics, agent.target.network):
        for critic in network.critics:
            torch.nn.init.normal_(critic.head.weight)
    rollout = random_rollout_of(agent, make_role(COLUMNS, spec=SPECS["discrete"]), 0, 1).convert(torch.from_numpy)
    rollout.weight[:] = 1
    obs, atoms = rollout.obs["obs"], torch.linspace(-8, 8, 21)
    with torch.no_grad():
        best = (agent.critics(obs).softmax(-1) @ atoms).mean(0).argmax(-1)
        followers = agent.target.network(obs).softmax(-1).mean(0)
    decision = agent.act(make_step({"obs": obs[0].numpy()}), np.zeros((COLUMNS, 0), np.float32))
    assert decision.action[:, 0].tolist() == best[0].tolist() and len(set(best[0].tolist())) > 1
    loss = 0.0
    for column in np.flatnonzero(rollout.valid[0]):
        position = rollout.reward[0, column] + GAMMA * rollout.alive[0, column] * atoms
        weights = (1 - (position.clamp(-8, 8)[:, None] - atoms).abs() / 0.8).clamp(min=0)
        target = followers[1, column, best[1, column]] @ weights
        logits = agent.critics(obs[:1])[:, 0, column, int(rollout.raw_action[0, column, 0])]
        loss = loss - (target * logits.log_softmax(-1)).sum() / rollout.valid.sum()
    losses, _ = agent.loss(rollout)
    wanted = compute_gradient(loss, agent.critics)
    assert list(losses) == ["critic"] and wanted.abs().max() > 1e-3
    torch.testing.assert_close(compute_gradient(losses["critic"], agent.critics), wanted, rtol=1e-4, atol=1e-6)


def test_errors_are_total_variations_and_losses_cross_entropies():
    critic = make_critic(sac_settings(**{**ATOMS, "n_atoms": 3}), is_continuous=True)
    target = torch.tensor([[[0.5, 0.5, 0.0]]])
    outputs = torch.tensor([[[[0.25, 0.5, 0.25]]], [[[0.75, 0.0, 0.25]]]]).log().clamp(min=-99)
    critic._compute_target = lambda *_: target
    output = critic.evaluate(outputs, None, None)
    torch.testing.assert_close(output.compute_error(), torch.tensor([[0.25]]))
    expected = -0.5 * (np.log(0.25) + np.log(0.5) + np.log(0.75) - 99) / 2
    torch.testing.assert_close(output.compute_loss(), torch.tensor([[expected]], dtype=torch.float32))


def test_the_initial_distributions_are_not_uniform():
    """From uniform ones, a critic learns at the ends of its range only."""
    agent = sac_of(ActionSpec(2), critic="categorical")
    logits = agent.critics(torch.randn(9, 3), torch.zeros(9, 1, 2))
    assert logits.shape == (2, 9, 1, 101)
    assert logits.std(-1).mean() > 0.1


@pytest.mark.parametrize("spec", [SPECS["continuous"], SPECS["hybrid"]], ids=str)
def test_policy_and_temperatures_are_updated_every_few_updates(spec):
    agent = sac_of(spec, policy_update_every=3)
    role = make_role(COLUMNS, spec=spec)
    learner = Learner(agent, role, {}, None)
    changes = []
    for number in range(1, 8):
        before = {name: tensor.clone() for name, tensor in learner.state().items() if name.startswith("moments")}
        before |= {name: vector.clone() for name, vector in learner.parameters.state()["parameters"].items()}
        update(learner, random_rollout_of(agent, role, number, 1))
        after = {**learner.state(), **learner.parameters.state()["parameters"]}
        changes.append({name for name, value in before.items() if not value.equal(after[name])})
    critics, others = {"moments/critic", "critic"}, {"moments/policy", "policy", "moments/alpha", "alpha"}
    assert changes == [critics | others if number % 3 == 0 else critics for number in range(1, 8)]
