"""ACER with a stochastic dueling critic: targets, and the gradient of the paper's equations by autograd and
torch.distributions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from algorithm.agents.acer.critics import ActionAdvantages, ActionValues, StateValues, StochasticDueling
from algorithm.distributions import ClippedGaussianFamily, FixedStdGaussian, Gaussian, make_family
from algorithm.networks import Mlp
from algorithm.returns import ESTIMATORS, EstimatorInputs, Targets, TraceClipping
from algorithm.specs import ACTION_MASK, ActionSpec, ObsSpec, Role
from tests.builders import PAIRS, compute_gradient, make_exact_acer, random_rollout, to_float64
from tests.oracles import retrace_by_definition, vtrace_by_definition

GAMMA, ROWS, COLUMNS, SAMPLES = 0.875, 6, 4, 3
SPECS = {
    "box": ActionSpec(continuous=2),
    "branches": ActionSpec(branches=(3, 2)),
    "hybrid": ActionSpec(continuous=1, branches=(3,)),
}
# Two dimensions, means 0 -> (0.3, -0.15), std 0.3.
MEANS, STD = torch.tensor([0.3, -0.15]), 0.3
ACTIONS = torch.tensor([[0.1, 0.2], [0.4, -0.3], [-0.2, 0.1]])


def make_agent(spec, masked=False, **changes):
    obs_specs = {"obs": ObsSpec((3,)), **({ACTION_MASK: ObsSpec((sum(spec.branches),), "uint8")} if masked else {})}
    return make_exact_acer(
        Role(COLUMNS, obs_specs, spec), body=Mlp(16), gamma=GAMMA, sdn_samples=SAMPLES, trace_lambda=0.75, **changes
    )


def make_rollout(agent, spec, seed=0, masked=False):
    """Return random rows of samples of the agent's family, with random statistics."""
    rng = np.random.default_rng(seed)
    rollout = to_float64(random_rollout(rng, ROWS, COLUMNS))
    sample = [rng.normal(size=(ROWS, COLUMNS, spec.continuous))]
    sample += [rng.integers(branch, size=(ROWS, COLUMNS, 1)) for branch in spec.branches]
    rollout.raw_action = torch.from_numpy(np.concatenate(sample, -1)).double()
    rollout.behavior = torch.from_numpy(rng.normal(0, 0.3, size=(ROWS, COLUMNS, agent.family.statistics_size)))
    if masked:
        allowed = torch.from_numpy(rng.integers(2, size=(ROWS + 1, COLUMNS, sum(spec.branches))))
        offset = 0
        for place, branch in enumerate(spec.branches):  # the taken action is allowed
            taken = rollout.raw_action[..., spec.continuous + place].long() + offset
            allowed[:-1].scatter_(-1, taken.unsqueeze(-1), 1)
            allowed[-1, :, offset] = 1
            offset += branch
        rollout.obs = {**rollout.obs, ACTION_MASK: allowed.to(torch.uint8)}
        logits = rollout.behavior[..., -allowed.shape[-1] :]
        logits[allowed[:-1] == 0] = -1e9
    return rollout


def independent(spec, statistics):
    """Return the parts of a policy in torch.distributions, with the columns of their samples."""
    d = spec.continuous
    parts = [(Independent(Normal(statistics[..., :d], statistics[..., d : 2 * d].exp()), 1), slice(0, d))] if d else []
    logits = statistics[..., 2 * d :].split(list(spec.branches), -1)
    return parts + [(Categorical(logits=part), d + place) for place, part in enumerate(logits)]


def log_prob(spec, statistics, sample):
    return sum(part.log_prob(sample[..., where]) for part, where in independent(spec, statistics))


def kl(spec, average, statistics):
    pairs = zip(independent(spec, average), independent(spec, statistics), strict=True)
    return sum(kl_divergence(one, other) for (one, _), (other, _) in pairs)


