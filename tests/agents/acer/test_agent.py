from dataclasses import replace

import numpy as np
import pytest
import torch

from algorithm.distributions import MASKED_LOGIT
from algorithm.networks import Mlp
from algorithm.replay import Replay
from algorithm.specs import ACTION_MASK, ActionSpec, ObsSpec, Role
from algorithm.training.batch_scheduler import ReplayScheduler
from algorithm.training.learner import Learner
from tests.agents.acer.test_critics import literal_targets
from tests.builders import (
    PAIRS,
    compute_gradient,
    make_acer,
    make_exact_acer,
    make_role,
    random_rollout,
    to_float64,
    update,
)

# Exact in float32, the dtype of a bool times a float.
GAMMA = 0.875
ROWS, COLUMNS = 6, 4
OFF, LOGITS, PROBS = (
    {"trust_region": "off"},
    {"trust_region_space": "logits", "trust_region_delta": 0.02},
    {"trust_region_space": "probs", "trust_region_delta": 0.5},
)


def loss_gradients(agent, rollout):
    return compute_gradient(agent.loss(rollout)[0]["acer"], agent.policy)


def forward(network, obs):
    """Return logits of three actions and the critic's values, by the formulas of a network with one hidden layer."""
    hidden, head = network.torso.body.layers[0], network.heads.linear
    features = torch.relu(obs @ hidden.weight.T + hidden.bias)
    outputs = features @ head.weight.T + head.bias
    return outputs[..., :3], outputs[..., 3:]


def literal_row_targets(s, rollout, taken, v, rho, prob_taken):
    """Return the targets of policy and critic for each row; NaN for invalid rows."""
    episodes = (rollout.reward.numpy(), rollout.alive.numpy(), rollout.first.numpy(), s.gamma)
    of_action, _, of_state = literal_targets(s, episodes, taken, v, rho, rho, prob_taken)
    return of_action, of_action if s.critic == "action_value" else of_state


def literal_loss(agent, rollout):
    """Return the loss of Wang et al. 2017, Eq. 5-12, row by row, and the number of rows with an active trust region."""
    s = agent.settings
    logits, values = forward(agent.policy, rollout.obs["obs"])
    average = forward(agent.average_policy.network, rollout.obs["obs"])[0].detach().softmax(-1)
    pi, mu = logits.softmax(-1).detach(), rollout.behavior.softmax(-1)
    action = rollout.raw_action.long()
    if s.critic == "action_value":
        v, taken, q = (pi * values.detach()).sum(-1), values[:-1].gather(-1, action).squeeze(-1), values.detach()
    else:
        v, taken, q = values.detach().squeeze(-1), values[:-1].squeeze(-1), None
    rho = (pi[:-1] / mu).gather(-1, action).squeeze(-1)
    prob_taken = pi[:-1].gather(-1, action).squeeze(-1)
    numbers = (x.detach().numpy() for x in (taken, v, rho, prob_taken))
    target, regressed = literal_row_targets(s, rollout, *numbers)
    loss, learned, bound = 0.0, 0, 0
    for t, b in np.argwhere(~np.isnan(target)):
        a = action[t, b, 0]
        phi = logits[t, b] if s.trust_region_space == "logits" else logits[t, b].softmax(-1)
        known = None if q is None else q[t, b]
        z, active = projected(s, phi.detach(), average[t, b], mu[t, b], a, target[t, b], v[t, b], known)
        entropy = -(logits[t, b].softmax(-1) * logits[t, b].log_softmax(-1)).sum()
        row = -z @ phi - s.entropy_coef * entropy + s.value_coef * (regressed[t, b] - taken[t, b]) ** 2 / 2
        loss, learned, bound = loss + rollout.weight[b] * row, learned + 1, bound + active
    return loss / learned, bound / learned


