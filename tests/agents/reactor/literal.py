"""Reactor as written in Gruslys et al. 2018 (arXiv 1704.04651), row by row, with which its gradients are compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.reactor import Reactor
from algorithm.networks import BranchedActorCritic
from algorithm.rollout import Rollout
from algorithm.specs import ACTION_MASK, ActionSpec
from tests.builders import find_allowed_statistics
from tests.distributions.oracles import find_place
from tests.oracles import distributional_retrace_by_definition, retrace_by_definition


@dataclass(frozen=True, kw_only=True)
class LiteralOutputs:
    """The outputs of a network at the T+1 rows after the burn-in, computed one row after the other, as in acting."""

    logits: Tensor  # [T+1, B, K], unmasked
    values: Tensor  # [T+1, B, n_values]
    states: Tensor  # the stored part of the memory before each row [T+1, B, stored_state_size]


def compute_outputs_by_step(network: BranchedActorCritic, rollout: Rollout) -> LiteralOutputs:
    """Return the outputs of a network; the burn-in has no gradient, and no gradient of the policy reaches the torso.

    If the memory of the rollout is only the stored part, it is the memory before the row that ends the warm-up.
    """
    torso_size, policy_size, critic_size = network.stored_sizes
    stored, warmup_rows = rollout.memory[:, : network.stored_state_size], 0
    frames = rollout.memory[:, network.stored_state_size :]
    if rollout.memory.shape[-1] < network.state_size:
        warmup_rows = network.torso.warmup_rows
        frames = stored.new_zeros((len(stored), network.state_size - network.stored_state_size))
    state, rows = stored, []
    for t, first in enumerate(rollout.first):
        obs = {name: value[t] for name, value in rollout.obs.items()}
        frames = frames * ~first.unsqueeze(-1)
        if t >= warmup_rows:
            state = state * ~first.unsqueeze(-1)
        torso, policy, critic = state.split([torso_size, policy_size, critic_size], -1)
        with torch.set_grad_enabled(t >= rollout.burn_in):
            features, torso_memory = network.torso.step(obs, torch.cat((torso, frames), -1))
            logits, policy = apply_branch(network.policy, features.detach(), policy)
            values, critic = apply_branch(network.critic, features, critic)
        rows.append((logits, values, state))
        frames = torso_memory[:, torso_size:].detach()
        if t >= warmup_rows:
            state = torch.cat((torso_memory[:, :torso_size], policy, critic), -1)
    logits, values, states = map(torch.stack, zip(*rows[rollout.burn_in :], strict=True))
    return LiteralOutputs(logits=logits, values=values, states=states)


def apply_branch(branch, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs [B, size] of a branch at one row, and its next state."""
    if hasattr(branch.layers, "step"):
        features, state = branch.layers.step(features, state)
    else:
        features = branch.layers(features)
    return torch.nn.functional.linear(features, branch.head.linear.weight, branch.head.linear.bias), state


def compute_policy(agent: Reactor, spec: ActionSpec, logits: Tensor, rollout: Rollout) -> Tensor:
    """Return pi = (1 - e) softmax + e uniform over the allowed combinations [T+1, B, K] (section 4)."""
    mask = rollout.obs.get(ACTION_MASK, torch.ones(*rollout.first.shape, sum(spec.branches)))
    allowed = torch.from_numpy(find_allowed_statistics(agent, mask.bool().numpy(), spec))
    fraction = agent.settings.policy_uniform_fraction
    softmax = logits.masked_fill(~allowed, -torch.inf).softmax(-1)
    uniform = allowed.double() / allowed.sum(-1, keepdim=True)
    return (1 - fraction) * softmax + fraction * uniform


def compute_atoms(agent: Reactor) -> np.ndarray:
    """Return z_i = v_min + i Dz."""
    settings = agent.settings
    distance = (settings.v_max - settings.v_min) / (settings.n_atoms - 1)
    return settings.v_min + distance * np.arange(settings.n_atoms)


def compute_log_q(agent: Reactor, values: Tensor) -> Tensor:
    """Return log q_i(x, a) of the dueling logits V_i(x) + A_i(x, a) [..., K, N] (section 4)."""
    n_atoms = agent.settings.n_atoms
    v, *advantages = values.split(n_atoms, -1)
    return torch.stack([(v + advantage).log_softmax(-1) for advantage in advantages], -2)


def fill_invalid_rows(target: np.ndarray, rollout: Rollout) -> Tensor:
    """Return targets [T, B, ...] with 0 at invalid rows, where they are NaN."""
    is_missing = np.isnan(target).reshape(*rollout.reward.shape, -1).all(-1)
    assert np.array_equal(is_missing, ~rollout.valid.numpy())
    return torch.from_numpy(np.nan_to_num(target))


