"""The losses of SAC as written in the papers, in loops over rows, with which its gradients are compared."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import torch
from torch import nn

from algorithm.agents.sac.agent import Sac
from algorithm.distributions import MASKED_LOGIT
from algorithm.networks import Blueprint, Mlp
from algorithm.returns import rescale, unscale
from algorithm.rollout import Rollout
from algorithm.specs import ACTION_MASK, ActionSpec
from tests.builders import PassThrough, make_role, make_sac, random_rollout_of, to_float64
from tests.oracles import retrace_by_definition, soft_vtrace_by_definition

SPECS = {
    "continuous": ActionSpec(2),
    "discrete": ActionSpec(0, (3,)),
    "multi-discrete": ActionSpec(0, (2, 3)),
    "hybrid": ActionSpec(1, (3,)),
    "hybrid of two branches": ActionSpec(2, (2, 2)),
}
COLUMNS, GAMMA = 4, 0.875  # gamma is exact in float32, the dtype of discounts


def sac_of(spec: ActionSpec, blueprint: Blueprint | None = None, mask: bool = False, seed: int = 0, **changes) -> Sac:
    """Return an agent with small networks of the policy and the critics."""
    blueprint = blueprint or Blueprint(policy=Mlp(16), critic=Mlp(16))
    return make_sac(make_role(COLUMNS, spec=spec, masked=mask), blueprint, seed, **{"gamma": GAMMA, **changes})


def make_case(
    spec: ActionSpec, seed: int = 0, rows: int = 1, body: Mlp | None = None, mask: bool = False, **changes
) -> tuple[Sac, Rollout]:
    """Return an agent in float64 whose networks differ from their initial values and from each other; a rollout."""
    blueprint = Blueprint(encoders={"obs": PassThrough()}, body=body, policy=Mlp(8), critic=Mlp(8))
    agent = sac_of(spec, blueprint, mask, seed, **changes)
    for network in (agent.policy, agent.critics, agent.target.network, agent.policy_learner.temperature):
        network.double()
        for parameter in network.parameters():
            nn.init.normal_(parameter, std=0.4)
    return agent, to_float64(random_rollout_of(agent, make_role(COLUMNS, spec=spec, masked=mask), seed, rows))


class Literal:
    """The losses of the papers, in loops over rows."""

    def __init__(self, agent: Sac, spec: ActionSpec, rollout: Rollout, seed: int):
        self.agent, self.spec, self.rollout = agent, spec, rollout
        self.combinations = list(product(*map(range, spec.branches)))
        alphas = agent.policy_learner.temperature.log_alpha.detach().exp().tolist()
        kinds = ["d"] * bool(spec.branches) + ["c"] * bool(spec.continuous)
        self.alpha = {"d": 0.0, "c": 0.0} | dict(zip(kinds, alphas, strict=True))
        obs = rollout.obs["obs"]
        self.features = {
            each: each.torso.unroll(rollout.obs, rollout.first, rollout.memory)
            for each in (agent.critics, agent.target.network)
        }
        torch.manual_seed(seed)  # for the same samples
        critics, some = agent.settings.ensemble_q_num, agent.settings.ensemble_q_sample
        self.critics = torch.randperm(critics)[:some].tolist() if some < critics else slice(None)
        shape = (COLUMNS, len(self.combinations), spec.continuous)
        self.noise = torch.empty(len(obs), *shape).double().normal_()
        self.statistics = agent.policy.compute_outputs(self.features[agent.critics].detach())
        self.allowed = rollout.obs.get(ACTION_MASK, torch.ones(*obs.shape[:2], sum(spec.branches))).bool()
        if spec.branches:
            logits = self.statistics[..., -self.allowed.shape[-1] :].masked_fill(~self.allowed, MASKED_LOGIT)
            self.statistics = torch.cat((self.statistics[..., : -self.allowed.shape[-1]], logits), -1)
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
            own = slice(k * numbers, (k + 1) * numbers)
            normal = torch.distributions.Normal(mean[own], log_std[own].exp())
            draw = normal.mean + normal.stddev * noise[k]
            log_c = (normal.log_prob(draw) - (1 - draw.tanh() ** 2).log()).sum()
            found.append((log_d, log_c, draw.tanh()))
        return found

    def outputs(self, critics, t, b, k, numbers):
        """Return the outputs [N, v] of every critic for combination `k` with the continuous dimensions `numbers`."""
        x = self.features[critics][t, b]
        if not self.spec.continuous:
            return torch.stack([member(x).view(len(self.combinations), -1)[k] for member in critics.critics])
        codes = [torch.eye(n)[i] for i, n in zip(self.combinations[k], self.spec.branches, strict=True)]
        return torch.stack([member(torch.cat([x, numbers, *codes])) for member in critics.critics])

    def q(self, critics, t, b, k, numbers):
        """Return Q [N] of every critic; see `outputs`."""
        return self.outputs(critics, t, b, k, numbers)[:, 0]

    def reduced(self, q):
        """Return one value of the critics of this update."""
        q = unscale(q[self.critics]) if self.agent.settings.rescale_values else q[self.critics]
        reduce = self.agent.settings.ensemble_q_reduce
        takes_minimum = bool(self.spec.continuous) if reduce == "auto" else reduce == "min"
        return q.min() if takes_minimum else q.mean()

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
            allowed = self.allowed[t, b].split(list(spec.branches)) if spec.branches else []
            largest = sum(math.log(part.sum()) for part in allowed)
            wanted = {"d": shares["d"] * largest, "c": -shares["c"] * spec.continuous}
            for log_alpha, kind in zip(agent.policy_learner.temperature.log_alpha, kinds, strict=True):
                alpha = alpha - weight * log_alpha * (wanted[kind] - entropies[kind])
        return {"critic": critic, "policy": policy, "alpha": alpha}


class CategoricalLiteral(Literal):
    """The losses of the categorical critic, in loops over rows."""

    @property
    def atoms(self):
        settings = self.agent.settings
        return torch.linspace(settings.v_min, settings.v_max, settings.n_atoms, dtype=torch.float64)

    def q(self, critics, t, b, k, numbers):
        return self.outputs(critics, t, b, k, numbers).softmax(-1) @ self.atoms

    def target_distribution(self, t, b):
        """Return the projected distribution of r + d (z - alpha log pi), atom by atom."""
        settings, atoms = self.agent.settings, self.atoms.tolist()
        discount, distance = settings.gamma * self.rollout.alive[t, b].item(), atoms[1] - atoms[0]
        target = [0.0] * len(atoms)
        for k, (log_d, log_c, numbers) in enumerate(self.policy_output[t + 1, b]):
            probs = self.outputs(self.agent.target.network, t + 1, b, k, numbers).softmax(-1)
            smallest = probs[(probs @ self.atoms).argmin()] if self.spec.continuous else probs.mean(0)
            for mass, z in zip(smallest.tolist(), atoms, strict=True):
                position = self.rollout.reward[t, b].item() + discount * (z - self.cost(log_d, log_c).item())
                position = min(max(position, settings.v_min), settings.v_max)
                for i, atom in enumerate(atoms):
                    target[i] += log_d.exp().item() * mass * max(0, 1 - abs(position - atom) / distance)
        return torch.tensor(target, dtype=torch.float64)

    def critic_loss(self):
        learned, loss = np.argwhere(self.rollout.valid.numpy()), 0.0
        for t, b in learned:
            sample = self.rollout.raw_action[t, b]
            k = self.combinations.index(tuple(sample[self.spec.continuous :].long().tolist()))
            logits = self.outputs(self.agent.critics, t, b, k, sample[: self.spec.continuous].tanh())
            weight = self.rollout.weight[b] / len(learned)
            loss = loss - weight * (self.target_distribution(t, b) * logits.log_softmax(-1)).sum()
        return loss