def projected(settings, phi, average, mu, action, target, v, q):
    """Return z of one row (Eq. 12) and whether the constraint is active; g (Eq. 9) and k by autograd."""
    phi = phi.requires_grad_()
    log_pi = phi.log_softmax(-1) if settings.trust_region_space == "logits" else phi.log()
    rho, c = log_pi.detach().exp() / mu, settings.importance_clip
    objective = rho[action].clamp(max=c) * (target - v) * log_pi[action]
    if q is not None:  # a critic of state values has no correction
        objective = objective + ((1 - c / rho).clamp(min=0) * log_pi.detach().exp() * (q - v) * log_pi).sum()
    kl = (average * (average.log() - log_pi)).sum()
    (g,), (k,) = torch.autograd.grad(objective, phi, retain_graph=True), torch.autograd.grad(kl, phi)
    excess = k @ g - settings.trust_region_delta
    if settings.trust_region == "off" or excess <= 0:
        return g, False
    return g - excess / (k @ k) * k, True


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("region", [OFF, LOGITS, PROBS], ids=["off", "logits", "probs"])
def test_the_gradient_equals_the_papers_equations(region, seed):
    agent = make_exact_acer(
        body=Mlp(16),
        seed=seed,
        gamma=GAMMA,
        trace_lambda=0.9,
        importance_clip=1.5,
        entropy_coef=0.1,
        value_coef=0.7,
        **region,
    )
    rollout = to_float64(random_rollout(np.random.default_rng(seed), ROWS, COLUMNS))
    loss, bound = literal_loss(agent, rollout)
    torch.testing.assert_close(
        loss_gradients(agent, rollout), compute_gradient(loss, agent.policy), rtol=1e-8, atol=1e-10
    )

    active = agent.loss(rollout)[1].compute_metrics()["train/trust_region_fraction"].item()
    assert active == pytest.approx(bound)
    assert bound == 0 if region is OFF else 0 < bound < 1


def test_rows_with_a_single_allowed_action_do_not_count_as_projected():
    """With probabilities as coordinates the constraint is active there, along a direction that changes no policy."""
    role = Role(COLUMNS, {"obs": ObsSpec((3,)), ACTION_MASK: ObsSpec((3,), "uint8")}, ActionSpec(branches=(3,)))
    agent = make_exact_acer(role, seed=1, importance_clip=1.5, **PROBS)
    rollout = to_float64(random_rollout(np.random.default_rng(1), ROWS, COLUMNS))

    def active(single):
        allowed = torch.ones(ROWS + 1, COLUMNS, 3, dtype=torch.uint8)
        allowed[:, :single, 1:] = 0
        sample, behavior = rollout.raw_action.clone(), rollout.behavior.clone()
        sample[:, :single] = 0
        behavior[:, :single, 1:] = MASKED_LOGIT
        obs = {**rollout.obs, ACTION_MASK: allowed}
        _, report = agent.loss(replace(rollout, obs=obs, raw_action=sample, behavior=behavior))
        return report.compute_metrics()["train/trust_region_fraction"].item() * rollout.valid.sum().item()

    everywhere = active(0)
    assert 0 < active(2) < everywhere
    assert active(COLUMNS) == 0


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("estimator", "critic"), PAIRS)
def test_the_gradient_of_every_estimator_and_critic_equals_its_definition(estimator, critic, seed):
    agent = make_exact_acer(
        body=Mlp(16),
        seed=seed,
        gamma=GAMMA,
        trace_lambda=0.75,  # exact in float32, too
        trace_clip=0.8,
        rho_clip=1.5,
        importance_clip=1.5,
        value_coef=0.7,
        estimator=estimator,
        critic=critic,
        **LOGITS,
    )
    rollout = to_float64(random_rollout(np.random.default_rng(seed), ROWS, COLUMNS))
    loss, _ = literal_loss(agent, rollout)
    torch.testing.assert_close(
        loss_gradients(agent, rollout), compute_gradient(loss, agent.policy), rtol=1e-8, atol=1e-10
    )