@dataclass(frozen=True, kw_only=True)
class LiteralTerms:
    """The terms of the loss at the rows after the burn-in [T, B], with gradient; undefined at invalid rows."""

    policy: Tensor  # J, the objective whose gradient is the policy gradient
    critic: Tensor  # the loss of the critic
    entropy: Tensor
    td_error: Tensor  # the magnitude of the error in the priority
    rho: Tensor
    value: Tensor  # sum_a pi(a) Q(a)
    q_taken: Tensor  # Q(a_t) of the critic
    return_: Tensor  # its Retrace target


def compute_literal_terms(agent: Reactor, spec: ActionSpec, rollout: Rollout) -> LiteralTerms:
    """Return the terms of Reactor's loss (sections 3.1 and 3.2), to be differentiated by autograd."""
    settings = agent.settings
    outputs = compute_outputs_by_step(agent.policy, rollout)
    with torch.no_grad():
        target_values = compute_outputs_by_step(agent.target.network, rollout).values
    rollout = rollout.drop_burn_in()
    pi = compute_policy(agent, spec, outputs.logits, rollout)
    taken = find_place(spec.branches, rollout.raw_action).numpy()
    index = torch.from_numpy(taken).unsqueeze(-1)
    mu = rollout.behavior.softmax(-1)
    pi_taken, mu_taken = (probs.gather(-1, index).squeeze(-1) for probs in (pi[:-1], mu))
    rho = (pi_taken / mu_taken).detach()
    trace = settings.trace_lambda * rho.clamp(max=1)
    episodes = (rollout.reward.numpy(), rollout.alive.numpy(), rollout.first.numpy(), settings.gamma)
    if settings.critic == "categorical":
        atoms = compute_atoms(agent)
        log_q = compute_log_q(agent, outputs.values)[:-1]
        log_q_taken = torch.stack([log_q[t, b, a] for (t, b), a in np.ndenumerate(taken)]).view(*taken.shape, -1)
        target_q = compute_log_q(agent, target_values).exp().numpy()
        arguments = (atoms, pi.detach().numpy(), target_q, taken, trace.numpy())
        target = fill_invalid_rows(distributional_retrace_by_definition(*episodes, *arguments), rollout)
        q, return_ = log_q.exp().detach() @ torch.from_numpy(atoms), target @ torch.from_numpy(atoms)
        critic = -(target * log_q_taken).sum(-1)
        td_error = 0.5 * (target - log_q_taken.exp()).abs().sum(-1)
    else:
        v = (pi.detach() * target_values).sum(-1).numpy()
        q_taken = target_values[:-1].gather(-1, index).squeeze(-1).numpy()
        target = retrace_by_definition(*episodes, q_taken, v, trace.numpy())
        return_ = fill_invalid_rows(target, rollout)
        q, td_error = outputs.values[:-1].detach(), return_ - outputs.values[:-1].gather(-1, index).squeeze(-1)
        critic = 0.5 * td_error.square()
    value = (pi[:-1].detach() * q).sum(-1)
    if settings.policy_gradient == "leave_one_out":
        beta = {
            "one": torch.ones_like(mu_taken),
            "inverse": 1 / mu_taken,
            "truncated": torch.minimum(torch.tensor(settings.importance_clip), 1 / mu_taken),
        }[settings.loo_beta]
        q_taken = q.gather(-1, index).squeeze(-1)
        policy = beta * (return_ - q_taken) * pi_taken + (q * pi[:-1]).sum(-1)
    else:  # Wang et al. 2017, Eq. 9
        log_pi = pi[:-1].clamp(min=1e-300).log()
        clip, ratio = settings.importance_clip, (pi[:-1] / mu).detach().nan_to_num()  # forbidden: 0 / 0
        correction = (1 - clip / ratio).relu() * pi[:-1].detach() * (q - value.unsqueeze(-1))
        truncated = rho.clamp(max=clip) * (return_ - value)
        policy = truncated * pi_taken.log() + (correction * log_pi).sum(-1)
    entropy = -torch.special.xlogy(pi[:-1], pi[:-1].clamp(min=1e-300)).sum(-1)
    return LiteralTerms(
        policy=policy,
        critic=critic,
        entropy=entropy,
        td_error=td_error.detach().abs(),
        rho=rho,
        value=value,
        q_taken=q.gather(-1, index).squeeze(-1),
        return_=return_,
    )


def compute_literal_loss(agent: Reactor, spec: ActionSpec, rollout: Rollout) -> Tensor:
    """Return the mean of the loss over valid rows, each weighted by its column."""
    terms, settings = compute_literal_terms(agent, spec, rollout), agent.settings
    loss = -terms.policy + settings.value_coef * terms.critic - settings.entropy_coef * terms.entropy
    valid = rollout.drop_burn_in().valid
    return (rollout.weight * loss)[valid].sum() / valid.sum()
