"""SAC's gradients equal autograd's gradients of the papers' losses, which are computed row by row."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from algorithm.agents.sac.agent import Sac
from algorithm.agents.sac.policy_learners import PolicyOutput
from algorithm.networks import Blueprint, FrameStack, Gru, Mlp, Vector
from algorithm.networks.passes import AutogradPass
from algorithm.returns import rescale, unscale
from algorithm.rollout import Rollout
from algorithm.specs import ACTION_MASK, ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner
from tests.builders import PassThrough, compute_gradient, make_sac, make_step, random_boundaries, to_float64, update
from tests.oracles import explain_variance, retrace_by_definition, soft_vtrace_by_definition

SPECS = {
    "continuous": ActionSpec(2),
    "discrete": ActionSpec(0, (3,)),
    "multi-discrete": ActionSpec(0, (2, 3)),
    "hybrid": ActionSpec(1, (3,)),
    "hybrid of two branches": ActionSpec(2, (2, 2)),
}
COLUMNS, GAMMA = 4, 0.875


def sac_of(spec: ActionSpec, blueprint: Blueprint | None = None, mask: bool = False, seed: int = 0, **changes) -> Sac:
    obs = {"obs": ObsSpec((3,))} | ({ACTION_MASK: ObsSpec((sum(spec.branches),), "uint8")} if mask else {})
    blueprint = blueprint or Blueprint(policy=Mlp(16), critic=Mlp(16))
    return make_sac(Role(COLUMNS, obs, spec), blueprint, seed, **{"gamma": GAMMA, **changes})


def make_exact_sac(spec: ActionSpec, seed: int = 0, **changes) -> Sac:
    """Return an agent in float64 whose networks differ from their initial values and from each other."""
    blueprint = Blueprint(encoders={"*": PassThrough()}, policy=Mlp(8), critic=Mlp(8))
    agent = sac_of(spec, blueprint, seed=seed, **changes)
    for network in (agent.policy, agent.critics, agent.target.network, agent.policy_learner.temperature):
        network.double()
        for parameter in network.parameters():
            nn.init.normal_(parameter, std=0.4)
    return agent


def random_sequence(spec: ActionSpec, agent: Sac, seed: int, rows: int) -> Rollout:
    rng = np.random.default_rng(seed)
    first, alive, final = random_boundaries(rng, rows, COLUMNS)
    sample = [rng.normal(size=(rows, COLUMNS, spec.continuous))]
    sample += [rng.integers(actions, size=(rows, COLUMNS, 1)) for actions in spec.branches]
    return Rollout(
        obs={"obs": rng.normal(size=(rows + 1, COLUMNS, 3)).astype(np.float32)},
        first=first,
        raw_action=np.concatenate(sample, -1).astype(np.float32),
        reward=np.where(final, 0, rng.normal(size=(rows, COLUMNS))).astype(np.float32),
        alive=alive,
        behavior=rng.normal(size=(rows, COLUMNS, agent.family.statistics_size)).astype(np.float32) * 0.5,
        memory=np.zeros((COLUMNS, 0), np.float32),
        lane=np.arange(COLUMNS),
        continues_previous=np.ones(COLUMNS, bool),
        weight=rng.uniform(0.5, 1.5, COLUMNS).astype(np.float32),
        index=np.arange(COLUMNS),
        version=np.zeros(COLUMNS, np.int64),
    )


class Literal:
    """The losses of the papers, in loops over rows."""

    def __init__(self, agent: Sac, spec: ActionSpec, rollout: Rollout, seed: int):
        self.agent, self.spec, self.rollout = agent, spec, rollout
        self.combinations = list(product(*map(range, spec.branches)))
        alphas = agent.policy_learner.temperature.log_alpha.detach().exp().tolist()
        kinds = ["d"] * bool(spec.branches) + ["c"] * bool(spec.continuous)
        self.alpha = {"d": 0.0, "c": 0.0} | dict(zip(kinds, alphas, strict=True))
        obs = rollout.obs["obs"]
        torch.manual_seed(seed)  # for the same samples
        critics, some = agent.settings.ensemble_q_num, agent.settings.ensemble_q_sample
        self.critics = torch.randperm(critics)[:some].tolist() if some < critics else slice(None)
        shape = (COLUMNS, len(self.combinations), spec.continuous)
        self.noise = torch.empty(len(obs), *shape).double().normal_()
        self.statistics = agent.policy.compute_outputs(obs)
        self.policy_output = {
            (t, b): self.choice(self.statistics[t, b], self.noise[t, b])
            for t in range(len(obs))
            for b in range(COLUMNS)
        }

    def choice(self, statistics, noise):
        """Return log pi(d), log pi(c|d) and c of every combination."""
        numbers, count = self.spec.continuous, len(self.combinations)
        mean, log_std, *logits = statistics.split([count * numbers, count * numbers, *self.spec.branches])
        found = []
        for k, indices in enumerate(self.combinations):
            log_d = sum((branch.log_softmax(-1)[i] for branch, i in zip(logits, indices, strict=True)), torch.zeros(()))
            normal = torch.distributions.Normal(
                *(part[k * numbers : (k + 1) * numbers] for part in (mean, log_std.exp()))
            )
            draw = normal.mean + normal.stddev * noise[k]
            log_c = (normal.log_prob(draw) - (1 - draw.tanh() ** 2).log()).sum()
            found.append((log_d, log_c, draw.tanh()))
        return found

    def q(self, critics, t, b, k, numbers):
        """Return Q [N] of every critic for combination `k` with the continuous dimensions `numbers`."""
        x = self.rollout.obs["obs"][t, b]
        if not self.spec.continuous:
            return torch.stack([member(x)[k] for member in critics.critics])
        codes = [
            nn.functional.one_hot(torch.tensor(i), n)
            for i, n in zip(self.combinations[k], self.spec.branches, strict=True)
        ]
        x = torch.cat([x, numbers, *codes])
        return torch.stack([member(x)[0] for member in critics.critics])

    def reduced(self, q):
        """Return one value of the critics of this update."""
        q = unscale(q[self.critics]) if self.agent.settings.rescale_values else q[self.critics]
        return q.min() if self.spec.continuous else q.mean()

    def cost(self, log_d, log_c):
        return self.alpha["d"] * log_d + self.alpha["c"] * log_c

    def soft_v(self, t, b):
        scale = self.agent.settings.alpha_critic_scale
        return sum(
            log_d.exp()
            * (self.reduced(self.q(self.agent.target.network, t, b, k, c)) - scale * self.cost(log_d, log_c))
            for k, (log_d, log_c, c) in enumerate(self.policy_output[t, b])
        ).item()

    def taken(self, critics, t, b):
        sample = self.rollout.raw_action[t, b]
        indices = tuple(sample[self.spec.continuous :].long().tolist())
        return self.q(critics, t, b, self.combinations.index(indices), sample[: self.spec.continuous].tanh())

    def log_probs(self, of, t, b):
        """Return log p(d), log p(u|d) of the taken action under the statistics `of`."""
        sample, numbers = self.rollout.raw_action[t, b], self.spec.continuous
        k = self.combinations.index(tuple(sample[numbers:].long().tolist()))
        count = len(self.combinations) * numbers
        mean, log_std, *logits = of[t, b].split([count, count, *self.spec.branches])
        own = slice(k * numbers, (k + 1) * numbers)
        log_u = torch.distributions.Normal(mean[own], log_std[own].exp()).log_prob(sample[:numbers]).sum()
        chosen = zip(logits, self.combinations[k], strict=True)
        return sum((branch.log_softmax(-1)[i] for branch, i in chosen), torch.zeros(())), log_u

    def log_rho(self, t, b):
        return (sum(self.log_probs(self.statistics, t, b)) - sum(self.log_probs(self.rollout.behavior, t, b))).item()

    def taken_cost(self, t, b):
        """Return w alpha log pi of the taken action with c = tanh(u)."""
        log_d, log_u = self.log_probs(self.statistics, t, b)
        c = self.rollout.raw_action[t, b, : self.spec.continuous].tanh()
        return (self.agent.settings.alpha_critic_scale * self.cost(log_d, log_u - (1 - c**2).log().sum())).item()

    def targets(self):
        """Return targets [T, B], NaN for invalid rows."""
        s, rollout = self.agent.settings, self.rollout
        rows = range(len(rollout))
        v = np.array([[self.soft_v(t, b) for b in range(COLUMNS)] for t in range(len(rollout) + 1)])
        rho = np.array([[math.exp(self.log_rho(t, b)) for b in range(COLUMNS)] for t in rows])
        if not s.use_n_step_is:
            rho = np.ones_like(rho)
        trace = np.minimum(s.v_c, rho)
        episodes = (rollout.reward.numpy(), rollout.alive.numpy(), rollout.first.numpy(), s.gamma)
        if s.estimator == "retrace" and s.use_n_step_is:
            taken = [
                [self.reduced(self.taken(self.agent.target.network, t, b)).item() for b in range(COLUMNS)] for t in rows
            ]
            target = retrace_by_definition(*episodes, np.array(taken), v, s.v_lambda * trace, s.n_step)
        else:
            cost = np.array([[self.taken_cost(t, b) for b in range(COLUMNS)] for t in rows])
            rho = np.minimum(s.v_rho, rho)
            target = soft_vtrace_by_definition(*episodes, v, rho, trace, cost, s.v_lambda, s.n_step)
        return rescale(torch.from_numpy(target)).numpy() if s.rescale_values else target

    def errors(self):
        """Return the largest and the mean |target - mean of all critics| of each column [2, B]."""
        target = self.targets()
        rows = [
            [target[t, b] - self.taken(self.agent.critics, t, b).mean().item() for b in range(COLUMNS)]
            for t in range(len(target))
        ]
        size = np.ma.masked_invalid(np.abs(rows))
        return np.stack((size.max(0).filled(0), size.mean(0).filled(0)))

    def losses(self):
        agent, spec, target = self.agent, self.spec, self.targets()
        shares = {"d": agent.settings.target_d_alpha, "c": agent.settings.target_c_alpha}
        wanted = {"d": shares["d"] * math.log(len(self.combinations)), "c": -shares["c"] * spec.continuous}
        learned = np.argwhere(~np.isnan(target))
        critic = policy = alpha = 0.0
        for t, b in learned:
            weight = self.rollout.weight[b] / len(learned)
            q, clip = self.taken(agent.critics, t, b), agent.settings.clip_epsilon
            squares = (target[t, b] - q).square()
            if clip is not None:
                lagging = self.taken(agent.target.network, t, b)
                near = lagging + (q - lagging).clamp(-clip, clip)
                squares = torch.maximum(squares, (target[t, b] - near).square())
            critic = critic + weight * 0.5 * squares.sum()
            entropies = {"d": 0.0, "c": 0.0}
            for k, (log_d, log_c, c) in enumerate(self.policy_output[t, b]):
                q = self.reduced(self.q(agent.critics, t, b, k, c))
                policy = policy + weight * log_d.exp() * (self.cost(log_d, log_c) - q)
                entropies["d"] -= (log_d.exp() * log_d).item()
                entropies["c"] -= (log_d.exp() * log_c).item()
            kinds = ["d"] * bool(spec.branches) + ["c"] * bool(spec.continuous)
            for log_alpha, kind in zip(agent.policy_learner.temperature.log_alpha, kinds, strict=True):
                alpha = alpha - weight * log_alpha * (wanted[kind] - entropies[kind])
        return {"critic": critic, "policy": policy, "alpha": alpha}


def assert_as_written(agent: Sac, spec: ActionSpec, rollout: Rollout, seed: int) -> None:
    torch.manual_seed(seed)
    losses, report = agent.loss(rollout)
    literal = Literal(agent, spec, rollout, seed)
    written = literal.losses()
    for name, group in agent.groups.items():
        wanted = compute_gradient(written[name], group.module)
        assert wanted.abs().max() > 1e-3
        torch.testing.assert_close(compute_gradient(losses[name], group.module), wanted, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(report.compute_td_errors(), literal.errors(), rtol=1e-7)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("seed", range(2))
def test_the_gradients_equal_the_papers_losses(spec, seed):
    agent = make_exact_sac(spec, seed, alpha_critic_scale=0.5 if seed else 1.0)
    assert_as_written(agent, spec, to_float64(random_sequence(spec, agent, seed, 1)), seed)


@pytest.mark.parametrize("spec", [SPECS["continuous"], SPECS["discrete"], SPECS["hybrid"]], ids=str)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"estimator": "retrace"},
        {"use_n_step_is": False},
        {"v_lambda": 0.75, "v_rho": 2.0},
        {"rescale_values": True},
        {"clip_epsilon": 0.5},
        {"alpha_critic_scale": 0.25},
        {"estimator": "retrace", "use_n_step_is": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("n_step", [2, 4])
def test_multi_step_targets_equal_their_definitions(spec, changes, n_step):
    agent = make_exact_sac(spec, sequence_length=4, n_step=n_step, ensemble_q_num=3, ensemble_q_sample=3, **changes)
    assert_as_written(agent, spec, to_float64(random_sequence(spec, agent, 3, 4)), 3)


@pytest.mark.parametrize("spec", [SPECS["continuous"], SPECS["discrete"], SPECS["hybrid"]], ids=str)
@pytest.mark.parametrize(
    "changes", [{}, {"estimator": "retrace", "sequence_length": 3, "n_step": 2}, {"clip_epsilon": 0.5}], ids=str
)
@pytest.mark.parametrize("seed", range(2))
def test_target_and_policy_use_the_same_critics_of_an_ensemble(spec, changes, seed):
    agent = make_exact_sac(spec, seed, ensemble_q_num=4, ensemble_q_sample=2, **changes)
    rows = changes.get("sequence_length", 1)
    assert_as_written(agent, spec, to_float64(random_sequence(spec, agent, seed, rows)), seed)


def test_groups_are_stepped_as_by_separate_optimizers():
    spec = SPECS["hybrid"]
    changes = {"learning_rate_critic": 0.01, "learning_rate_policy": 0.003, "learning_rate_alpha": 0.02}
    clips = {"max_grad_norm_critic": 0.05, "max_grad_norm_policy": 0.02, "max_grad_norm_alpha": 0.01}
    agent = sac_of(spec, **changes, **clips)
    twin = copy.deepcopy(agent)
    twin.target.network.load_state_dict(twin.critics.state_dict())
    learner = Learner(agent, Role(COLUMNS, {"obs": ObsSpec((3,))}, spec), {}, None)
    steps = [
        (name, group, torch.optim.Adam(group.module.parameters(), group.learning_rate, (0.9, 0.999), 1e-8))
        for name, group in twin.groups.items()
    ]
    for number in range(1, 6):
        rollout = random_sequence(spec, agent, number, 1)
        torch.manual_seed(number)
        update(learner, rollout)
        torch.manual_seed(number)
        losses, _ = twin.loss(rollout.convert(torch.from_numpy))
        gradients = {
            name: torch.autograd.grad(losses[name], list(group.module.parameters())) for name, group, _ in steps
        }
        for name, group, optimizer in steps:
            for parameter, found in zip(group.module.parameters(), gradients[name], strict=True):
                parameter.grad = found
            nn.utils.clip_grad_norm_(group.module.parameters(), group.max_grad_norm)
            optimizer.step()
        with torch.no_grad():
            pairs = zip(twin.target.network.parameters(), twin.critics.parameters(), strict=True)
            for slow, fast in pairs:
                slow.lerp_(fast, twin.settings.tau)
    for mine, other in zip(agent.critics.parameters(), twin.critics.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    for mine, other in zip(agent.target.network.parameters(), twin.target.network.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    for mine, other in zip(agent.policy.parameters(), twin.policy.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    mine, other = (each.policy_learner.temperature.log_alpha for each in (agent, twin))
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_the_target_critics_are_updated_every_update_target_per_step():
    spec = SPECS["discrete"]
    agent = sac_of(spec, tau=0.25, update_target_per_step=3)
    learner = Learner(agent, Role(COLUMNS, {"obs": ObsSpec((3,))}, spec), {}, None)
    moved = []
    for number in range(1, 7):
        before = agent.target.vector.clone()
        update(learner, random_sequence(spec, agent, number, 1))
        moved.append(not torch.equal(before, agent.target.vector))
        if moved[-1]:
            wanted = before + 0.25 * (agent.target.source_vector - before)
            torch.testing.assert_close(agent.target.vector, wanted)
    assert moved == [False, False, True, False, False, True]


@pytest.mark.parametrize(("share", "step"), [(0.98, -0.178694), (0.5, 0.348640)], ids=["too little", "enough"])
def test_the_known_step_of_the_temperature(share, step):
    """Gradient descent: too little entropy raises log alpha, too much lowers it."""
    agent = make_exact_sac(SPECS["discrete"], use_auto_alpha=True, target_d_alpha=share)
    policy = agent.family(torch.tensor([[[0.6, 0.3, 0.1]]], dtype=torch.float64).log())
    policy_output = PolicyOutput(
        policy=policy, reparameterized=policy.rsample(), entropy_cost=torch.zeros_like(policy.probs)
    )
    weights, values = torch.ones(1, 1).double(), torch.zeros_like(policy.probs)
    losses = agent.policy_learner.compute_losses(
        policy_output, AutogradPass(policy.statistics.clone()), weights, lambda numbers: (values, None)
    )[0]
    (found,) = torch.autograd.grad(losses["alpha"], agent.policy_learner.temperature.log_alpha)
    assert found.item() == pytest.approx(step, abs=1e-6)


def test_the_policy_gradient_is_0_at_the_softmax_of_q_over_alpha():
    """The temperature rises if the entropy is below its target, and falls if it is above."""
    agent = make_exact_sac(SPECS["discrete"], use_auto_alpha=True)
    rollout = to_float64(random_sequence(SPECS["discrete"], agent, 0, 1))
    alpha = agent.policy_learner.temperature.alpha()[0]
    q = agent.critics(rollout.obs["obs"][:1]).mean(0).detach()
    policy_output, completed = agent.policy_learner.evaluate_for_update(
        rollout.obs["obs"], rollout.obs, torch.ones(2, COLUMNS).bool()
    )
    policy_output = policy_output.select_rows(slice(-1))
    rest = agent.family(q / alpha)
    policy_output = replace(policy_output, policy=rest, entropy_cost=alpha * rest.log_probs)
    outputs = completed.outputs.clone().requires_grad_()
    losses = agent.policy_learner.compute_losses(
        policy_output, AutogradPass(outputs), torch.ones(1, COLUMNS).double(), lambda numbers: (q, None)
    )[0]
    (direction,) = torch.autograd.grad(losses["policy"], outputs)
    assert direction.abs().max() < 1e-12
    (of_alpha,) = torch.autograd.grad(losses["alpha"], agent.policy_learner.temperature.log_alpha)
    above = (rest.entropy - agent.settings.target_d_alpha * math.log(3)).sum()
    torch.testing.assert_close(of_alpha[0], above)  # gradient descent: down if the entropy is above its target


def test_each_update_samples_critics_of_the_ensemble():
    agent = sac_of(SPECS["continuous"], ensemble_q_num=5, ensemble_q_sample=2)
    parts = {tuple(sorted(agent._sample_critics())) for _ in range(200)}
    assert len(parts) == 10
    assert sac_of(SPECS["continuous"])._sample_critics() is None


@pytest.mark.parametrize("changes", [{}, {"discrete_dqn_like": True, "discrete_dqn_epsilon": 1.0}], ids=str)
@pytest.mark.parametrize("branches", [(3,), (3, 2)])
def test_forbidden_actions_are_never_taken_and_have_no_value(branches, changes):
    spec = ActionSpec(0, branches)
    agent = sac_of(spec, mask=True, **changes)
    rng = np.random.default_rng(0)
    allowed = (rng.random((1000, sum(branches))) < 0.5).astype(np.uint8)
    allowed[:, np.cumsum((0, *branches[:-1])) + 1] = 1
    obs = {"obs": rng.normal(size=(1000, 3)).astype(np.float32), ACTION_MASK: allowed}
    step = make_step(obs, first=True)
    for decide in (agent.act, agent.greedy):
        action = decide(step, np.zeros((1000, 0), np.float32)).action.astype(int)
        for branch, start in enumerate(np.cumsum((0, *branches[:-1]))):
            assert allowed[np.arange(1000), start + action[:, branch]].all()
    if not changes:
        tensors = {name: torch.from_numpy(np.stack((value, value))) for name, value in obs.items()}
        policy_output = agent.policy_learner.evaluate(tensors["obs"], tensors)
        assert torch.isfinite(policy_output.entropy_cost * policy_output.policy.probs).all()
        (entropies,) = agent.policy_learner._target_entropies(policy_output.policy)
        parts = np.split(allowed, np.cumsum(branches[:-1]), -1)
        wanted = agent.settings.target_d_alpha * sum(np.log(part.sum(-1)) for part in parts)
        np.testing.assert_allclose(entropies[0], wanted, rtol=1e-5)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_metrics_are_means_over_valid_rows(spec):
    agent = make_exact_sac(spec, sequence_length=3, n_step=2)
    rollout = to_float64(random_sequence(spec, agent, 5, 3))
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
    rollout = random_sequence(spec, agent, 0, 1).convert(torch.from_numpy)
    obs = rollout.obs["obs"]
    statistics, _ = agent.policy.act({"obs": obs[0].numpy()}, np.zeros((COLUMNS, 0), np.float32))
    best = agent.critics(obs).mean(0).argmax(-1)
    wanted = np.full((COLUMNS, 3), 0.1)
    wanted[np.arange(COLUMNS), best[0]] += 0.7
    np.testing.assert_allclose(np.exp(statistics), wanted, rtol=1e-5)

    losses, report = agent.loss(rollout)
    assert list(losses) == ["critic"]
    following = agent.target.network(obs).mean(0)[1].gather(-1, best[1].unsqueeze(-1)).squeeze(-1)
    target = rollout.reward[0] + GAMMA * rollout.alive[0] * following
    taken = agent.critics(obs[:1]).gather(-1, rollout.raw_action.long().expand(2, -1, -1, -1)).squeeze(-1)[:, 0]
    error = 0.5 * (target - taken).square().mean(0)
    weight = rollout.valid[0] / rollout.valid[0].sum()
    assert report.compute_metrics()["train/critic_loss"].item() == pytest.approx(
        (weight * error).sum().item(), rel=1e-4
    )


def test_burn_in_has_no_gradient_and_updates_the_memory_of_each_network():
    spec = SPECS["continuous"]
    blueprint = Blueprint(body=Mlp(8), memory=Gru(6))
    agent = sac_of(spec, blueprint, burn_in_step=3, sequence_length=2)
    rollout = random_sequence(spec, agent, 0, 5).convert(torch.from_numpy)
    rollout = replace(rollout, memory=torch.zeros(COLUMNS, 6), burn_in=3)
    rollout.obs["obs"].requires_grad_()
    losses, _ = agent.loss(rollout)
    (reached,) = torch.autograd.grad(losses["critic"], rollout.obs["obs"])
    assert (reached[:3] == 0).all() and reached[3:].abs().max() > 0


@pytest.mark.parametrize(
    ("spec", "changes", "message"),
    [
        ("continuous", {"n_step": 2}, "n_step 2 must not be above sequence_length 1"),
        ("continuous", {"ensemble_q_sample": 3}, "ensemble_q_sample 3 is above ensemble_q_num 2"),
        ("continuous", {"v_rho": 0.5}, "v_rho 0.5 must not be below v_c 1.0"),
        ("continuous", {"std_init": 0.005}, "std_init 0.005 must be above std_min 0.01"),
        ("hybrid", {"discrete_dqn_like": True}, "discrete_dqn_like needs discrete branches only"),
    ],
)
def test_impossible_settings_raise(spec, changes, message):
    with pytest.raises(ValueError, match=message):
        sac_of(SPECS[spec], **changes)


def test_too_many_combinations_raise():
    with pytest.raises(ValueError, match="there are 1331 combinations of discrete branches"):
        sac_of(ActionSpec(0, (11, 11, 11)))


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