@pytest.mark.parametrize("estimator", ["retrace", "tree_backup", "q_lambda"])
def test_estimators_that_need_action_values_reject_a_critic_of_state_values(estimator):
    with pytest.raises(
        ValueError, match=f"{estimator} needs action values; with critic state_value use one of vtrace, n_step"
    ):
        make_acer(estimator=estimator, critic="state_value")


def test_rho_clip_of_vtrace_must_not_be_below_trace_clip():
    with pytest.raises(ValueError, match="rho_clip 0.5 must not be below trace_clip 1.0"):
        make_acer(estimator="vtrace", rho_clip=0.5)
    make_acer(rho_clip=0.5)  # another estimator does not read it


def test_columns_have_their_weight():
    agent = make_exact_acer(body=Mlp(16), gamma=GAMMA)
    rollout = to_float64(random_rollout(np.random.default_rng(0), ROWS, COLUMNS))
    rollout.weight = torch.tensor([0.5, 1, 0, 0.25]).double()
    expected = compute_gradient(literal_loss(agent, rollout)[0], agent.policy)
    torch.testing.assert_close(loss_gradients(agent, rollout), expected, rtol=1e-8, atol=1e-10)


def test_metrics_are_means_over_rows_without_weights():
    agent = make_exact_acer(body=Mlp(16))
    rollout = to_float64(random_rollout(np.random.default_rng(0), ROWS, COLUMNS))
    metrics = agent.loss(rollout)[1].compute_metrics()
    rollout.weight = torch.tensor([0.5, 1, 0, 0.25]).double()
    assert agent.loss(rollout)[1].compute_metrics() == metrics


def test_td_errors_of_a_column_are_from_its_valid_rows():
    agent = make_exact_acer(body=Mlp(16), gamma=GAMMA)
    rollout = to_float64(random_rollout(np.random.default_rng(0), ROWS, COLUMNS))
    rollout.first[1:, 0], rollout.alive[:, 0] = True, True  # a column without valid rows
    rollout.first[2, 1], rollout.alive[1, 1] = True, True
    logits, q = forward(agent.policy, rollout.obs["obs"])
    pi, action = logits.softmax(-1), rollout.raw_action.long()
    taken, v = q[:-1].gather(-1, action).squeeze(-1), (pi * q).sum(-1)
    rho = (pi[:-1] / rollout.behavior.softmax(-1)).gather(-1, action).squeeze(-1)
    numbers = (x.detach().numpy() for x in (taken, v, rho, rho))
    error = abs(literal_row_targets(agent.settings, rollout, *numbers)[1] - taken.detach().numpy())
    largest, mean = agent.loss(rollout)[1].compute_td_errors()
    assert (largest[0], mean[0]) == (0, 0) and np.isnan(error[1, 1])
    np.testing.assert_allclose(largest[1:], np.nanmax(error[:, 1:], 0), rtol=1e-10)
    np.testing.assert_allclose(mean[1:], np.nanmean(error[:, 1:], 0), rtol=1e-10)


def test_only_logits_and_taken_values_carry_gradient():
    agent = make_exact_acer(body=Mlp(16), entropy_coef=0.1)
    rollout = to_float64(random_rollout(np.random.default_rng(0), ROWS, COLUMNS))
    inputs = [value.requires_grad_() for value in (rollout.reward, rollout.behavior)]
    losses, report = agent.loss(rollout)
    assert torch.autograd.grad(losses["acer"], inputs, allow_unused=True) == (None, None)
    assert not report.compute_td_errors().requires_grad and not any(
        value.requires_grad for value in report.compute_metrics().values()
    )


def test_the_loss_of_the_policy_has_no_gradient_in_the_critic():
    agent = make_exact_acer(body=Mlp(16), value_coef=0.0)
    rollout = to_float64(random_rollout(np.random.default_rng(0), ROWS, COLUMNS))
    agent.loss(rollout)[0]["acer"].backward()
    policy, critic = agent.policy.heads.linear.weight.grad.split(3)
    assert critic.eq(0).all() and policy.ne(0).any()


