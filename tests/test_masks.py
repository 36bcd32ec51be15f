"""Tests that forbidden actions are not taken, and that their values affect no target, loss or gradient."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from torch import nn

from algorithm.adapters.gym import GymAdapter
from algorithm.config.loader import resolve
from algorithm.config.yaml_layers import read_variant
from algorithm.networks import Blueprint
from algorithm.parts.env_folder import PROJECT_ENVS
from algorithm.parts.run_folder import RunFolder
from algorithm.replay import Replay
from algorithm.runs.build import train
from algorithm.training.actor import Actor
from tests.adapters.configs import config
from tests.builders import find_allowed_statistics, make_acer, make_reactor
from tests.doubles import make_components
from tests.guessing import SITUATIONS, Guessing

LANES, CHUNK, WINDOW = 4, 5, 9
HUGE, TEMPTING = 1e6, 50.0
KINDS = {"one branch": ("discrete", "info"), "two branches": ("multi-discrete", "obs")}


class Table(nn.Module):
    """An advantage A(x, a) that is the sum of one value for the action of each branch in each situation."""

    def __init__(self, n_actions: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_actions, SITUATIONS))

    def forward(self, features, actions):
        return ((features @ self.weight.T) * actions).sum(-1)


def find_forbidden(adapter) -> torch.Tensor:
    """Return a boolean mask of forbidden actions [actions of all branches, situations]."""
    env, columns = adapter.env.envs[0].unwrapped, []
    for env.situation_to_answer in range(SITUATIONS):
        columns.append(env._mask() == 0)
    return torch.from_numpy(np.stack(columns, -1))


def make_adapter(kind, masks) -> GymAdapter:
    """Return environments with forbidden actions, which raise an error if one is taken."""
    return GymAdapter(config(Guessing, LANES, {"kind": kind, "masks": masks, "vectorization_mode": "sync"}))


def make_tempted_agent(adapter, **changes):
    """Return an agent with high logits and values of forbidden actions, and a mask of the weights they depend on.

    Its networks are linear in the situation.
    """
    agent = make_acer(
        adapter.roles["agent"],
        Blueprint(),
        rollout_length=CHUNK,
        gamma=0.9,
        importance_clip=0.5,
        entropy_coef=0.1,
        **changes,
    )
    where, logits = find_forbidden(adapter), agent.family.statistics_size
    for network in (agent.policy, agent.average_policy.network):
        if network.advantage_head:
            network.advantage_head = Table(logits)
        with torch.no_grad():
            weight = network.heads.linear.weight
            weight.normal_()
            values = network.advantage_head.weight if network.advantage_head else weight[logits:]
            weight[:logits].masked_fill_(where, TEMPTING)
            values.masked_fill_(where, HUGE)
    return agent, where


def make_tempted_reactor(adapter, **changes):
    """Return a Reactor with high logits and values of forbidden combinations, and a mask of these [K, situations].

    Its networks are linear in the situation. The values of a categorical critic are at most `v_max`.
    """
    role = adapter.roles["agent"]
    agent = make_reactor(role, Blueprint(), rollout_length=CHUNK, gamma=0.9, entropy_coef=0.1, **changes)
    allowed = find_allowed_statistics(agent, ~find_forbidden(adapter).numpy().T, role.action_spec)
    where = torch.from_numpy(~allowed.T)
    for network in (agent.policy, agent.target.network):
        with torch.no_grad():
            for head in (network.policy.head, network.critic.head):
                head.linear.weight.normal_()
            network.policy.head.linear.weight.masked_fill_(where, TEMPTING)
            values = split_values(agent, network.critic.head.linear.weight)
            values[:, -1].masked_fill_(where, HUGE if agent.settings.critic == "scalar" else TEMPTING)
    return agent, where


def split_values(agent, weight: torch.Tensor) -> torch.Tensor:
    """Return the weights, or their gradient, of the critic's outputs for each combination [K, outputs, situations]."""
    actions = agent.family.statistics_size
    outputs = agent.settings.n_atoms if agent.settings.critic == "categorical" else 1
    return weight[-actions * outputs :].view(actions, outputs, -1)


def collect(adapter, agent, ticks: int) -> Replay:
    """Return a replay with the steps of an agent in so many ticks."""
    actor = Actor(make_components(adapter, agent), seed=0)
    replay = Replay(capacity=2000, lanes=LANES, chunk=CHUNK, length=WINDOW, rng=np.random.default_rng(0))
    for _ in range(ticks):
        for _, rollout in actor.collect():
            replay.add(rollout)
    return replay


def save_and_restore(replay: Replay) -> Replay:
    """Return a copy of a replay, restored from its saved state."""
    file = io.BytesIO()
    np.savez(file, **replay.state())
    file.seek(0)
    restored = Replay(capacity=2000, lanes=LANES, chunk=CHUNK, length=WINDOW, rng=np.random.default_rng(1))
    with np.load(file) as arrays:
        restored.restore(dict(arrays))
    return restored