def literal_targets(s, episodes, taken, v, rho, root, prob):
    """Return the targets of Q, of Q for the policy, and of V; [T, B] each, NaN for invalid rows."""
    ones = np.ones_like(rho)
    if s.estimator in ("vtrace", "n_step"):
        clips = (s.rho_clip, s.trace_clip)
        ratios = [np.minimum(clip, rho) for clip in clips] if s.estimator == "vtrace" else [ones] * 2
        of_state, of_action = vtrace_by_definition(*episodes, v, *ratios, s.trace_lambda)
        return of_action, of_action, of_state
    trace = {"retrace": np.minimum(s.trace_clip, root), "tree_backup": prob, "q_lambda": ones}[s.estimator]
    ret = retrace_by_definition(*episodes, taken, v, s.trace_lambda * trace)
    opc = retrace_by_definition(*episodes, taken, v, s.trace_lambda * ones) if s.estimator == "retrace" else ret
    return ret, opc, np.minimum(1, rho) * (ret - taken) + v[:-1]  # Eq. 14


def literal_loss(agent, spec, rollout):
    """Return the loss of Wang et al. 2017, Eq. 10-16, row by row, and the share of rows with an active constraint."""
    s, S = agent.settings, agent.family.statistics_size
    features = agent.policy.torso.unroll(rollout.obs, rollout.first, rollout.memory)
    outputs = agent.policy.compute_outputs(features)
    statistics, v = agent.policy.mask_logits(outputs[..., :S], rollout.obs), outputs[..., S]
    lagged = agent.average_policy.network
    lagged_outputs = lagged.compute_outputs(lagged.torso.unroll(rollout.obs, rollout.first, rollout.memory))
    average = lagged.mask_logits(lagged_outputs[..., :S], rollout.obs).detach()

    samples, q = rollout.raw_action.unsqueeze(0), v[:-1].unsqueeze(0)
    if s.critic == "action_value":
        samples = torch.cat((samples, agent.family(statistics[:-1].detach()).draw_samples(1 + SAMPLES)))
        advantage = agent.policy.advantage_head(features[:-1], agent.family.encode(samples))
        q = v[:-1] + advantage - advantage[2:].mean(0)  # Eq. 13: of the taken action, of a', of the u_i
    logs = [log_prob(spec, statistics[:-1], x).detach() for x in samples[:2]]
    log_rho = [log_pi - log_prob(spec, rollout.behavior, x) for log_pi, x in zip(logs, samples, strict=False)]
    ratio = [log.clamp(-20, 20).exp() for log in log_rho]
    root = (log_rho[0] / (spec.continuous + len(spec.branches))).clamp(-20, 20).exp().numpy()
    numbers = (rollout.reward, rollout.alive, rollout.first)
    episodes = (*(x.numpy() for x in numbers), s.gamma)
    rho = ratio[0].numpy()
    of_rows = (q[0].detach().numpy(), v.detach().numpy(), rho, root, logs[0].exp().numpy())
    ret, compared, v_target = literal_targets(s, episodes, *of_rows)
    loss, learned, bound = 0.0, 0, 0
    for t, b in np.argwhere(~np.isnan(ret)):
        phi = statistics[t, b].detach().requires_grad_()
        c, v_here = s.importance_clip, v[t, b].detach()
        weight = ratio[0][t, b].clamp(max=c) * (compared[t, b] - v_here)
        objective = weight * log_prob(spec, phi, rollout.raw_action[t, b])
        if s.critic == "action_value":  # a critic of state values has no correction
            above = (q[1, t, b] - v[t, b]).detach()
            correction = (1 - c / ratio[1][t, b]).clamp(min=0) * above
            objective = objective + correction * log_prob(spec, phi, samples[1, t, b])
        (g,) = torch.autograd.grad(objective, phi)
        (k,) = torch.autograd.grad(kl(spec, average[t, b], phi), phi)
        if s.std == "fixed":
            deviations = slice(spec.continuous, 2 * spec.continuous)
            g[deviations], k[deviations] = 0, 0
        excess = k @ g - s.trust_region_delta
        if s.trust_region == "efficient" and excess > 0:
            g, bound = g - excess / (k @ k) * k, bound + 1
        entropy = sum(part.entropy() for part, _ in independent(spec, statistics[t, b]))
        error = (v_target[t, b] - v[t, b]) ** 2
        error = error + (ret[t, b] - q[0, t, b]) ** 2 if s.critic == "action_value" else error
        row = -g @ statistics[t, b] - s.entropy_coef * entropy + s.value_coef * error / 2
        loss, learned = loss + rollout.weight[b] * row, learned + 1
    return loss / learned, bound / learned


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("std", ["fixed", "learned", "state_dependent"])
@pytest.mark.parametrize("space", SPECS)
def test_the_gradient_equals_the_papers_equations(space, std, seed):
    spec = SPECS[space]
    agent = make_agent(
        spec, seed=seed, std=std, importance_clip=1.5, entropy_coef=0.1, value_coef=0.7, trust_region_delta=0.02
    )
    rollout = make_rollout(agent, spec, seed)
    torch.manual_seed(seed)
    losses, report = agent.loss(rollout)
    torch.manual_seed(seed)
    loss, bound = literal_loss(agent, spec, rollout)
    expected = compute_gradient(loss, agent.policy)
    torch.testing.assert_close(compute_gradient(losses["acer"], agent.policy), expected, rtol=1e-7, atol=1e-9)
    assert report.compute_metrics()["train/trust_region_fraction"].item() == pytest.approx(bound)
    assert 0 < bound < 1