@pytest.mark.parametrize("region", [OFF, LOGITS, PROBS], ids=["off", "logits", "probs"])
def test_actions_with_behavior_probability_0_give_finite_gradients(region):
    agent = make_exact_acer(body=Mlp(16), gamma=GAMMA, **region)
    rollout = to_float64(random_rollout(np.random.default_rng(0), ROWS, COLUMNS))
    rollout.behavior.scatter_(-1, (rollout.raw_action.long() + 1) % 3, -1e9)
    expected = compute_gradient(literal_loss(agent, rollout)[0], agent.policy)
    torch.testing.assert_close(loss_gradients(agent, rollout), expected, rtol=1e-8, atol=1e-10)
    assert expected.isfinite().all()


@pytest.mark.parametrize("logit", [-200.0, -1e9])
def test_a_taken_action_with_a_tiny_probability_gives_finite_gradients(logit):
    agent = make_exact_acer(body=Mlp(16))
    rollout = to_float64(random_rollout(np.random.default_rng(0), ROWS, COLUMNS))
    rollout.behavior.scatter_(-1, rollout.raw_action.long(), logit)
    assert loss_gradients(agent, rollout).isfinite().all()


def learner(**changes):
    role = make_role(COLUMNS)
    return Learner(make_acer(role, **changes), role, {}, max_step=None)


def test_the_average_network_is_updated_by_its_decay():
    student = learner(average_policy_decay=0.9, learning_rate=0.05)
    parameters, rollout = student.parameters, random_rollout(np.random.default_rng(0), ROWS, COLUMNS)
    assert parameters.target_vector.equal(parameters.vector)
    for _ in range(3):
        before = parameters.target_vector.double().clone()
        update(student, rollout)
        moved = parameters.target_vector.double() - before
        expected = 0.1 * (parameters.vector.double() - before)
        torch.testing.assert_close(moved, expected, rtol=0, atol=1e-7)
        assert moved.abs().max() > 1e-4
    average = torch.cat([p.flatten() for p in student.agent.average_policy.network.parameters()])
    assert average.equal(parameters.target_vector)


def test_gradients_of_two_equal_batches_do_not_accumulate():
    student = learner(learning_rate=1e-12)
    rollout = random_rollout(np.random.default_rng(0), ROWS, COLUMNS)
    update(student, rollout)
    first = student.parameters.gradient.clone()
    update(student, rollout)
    assert first.norm() > 1e-3
    torch.testing.assert_close(student.parameters.gradient, first, rtol=1e-5, atol=1e-7)


def test_replayed_batches_are_poisson_distributed_around_the_ratio():
    schedule = replace(make_acer(replay_ratio=4.0).schedule, sequence_length=2, batch_size=1, learning_starts=0)
    rng = np.random.default_rng(0)
    feed = ReplayScheduler(Replay(capacity=64, lanes=COLUMNS, chunk=ROWS, length=2, rng=rng), schedule, rng)
    rollout, n = random_rollout(rng, ROWS, COLUMNS), 3000
    feed(rollout)
    counts = np.array([sum(1 for _ in feed(rollout)) - 1 for _ in range(n)])  # the collected rollout is the first batch
    assert abs(counts.mean() - 4) <= 3 * 2 / np.sqrt(n)
    none = np.exp(-4)
    assert abs((counts == 0).mean() - none) <= 3 * np.sqrt(none * (1 - none) / n)
    # The variance of the sample variance of n Poisson numbers is (4 + 2 * 4^2) / n.
    assert abs(counts.var() - 4) <= 3 * np.sqrt(36 / n)


def test_learning_does_not_change_the_collected_rollout():
    student = learner(reward_clip=0.5, reward_scale=0.1)
    rollout = random_rollout(np.random.default_rng(0), ROWS, COLUMNS)
    reward, behavior = rollout.reward.copy(), rollout.behavior.copy()
    for _ in range(3):
        update(student, rollout)
    np.testing.assert_array_equal(rollout.reward, reward)
    np.testing.assert_array_equal(rollout.behavior, behavior)