CASES = [
    (kind, masks, {"estimator": estimator}) for kind, masks in KINDS.values() for estimator in ("retrace", "vtrace")
]
CASES += [("discrete", "info", {"trust_region_space": "probs"})]


@pytest.mark.parametrize("restored", [False, True], ids=["replay", "checkpoint"])
@pytest.mark.parametrize(("kind", "masks", "changes"), CASES)
def test_the_values_of_forbidden_actions_affect_no_loss(kind, masks, changes, restored):
    adapter = make_adapter(kind, masks)
    agent, where = make_tempted_agent(adapter, trust_region_delta=0.0, **changes)
    replay = collect(adapter, agent, 60)
    assert adapter.restarts == 0
    batch = (save_and_restore(replay) if restored else replay).sample(64).convert(torch.from_numpy)
    # Replayed actions were taken by an older policy, so their probabilities differ.
    batch.behavior = torch.where(batch.behavior > -1e8, 0.5 * batch.behavior, batch.behavior)
    losses, report = agent.loss(batch)
    losses["acer"].backward()
    metrics = {name: value.item() for name, value in report.compute_metrics().items()}
    assert abs(metrics["train/value"]) < 20 and metrics["train/critic_loss"] < 200
    assert metrics["train/entropy"] <= np.log(agent.family.statistics_size) and 0 <= metrics["train/kl_to_average"] < 20
    assert metrics["train/trust_region_fraction"] > 0.1
    assert report.compute_td_errors().max() < 50

    gradients = [agent.policy.heads.linear.weight.grad.split([len(where), agent.critic.n_values])[0]]
    gradients += [
        agent.policy.advantage_head.weight.grad if kind != "discrete" else agent.policy.heads.linear.weight.grad[3:]
    ]
    for gradient in gradients:
        assert gradient[where].eq(0).all()
        assert gradient[~where].ne(0).any() and gradient.norm() < 100


REACTORS = {
    "categorical": {"v_min": -2.0, "v_max": TEMPTING},
    "scalar": {"critic": "scalar"},
    "truncated importance": {"policy_gradient": "truncated_importance", "importance_clip": 1.0, "critic": "scalar"},
}


@pytest.mark.parametrize("changes", REACTORS.values(), ids=REACTORS)
@pytest.mark.parametrize(("kind", "masks"), KINDS.values(), ids=KINDS)
def test_the_values_of_forbidden_combinations_affect_no_loss_of_reactor(kind, masks, changes):
    adapter = make_adapter(kind, masks)
    agent, where = make_tempted_reactor(adapter, **changes)
    batch = save_and_restore(collect(adapter, agent, 60)).sample(64).convert(torch.from_numpy)
    assert adapter.restarts == 0
    batch.behavior = torch.where(batch.behavior > -1e8, 0.5 * batch.behavior, batch.behavior)
    losses, report = agent.loss(batch)
    losses["reactor"].backward()
    metrics = {name: value.item() for name, value in report.compute_metrics().items()}
    assert abs(metrics["train/value"]) < 30 and metrics["train/critic_loss"] < 200
    assert metrics["train/entropy"] <= np.log(agent.family.statistics_size)
    assert report.compute_td_errors().max() < 50
    policy, critic = (branch.head.linear.weight.grad for branch in (agent.policy.policy, agent.policy.critic))
    for gradient in (policy.unsqueeze(1), split_values(agent, critic)):
        assert gradient.movedim(1, -1)[where].eq(0).all()
        assert gradient.movedim(1, -1)[~where].ne(0).any() and gradient.norm() < 100


@pytest.mark.parametrize("make_agent", [make_tempted_agent, make_tempted_reactor])
@pytest.mark.parametrize(("kind", "masks"), KINDS.values(), ids=KINDS)
def test_forbidden_actions_are_never_taken(kind, masks, make_agent):
    adapter = make_adapter(kind, masks)
    agent, _ = make_agent(adapter)
    collect(adapter, agent, 500)
    agent.act = agent.greedy
    collect(adapter, agent, 100)
    assert adapter.restarts == 0


@pytest.mark.parametrize("algorithm", ["ACER", "REACTOR"])
@pytest.mark.parametrize("name", ["masked/coins", "masked/lights"])
def test_a_run_with_action_noise_takes_no_forbidden_action(name, algorithm):
    source = PROJECT_ENVS / name
    # The simulators raise on a forbidden action, which ends the run, since no restarts are allowed.
    base = {"max_env_restarts": 0, "max_step": 1500, "log_every": 1500}
    layers = [
        read_variant(source / "config.yaml", "default"),
        {
            "base_config": {**base, "algorithm": algorithm},
            "acer_config": {"replay_ratio": 1},
            "reactor_config": {"replay_ratio": 1},
        },
    ]
    settings = resolve([("test", layer) for layer in (*layers, {"explorer": {"action_noise": [0.0, 1.0]}})])
    folder = RunFolder.create(name, source, "a", settings.tree)
    assert train(settings, folder, lambda line: None).counters.env_steps >= 1500
    assert not (folder.path / "faults.log").exists()
