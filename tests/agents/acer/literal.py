"""ACER as written in Wang et al. 2017, row by row, with which its gradients are compared."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.acer.agent import Acer
from algorithm.networks import Mlp
from algorithm.rollout import Rollout
from algorithm.specs import ActionSpec
from tests.agents.literal import COLUMNS, GAMMA, ROWS, compute_entropy, compute_kl, compute_log_prob
from tests.builders import make_exact_acer, make_role, random_rollout_of, to_float64
from tests.oracles import retrace_by_definition, vtrace_by_definition

SAMPLES = 3
SPECS = {
    "discrete": ActionSpec(branches=(3,)),
    "box": ActionSpec(continuous=2),
    "branches": ActionSpec(branches=(3, 2)),
    "hybrid": ActionSpec(continuous=1, branches=(3,)),
}


def make_case(
    spec: ActionSpec, seed: int = 0, masked: bool = False, rows: int = ROWS, **changes
) -> tuple[Acer, Rollout]:
    """Return an agent in float64, and a rollout with columns of different weights."""
    role = make_role(COLUMNS, spec=spec, masked=masked)
    settings = {"gamma": GAMMA, "sdn_samples": SAMPLES, "trace_lambda": 0.75, "value_coef": 0.7, **changes}
    agent = make_exact_acer(role, Mlp(16), seed, **settings)
    return agent, to_float64(random_rollout_of(agent, role, seed, rows))


def compute_targets(s, episodes, taken, v, rho, root, prob) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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


def project(settings, g: Tensor, k: Tensor) -> tuple[Tensor, bool]:
    """Return z of one row (Eq. 12), and whether the constraint is active."""
    excess = k @ g - settings.trust_region_delta
    if settings.trust_region == "off" or excess <= 0:
        return g, False
    return g - excess / (k @ k) * k, True


class LiteralLoss:
    """The loss of Eq. 5-16, with gradient, in a loop over the rows of a rollout.

    Attributes:
        value: The loss.
        active: The share of rows with an active constraint.
        errors: Target minus Q of the taken action, or minus V with a critic of state values [T, B]; NaN if invalid.
    """

    def __init__(self, agent: Acer, spec: ActionSpec, rollout: Rollout):
        self.agent, self.spec, self.rollout = agent, spec, rollout
        s = self.settings = agent.settings
        S = agent.family.statistics_size
        features, outputs = self.compute_outputs(agent.policy)
        self.statistics, values = agent.policy.mask_logits(outputs[..., :S], rollout.obs), outputs[..., S:]
        self.average = agent.policy.mask_logits(
            self.compute_outputs(agent.average_policy.network)[1][..., :S], rollout.obs
        ).detach()
        samples = rollout.raw_action.unsqueeze(0)
        self.q_of_actions, self.is_dueling = None, s.critic == "action_value" and spec != SPECS["discrete"]
        if s.critic == "state_value":
            v, q = values.squeeze(-1), values[:-1, :, 0].unsqueeze(0)
        elif self.is_dueling:
            v = values.squeeze(-1)
            samples = torch.cat((samples, agent.family(self.statistics[:-1].detach()).draw_samples(1 + SAMPLES)))
            advantage = agent.policy.advantage_head(features[:-1], agent.family.encode(samples))
            q = v[:-1] + advantage - advantage[2:].mean(0)  # Eq. 13: of the taken action, of a', of the u_i
        else:
            self.q_of_actions = values.detach()
            v = (self.statistics.softmax(-1) * values).sum(-1).detach()
            q = values[:-1].gather(-1, rollout.raw_action.long()).squeeze(-1).unsqueeze(0)
        self.samples, self.q, self.v = samples, q, v
        logs = [compute_log_prob(spec, self.statistics[:-1], x).detach() for x in samples[:2]]
        log_rho = [log - compute_log_prob(spec, rollout.behavior, x) for log, x in zip(logs, samples, strict=False)]
        self.ratio = [log.clamp(-20, 20).exp() for log in log_rho]
        root = (log_rho[0] / (spec.continuous + len(spec.branches))).clamp(-20, 20).exp()
        episodes = (rollout.reward.numpy(), rollout.alive.numpy(), rollout.first.numpy(), s.gamma)
        rows = (each.detach().numpy() for each in (q[0], v, self.ratio[0], root, logs[0].exp()))
        ret, self.opc, self.v_target = compute_targets(s, episodes, *rows)
        self.target = self.v_target if s.critic == "state_value" else ret
        if self.q_of_actions is not None:
            self.opc = ret
        self.errors = self.target - q[0].detach().numpy()
        learned = np.argwhere(~np.isnan(ret))
        losses, are_active = zip(*(self.compute_row(t, b) for t, b in learned), strict=True)
        self.value, self.active = sum(losses) / len(learned), sum(are_active) / len(learned)

    def compute_outputs(self, network) -> tuple[Tensor, Tensor]:
        """Return the features and the outputs of a network."""
        features = network.torso.unroll(self.rollout.obs, self.rollout.first, self.rollout.memory)
        return features, network.compute_outputs(features)

    def compute_row(self, t: int, b: int) -> tuple[Tensor, bool]:
        """Return the weighted loss of one row, and whether its constraint is active; g (Eq. 9) and k by autograd."""
        s, spec, statistics = self.settings, self.spec, self.statistics[t, b]
        in_probs = s.trust_region_space == "probs"
        coordinates = statistics.softmax(-1) if in_probs else statistics
        phi = coordinates.detach().requires_grad_()
        v = self.v[t, b].detach()
        weight = self.ratio[0][t, b].clamp(max=s.importance_clip) * (self.opc[t, b] - v)
        if spec == SPECS["discrete"]:
            log_pi = phi.log() if in_probs else phi.log_softmax(-1)  # probabilities are free coordinates
            average = self.average[t, b].log_softmax(-1)
            objective = weight * log_pi[self.rollout.raw_action[t, b, 0].long()]
            divergence = torch.special.xlogy(average.exp(), average.exp()).sum() - (average.exp() * log_pi).sum()
            if self.q_of_actions is not None:
                pi, mu = log_pi.detach().exp(), self.rollout.behavior[t, b].softmax(-1)
                correction = (1 - s.importance_clip * mu / pi).clamp(min=0).where(pi > 0, 0)
                objective = objective + (correction * pi * (self.q_of_actions[t, b] - v) * log_pi).sum()
        else:
            objective = weight * compute_log_prob(spec, phi, self.rollout.raw_action[t, b])
            divergence = compute_kl(spec, self.average[t, b], phi)
        if self.is_dueling:  # Eq. 15
            correction = (1 - s.importance_clip / self.ratio[1][t, b]).clamp(min=0) * (self.q[1, t, b].detach() - v)
            objective = objective + correction * compute_log_prob(spec, phi, self.samples[1, t, b])
        (g,), (k,) = torch.autograd.grad(objective, phi, retain_graph=True), torch.autograd.grad(divergence, phi)
        if s.std == "fixed":
            g[spec.continuous : 2 * spec.continuous], k[spec.continuous : 2 * spec.continuous] = 0, 0
        z, is_active = project(s, g, k)
        entropy = compute_entropy(spec, statistics)
        error = (self.target[t, b] - self.q[0, t, b]) ** 2
        if self.is_dueling:
            error = error + (self.v_target[t, b] - self.v[t, b]) ** 2
        row = -z @ coordinates - s.entropy_coef * entropy + s.value_coef * error / 2
        return self.rollout.weight[b] * row, is_active