@pytest.mark.parametrize("space", ["branches", "hybrid"])
def test_forbidden_actions_have_no_gradient(space):
    spec = SPECS[space]
    agent = make_agent(spec, masked=True, importance_clip=1.5, trust_region_delta=0.02)
    rollout = make_rollout(agent, spec, masked=True)
    torch.manual_seed(0)
    losses, _ = agent.loss(rollout)
    torch.manual_seed(0)
    loss, _ = literal_loss(agent, spec, rollout)
    expected = compute_gradient(loss, agent.policy)
    assert expected.isfinite().all()
    torch.testing.assert_close(compute_gradient(losses["acer"], agent.policy), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("spec", [ActionSpec(branches=(3,)), SPECS["branches"], SPECS["hybrid"]], ids=str)
def test_masks_of_burn_in_rows_are_dropped_with_the_rows(spec):
    agent = make_agent(spec, masked=True, importance_clip=1.5, trust_region_delta=0.02)
    rollout = make_rollout(agent, spec, masked=True)
    rest = replace(
        rollout,
        obs={name: value[2:] for name, value in rollout.obs.items()},
        **{name: getattr(rollout, name)[2:] for name in ("first", "raw_action", "reward", "alive", "behavior")},
    )
    found = []
    for batch in (replace(rollout, burn_in=2), rest):
        torch.manual_seed(0)
        found.append(compute_gradient(agent.loss(batch)[0]["acer"], agent.policy))
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


def test_known_ratios_and_targets():
    """Two dimensions, std 0.3, the means change from 0 to (0.3, -0.15)."""
    family = make_family(2, (), ClippedGaussianFamily, FixedStdGaussian)
    log_std = torch.full((3, 2), STD).log()
    policy, behavior = (
        family(torch.cat((MEANS.expand(3, 2), log_std), -1)),
        family(torch.cat((0 * log_std, log_std), -1)),
    )
    log_rho = policy.log_prob(ACTIONS) - behavior.log_prob(ACTIONS)
    rho, root = log_rho.exp(), (log_rho / family.dimensions).exp()
    torch.testing.assert_close(rho, torch.tensor([0.535261, 3.347900, 0.232624]), rtol=1e-5, atol=0)
    torch.testing.assert_close(root.clamp(max=1), torch.tensor([0.731616, 1, 0.482311]), rtol=1e-5, atol=0)
    column = {
        "reward": torch.tensor([1.0, 0, 2]),
        "discount": torch.full((3,), 0.9),
        "valid": torch.ones(3, dtype=torch.bool),
        "v": torch.tensor([0.4, 1, 0.8, 3]),
        "q_taken": torch.tensor([0.5, 1.5, 1]),
        "rho": rho,
        "rho_per_dimension": root,
    }
    rows = EstimatorInputs(**{name: value.unsqueeze(-1) for name, value in column.items()}, prob_taken=lambda: rho)
    targets = ESTIMATORS["retrace"].estimate(rows, TraceClipping(trace_clip=1.0, rho_clip=1.0, trace_lambda=1.0))
    opc = ESTIMATORS["q_lambda"].estimate(rows, TraceClipping(trace_clip=1.0, rho_clip=1.0, trace_lambda=1.0))
    expected = [(2.643485, 2.326095, 4.7), (4.195, 4.05, 4.7), (1.547325, 1.826095, 1.660707)]
    for actual, numbers in zip((targets.q_target, opc.q_target, targets.value_target()), expected, strict=True):
        torch.testing.assert_close(actual.squeeze(-1), torch.tensor(numbers), rtol=1e-5, atol=1e-6)


def evaluate(advantages, policy, values, sample=None):
    family = make_family(1, (), ClippedGaussianFamily, Gaussian)
    action_advantages = ActionAdvantages(advantages, torch.zeros(1, 1, 1))
    sample = torch.zeros(1, 1, 1) if sample is None else sample
    return StochasticDueling(values, family(policy), sample, action_advantages)


def test_known_dueling_value_and_gradient_of_its_error():
    """V = 1, A(a) = 0.6, A(u) = (0.2, 0.4, -0.1, 0.5, 0) gives Q = 1.4."""
    advantages = torch.tensor([0.6, 9.0, 0.2, 0.4, -0.1, 0.5, 0.0]).view(-1, 1, 1)
    output = evaluate(advantages, torch.zeros(2, 1, 2), torch.ones(2, 1, 1))
    assert output.q_taken.item() == pytest.approx(1.4)
    target = Targets(output.q_taken + 2, lambda: output.v[:-1] + 0.5)
    of_values, of_advantages = output.value_gradient(output.select_target(target) - output.q_taken, target)
    assert of_values.item() == pytest.approx(2.5)
    # The error for the taken action, 0 for a', minus a fifth of it for each u_i.
    np.testing.assert_allclose(of_advantages.flatten(), [2, 0, *[-0.4] * 5], rtol=1e-6)


@pytest.mark.parametrize("space", SPECS)
def test_the_mean_of_q_over_the_policy_is_v(space):
    agent = make_agent(SPECS[space])
    torch.manual_seed(0)
    features = torch.randn(1, 16).double().expand(2, 40_000, 16)
    with torch.no_grad():
        statistics, values = agent.policy.compute_outputs(features).split([agent.family.statistics_size, 1], -1)
        policy = agent.family(statistics)
        sample = policy.select_rows(slice(-1)).draw_samples(1)[0]
        advantages = agent.critic.evaluate_actions(agent.policy, features, policy, sample)
        q, v = agent.critic.evaluate(values, policy, sample, advantages).q_taken[0], values[0, 0]
    assert abs(q.mean() - v).item() < 4 * q.std().item() / len(q) ** 0.5


def test_the_policy_has_no_gradient_through_the_samples():
    agent = make_agent(SPECS["box"], importance_clip=1e9)
    rollout = make_rollout(agent, SPECS["box"])
    features = agent.features(rollout)
    statistics = torch.randn(ROWS + 1, COLUMNS, 4).double().requires_grad_()
    action_advantages = agent.critic.evaluate_actions(
        agent.policy, features, agent.family(statistics.detach()), rollout.raw_action
    )
    assert action_advantages.advantages.requires_grad and not action_advantages.policy_sample.requires_grad
    assert torch.autograd.grad(action_advantages.advantages.sum(), statistics, allow_unused=True) == (None,)


def test_on_policy_there_is_no_correction_and_without_truncation_only_the_correction():
    """First mu = pi and c >= 1, then c = 0."""
    family = make_family(2, (), ClippedGaussianFamily, Gaussian)
    torch.manual_seed(0)
    statistics = torch.randn(2, 1, 4).double()
    advantages, weight = torch.randn(7, 1, 1).double(), torch.ones(1, 1).double()
    sample = torch.randn(1, 1, 2).double()
    action_advantages = ActionAdvantages(advantages, torch.randn(1, 1, 2).double())
    output = StochasticDueling(torch.zeros(2, 1, 1).double(), family(statistics), sample, action_advantages)
    policy = output.policy
    torch.testing.assert_close(
        output.policy_gradient(weight, policy, 1.0), policy.score(sample, weight), rtol=0, atol=1e-12
    )
    above = (advantages[1] - advantages[2:].mean(0)).view(1, 1)
    expected = policy.score(action_advantages.policy_sample, above)
    torch.testing.assert_close(output.policy_gradient(0 * weight, policy, 0.0), expected, rtol=0, atol=1e-12)


def test_the_policy_objective_of_action_values_has_the_weights_of_the_paper():
    torch.manual_seed(0)
    family, taken, clip = make_family(0, (3,), ClippedGaussianFamily, Gaussian), torch.tensor([[2.0], [0.0]]), 0.7
    statistics, mu, q, weight = (torch.randn(*shape).double() for shape in ((3, 1, 3), (2, 1, 3), (3, 1, 3), (2, 1)))
    behavior, action = family(mu), taken.unsqueeze(-1).double()
    pi, log_pi = statistics[:-1].softmax(-1), statistics[:-1].log_softmax(-1)
    v = (statistics.softmax(-1) * q).sum(-1)[:-1]
    correction = (pi - clip * mu.softmax(-1)).clamp(min=0) * (q[:-1] - v.unsqueeze(-1))
    of_taken = weight * log_pi.gather(-1, action.long()).squeeze(-1)
    assert (correction != 0).any()
    output = ActionValues(q, family(statistics), action, None)
    expected = of_taken + (correction * log_pi).sum(-1)
    torch.testing.assert_close(output.policy_objective(weight, behavior, clip), expected)
    output = StateValues(q[..., :1], family(statistics), action, None)
    torch.testing.assert_close(output.policy_objective(weight, behavior, clip), of_taken)


def test_the_policy_objective_of_a_stochastic_dueling_critic_corrects_a_sample():
    torch.manual_seed(0)
    family, clip = make_family(2, (), ClippedGaussianFamily, Gaussian), 0.7
    statistics, mu, weight = (torch.randn(*shape).double() for shape in ((3, 1, 4), (2, 1, 4), (2, 1)))
    advantages, action, sample = (torch.randn(*shape).double() for shape in ((7, 2, 1), (2, 1, 2), (2, 1, 2)))
    values = torch.zeros(3, 1, 1).double()
    output = StochasticDueling(values, family(statistics), action, ActionAdvantages(advantages, sample))
    policy, behavior = (Independent(Normal(each[..., :2], each[..., 2:].exp()), 1) for each in (statistics[:-1], mu))
    rho = (policy.log_prob(sample) - behavior.log_prob(sample)).exp()
    correction = (1 - clip / rho).clamp(min=0) * (advantages[1] - advantages[2:].mean(0))
    assert (correction != 0).any()
    expected = weight * policy.log_prob(action) + correction * policy.log_prob(sample)
    torch.testing.assert_close(output.policy_objective(weight, family(mu), clip), expected)


def test_the_ratio_per_dimension_of_21_dimensions_is_finite():
    """The ratios are far above 1e3, and their logarithms have both signs."""
    spec = ActionSpec(continuous=21)
    agent = make_agent(spec)
    for shift in (50, -50):
        rollout = make_rollout(agent, spec)
        rollout.behavior[..., :10] += shift
        torch.manual_seed(0)
        losses, _ = agent.loss(rollout)
        torch.manual_seed(0)
        expected = compute_gradient(literal_loss(agent, spec, rollout)[0], agent.policy)
        assert expected.isfinite().all()
        torch.testing.assert_close(compute_gradient(losses["acer"], agent.policy), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("space", SPECS)
@pytest.mark.parametrize(("estimator", "critic"), PAIRS)
def test_the_gradient_of_every_estimator_and_critic_equals_its_definition(space, estimator, critic):
    spec = SPECS[space]
    if estimator == "tree_backup" and spec.continuous:
        with pytest.raises(ValueError, match="tree_backup needs probabilities"):
            make_agent(spec, estimator=estimator)
        return
    clips = {"trace_clip": 0.8, "rho_clip": 1.5, "importance_clip": 1.5}
    agent = make_agent(spec, estimator=estimator, critic=critic, value_coef=0.7, trust_region_delta=0.02, **clips)
    rollout = make_rollout(agent, spec)
    rollout.weight = torch.tensor([0.5, 1, 2, 0.25]).double()
    torch.manual_seed(0)
    losses, report = agent.loss(rollout)
    torch.manual_seed(0)
    expected = compute_gradient(literal_loss(agent, spec, rollout)[0], agent.policy)
    torch.testing.assert_close(compute_gradient(losses["acer"], agent.policy), expected, rtol=1e-7, atol=1e-9)
    assert all(value.isfinite() for value in report.compute_metrics().values())
    assert agent.critic.evaluate is (StateValues if critic == "state_value" else StochasticDueling)


def test_trust_region_space_probs_needs_a_single_branch():
    for spec in SPECS.values():
        with pytest.raises(ValueError, match="trust_region_space probs needs a single discrete branch"):
            make_agent(spec, trust_region_space="probs")
