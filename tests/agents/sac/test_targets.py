"""Known answers and fixed points of SAC's targets, by the soft Bellman equation alone."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from algorithm.agents.sac.agent import Sac
from algorithm.networks import Blueprint
from algorithm.returns import rescale
from algorithm.rollout import Rollout
from algorithm.specs import ActionSpec, ObsSpec, Role
from tests.builders import PassThrough, make_sac, random_rollout, to_float64

GAMMA = 0.875  # exact in float32, the dtype of discounts
ESTIMATORS = {
    "vtrace": {"estimator": "vtrace"},
    "retrace": {"estimator": "retrace"},
    "uncorrected": {"use_n_step_is": False},
}
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)


def tabular_sac(spec: ActionSpec, states: int, alpha: float | tuple[float, ...], **changes) -> Sac:
    """Return an agent in float64 whose networks are tables over one-hot observations, all zero."""
    role = Role(1, {"obs": ObsSpec((states,))}, spec)
    agent = make_sac(
        role, Blueprint(encoders={"*": PassThrough()}), **{"gamma": GAMMA, "ensemble_q_reduce": "mean", **changes}
    )
    for network in (agent.policy, agent.critics, agent.target.network):
        network.double()
        for parameter in network.parameters():
            nn.init.zeros_(parameter)
    if not agent.settings.discrete_dqn_like:
        agent.policy_learner.temperature.log_alpha.data = torch.as_tensor(alpha, dtype=torch.float64).log().reshape(-1)
    return agent


def set_q(agent: Sac, q: Tensor) -> None:
    """Give every critic and target critic the values [states, K]."""
    for critics in (agent.critics, agent.target.network):
        for member in critics.critics:
            member.head.weight.data = q.T.clone()


def make_sequence(obs: Tensor, sample: Tensor, behavior: Tensor, **changes) -> Rollout:
    """Return rows [T, B] of one episode, without rewards and of equal weights, unless `changes` give others."""
    rows, columns = sample.shape[:2]
    fields = {
        "first": torch.zeros(rows + 1, columns, dtype=torch.bool),
        "reward": torch.zeros(rows, columns).double(),
        "alive": torch.ones(rows, columns, dtype=torch.bool),
    }
    template = to_float64(random_rollout(np.random.default_rng(0), rows, columns))
    return replace(template, obs={"obs": obs}, raw_action=sample, behavior=behavior, **{**fields, **changes})


@every_estimator
@pytest.mark.parametrize(("n_step", "sequence_length"), [(1, 1), (1, 3), (2, 2), (2, 3), (3, 3), (5, 5)])
@pytest.mark.parametrize("rescaled", [False, True])
def test_the_known_q_of_one_state_is_a_fixed_point(estimator, n_step, sequence_length, rescaled):
    """Two actions, no reward, a uniform policy, on-policy: Q = gamma alpha log 2 / (1 - gamma)."""
    settings = {"n_step": n_step, "sequence_length": sequence_length, "rescale_values": rescaled, **estimator}
    agent = tabular_sac(ActionSpec(0, (2,)), 1, 0.1, gamma=0.9, **settings)
    sample = torch.tensor(list(product([0.0, 1.0], repeat=sequence_length))).double().T.unsqueeze(-1)
    columns = sample.shape[1]
    rollout = make_sequence(
        torch.ones(sequence_length + 1, columns, 1).double(), sample, torch.zeros(sequence_length, columns, 2).double()
    )
    q = 0.9 * 0.1 * math.log(2) / (1 - 0.9)
    assert q == pytest.approx(0.6238, abs=1e-4)
    for value in (0.3185, q):
        table = torch.full((1, 2), value).double()
        set_q(agent, rescale(table) if rescaled else table)
        _, result = agent.loss(rollout)
        largest = result.compute_td_errors()[0]
        assert (largest < 1e-7).all() if value == q else (largest > 0.01).all()


class Chain:
    """A random decision process of a few states, with the soft values of a policy and all its sequences.

    Action 1 in the last state ends the episode, and another one starts anywhere.
    """

    def __init__(self, states: int, actions: int, rows: int, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        self.states, self.actions, self.rows = states, actions, rows
        self.next = self.rng.dirichlet(np.ones(states), (states, actions))
        self.reward = self.rng.normal(size=(states, actions))
        self.alive = np.ones((states, actions), bool)
        self.alive[-1, 1] = False

    def soft_q(self, policy: np.ndarray, alpha: float) -> np.ndarray:
        """Solve Q(x, a) = r + gamma E sum_b policy(b|x') (Q(x', b) - alpha log policy(b|x')) [states, actions]."""
        onward = GAMMA * (self.alive[..., None] * self.next).reshape(-1, self.states)  # [S A, S]
        entropy = -(policy * np.log(np.where(policy > 0, policy, 1))).sum(-1)
        mean = np.zeros((self.states, self.states * self.actions))  # V = mean @ Q + alpha entropy
        for state in range(self.states):
            mean[state, state * self.actions : (state + 1) * self.actions] = policy[state]
        own = self.reward.reshape(-1) + onward @ (alpha * entropy)
        return np.linalg.solve(np.eye(len(own)) - onward @ mean, own).reshape(self.states, self.actions)

    def all_sequences(self, behavior: np.ndarray) -> Rollout:
        """Return all possible sequences, weighted by its probability under `behavior` [states, actions]."""
        paths = np.array(list(product(range(self.states), *[range(self.actions), range(self.states)] * self.rows)))
        state, action = paths[:, 0::2].T, paths[:, 1::2].T
        before = state[:-1]
        weight = (behavior[before, action] * self.next[before, action, state[1:]]).prod(0)
        alive = self.alive[before, action]
        return make_sequence(
            torch.eye(self.states).double()[torch.from_numpy(state)],
            torch.from_numpy(action).double().unsqueeze(-1),
            torch.from_numpy(np.log(behavior[before])),
            reward=torch.from_numpy(self.reward[before, action]),
            alive=torch.from_numpy(alive),
            first=torch.from_numpy(np.concatenate((np.ones_like(alive[:1]), ~alive))),
            weight=torch.from_numpy(weight),
        )


def mean_errors(agent: Sac, rollout: Rollout) -> Tensor:
    """Return the mean of target - Q [states, K] over the rows of each state and action, up to a factor."""
    losses, _ = agent.loss(rollout)
    return -torch.autograd.grad(losses["critic"], agent.critics.critics[0].head.weight)[0].T


@every_estimator
@pytest.mark.parametrize("off_policy", [False, True])
@pytest.mark.parametrize("n_step", [1, 2, 3])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_the_exact_soft_q_is_a_fixed_point_in_the_mean(estimator, off_policy, n_step, scale):
    """The mean is over all sequences of three rows; without correction it holds on-policy only."""
    chain = Chain(2, 2, 3)
    policy = chain.rng.dirichlet(np.ones(2), 2)
    behavior = chain.rng.dirichlet(np.ones(2), 2) if off_policy else policy
    clips = {"v_rho": 1e6, "v_c": 1e6} if estimator.get("estimator") == "vtrace" else {"v_c": 1.0}
    agent = tabular_sac(
        ActionSpec(0, (2,)), 2, 0.3, n_step=n_step, sequence_length=3, alpha_critic_scale=scale, **estimator, **clips
    )
    weight, _ = agent.policy.heads.parameters()
    weight.data = torch.from_numpy(np.log(policy)).T.clone()
    q = torch.from_numpy(chain.soft_q(policy, scale * 0.3))
    rollout = chain.all_sequences(behavior)
    uncorrected = "use_n_step_is" in estimator and off_policy and n_step > 1
    set_q(agent, q)
    errors = mean_errors(agent, rollout)
    assert (errors.abs().max() > 1e-4) if uncorrected else (errors.abs().max() < 1e-12)
    set_q(agent, q + 0.1 * torch.randn(2, 2, generator=torch.Generator().manual_seed(0)).double())
    assert mean_errors(agent, rollout).abs().max() > 1e-4


@pytest.mark.parametrize("estimator", ["vtrace", "retrace"])
def test_discrete_dqn_like_the_exact_q_of_the_greedy_policy_is_a_fixed_point_in_the_mean(estimator):
    """Q contains no entropy, and the behavior is another policy."""
    chain = Chain(2, 2, 3, seed=1)
    clips = {"v_rho": 1e6, "v_c": 1e6}
    settings = {"n_step": 3, "sequence_length": 3, "estimator": estimator, "discrete_dqn_like": True, **clips}
    agent = tabular_sac(ActionSpec(0, (2,)), 2, 0.1, **settings)
    q, policy = np.zeros((2, 2)), None
    for _ in range(4):  # policy iteration
        policy = np.eye(2)[q.argmax(-1)]
        q = chain.soft_q(policy, 0.0)
    assert (np.eye(2)[q.argmax(-1)] == policy).all()
    set_q(agent, torch.from_numpy(q))
    errors = mean_errors(agent, chain.all_sequences(0.8 * policy + 0.1))
    assert errors.abs().max() < 1e-6  # actions are selected in float32


@pytest.mark.parametrize(("policy", "behavior", "bound"), [(0.0, -60.0, 20), (-60.0, 0.0, -20)], ids=["above", "below"])
def test_a_ratio_is_bounded_by_twenty_in_its_logarithm(policy, behavior, bound):
    """pi and mu of the second row's action differ by a factor of e^60."""
    agent = tabular_sac(ActionSpec(0, (2,)), 1, 0.1, n_step=2, sequence_length=2, v_rho=1e30, v_c=1e30)
    _, bias = agent.policy.heads.parameters()
    bias.data[0] = policy
    mu = torch.zeros(2, 1, 2).double()
    mu[1, 0, 0] = behavior
    reward = torch.tensor([[0.5], [math.exp(-bound)]]).double()
    rollout = make_sequence(torch.ones(3, 1, 1).double(), torch.zeros(2, 1, 1).double(), mu, reward=reward)
    _, result = agent.loss(rollout)
    log_pi = bias.detach().log_softmax(-1)
    v = -0.1 * (log_pi.exp() * log_pi).sum().item()
    delta = reward[1].item() - 0.1 * log_pi[0].item() + GAMMA * v - v
    targets = 0.5 + GAMMA * (v + math.exp(bound) * delta), reward[1].item() + GAMMA * v
    assert result.compute_td_errors()[:, 0].tolist() == pytest.approx([max(targets), sum(targets) / 2], rel=1e-9)
