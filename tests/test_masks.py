"""Tests that forbidden actions are not taken, and that their values affect no target, loss or gradient."""

from __future__ import annotations

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
from tests.doubles import collect_ticks, make_components
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


def make_tempted_acer(adapter, **changes):
    """Return an agent with high logits and values of forbidden actions, and a function that lists their gradients.

    Its networks are linear in the situation.
    """
    agent = make_acer(adapter.roles["agent"], Blueprint(), importance_clip=0.5, trust_region_delta=0.0, **changes)
    where, logits = find_forbidden(adapter), agent.family.statistics_size

    def split(network, read=lambda parameter: parameter):
        """Return the weights of logits and values [actions of all branches, situations], or what `read` returns."""
        weight = read(network.heads.linear.weight)
        return weight[:logits], read(network.advantage_head.weight) if network.advantage_head else weight[logits:]

    for network in (agent.policy, agent.average_policy.network):
        if network.advantage_head:
            network.advantage_head = Table(logits)
        with torch.no_grad():
            network.heads.linear.weight.normal_()
            for weight, value in zip(split(network), (TEMPTING, HUGE), strict=True):
                weight[: len(where)].masked_fill_(where, value)
    return agent, where, lambda: split(agent.policy, lambda parameter: parameter.grad)


def make_tempted_reactor(adapter, **changes):
    """Return a Reactor with high logits and values of forbidden combinations, and a function for their gradients.

    Its networks are linear in the situation. The values of a categorical critic are at most `v_max`.
    """
    role = adapter.roles["agent"]
    agent = make_reactor(role, Blueprint(), **changes)
    allowed = find_allowed_statistics(agent, ~find_forbidden(adapter).numpy().T, role.action_spec)
    where, n_actions = torch.from_numpy(~allowed.T), agent.family.statistics_size
    is_scalar = agent.settings.critic == "scalar"

    def split_values(weight: torch.Tensor) -> torch.Tensor:
        """Return the weights of the critic's outputs for each combination [K, outputs, situations]."""
        outputs = 1 if is_scalar else agent.settings.n_atoms
        return weight[-n_actions * outputs :].view(n_actions, outputs, -1)

    for network in (agent.policy, agent.target.network):
        policy, critic = (branch.head.linear.weight for branch in (network.policy, network.critic))
        with torch.no_grad():
            policy.normal_().masked_fill_(where, TEMPTING)
            split_values(critic.normal_())[:, -1].masked_fill_(where, HUGE if is_scalar else TEMPTING)

    def list_gradients():
        policy, critic = (branch.head.linear.weight.grad for branch in (agent.policy.policy, agent.policy.critic))
        return policy, *split_values(critic).unbind(1)

    return agent, where, list_gradients


def collect(adapter, agent, ticks: int) -> Replay:
    """Return a replay with the steps of an agent in so many ticks, restored from its saved state."""
    actor = Actor(make_components(adapter, agent), seed=0)
    replay, restored = (
        Replay(capacity=2000, lanes=LANES, chunk=CHUNK, length=WINDOW, rng=np.random.default_rng(0)) for _ in range(2)
    )
    for _, rollout in collect_ticks(actor, ticks):
        replay.add(rollout)
    restored.restore(replay.state())
    return restored


REACTORS = {
    "categorical": {"v_min": -2.0, "v_max": TEMPTING},
    "scalar": {"critic": "scalar"},
    "truncated importance": {"policy_gradient": "truncated_importance", "importance_clip": 1.0, "critic": "scalar"},
}
CASES = [
    *((make_tempted_acer, kind, {"estimator": name}) for kind in KINDS for name in ("retrace", "vtrace")),
    (make_tempted_acer, "one branch", {"trust_region_space": "probs"}),
    *((make_tempted_reactor, kind, changes) for kind in KINDS for changes in REACTORS.values()),
]


@pytest.mark.parametrize(("make_agent", "kind", "changes"), CASES)
def test_forbidden_actions_are_never_taken_and_their_values_affect_no_loss(make_agent, kind, changes):
    adapter = make_adapter(*KINDS[kind])
    agent, where, list_gradients = make_agent(adapter, rollout_length=CHUNK, gamma=0.9, entropy_coef=0.1, **changes)
    batch = collect(adapter, agent, 60).sample(64).convert(torch.from_numpy)
    assert adapter.restarts == 0  # the environments raise if a forbidden action is taken
    # Replayed actions were taken by an older policy, so their probabilities differ.
    batch.behavior = torch.where(batch.behavior > -1e8, 0.5 * batch.behavior, batch.behavior)
    losses, result = agent.loss(batch)
    sum(losses.values()).backward()
    metrics = {name: value.item() for name, value in result.compute_metrics().items()}
    assert abs(metrics["train/value"]) < 30 and metrics["train/critic_loss"] < 200
    assert metrics["train/entropy"] <= np.log(agent.family.statistics_size)
    assert 0 <= metrics.get("train/kl_to_average", 0) < 20 and metrics.get("train/trust_region_fraction", 1) > 0.1
    assert result.compute_td_errors().max() < 50
    for gradient in list_gradients():
        assert gradient[where].eq(0).all()
        assert gradient[~where].ne(0).any() and gradient.norm() < 100
    agent.act = agent.greedy
    collect(adapter, agent, 60)
    assert adapter.restarts == 0


@pytest.mark.parametrize("algorithm", ["ACER", "REACTOR"])
@pytest.mark.parametrize("name", ["masked/coins", "masked/lights"])
def test_a_run_with_action_noise_takes_no_forbidden_action(name, algorithm):
    source = PROJECT_ENVS / name
    # The simulators raise on a forbidden action, which ends the run, since no restarts are allowed.
    changes = {
        "base_config": {"max_env_restarts": 0, "max_step": 1500, "log_every": 1500, "algorithm": algorithm},
        "acer_config": {"replay_ratio": 1},
        "reactor_config": {"replay_ratio": 1},
        "explorer": {"action_noise": [0.0, 1.0]},
    }
    settings = resolve([("test", read_variant(source / "config.yaml", "default")), ("test", changes)])
    folder = RunFolder.create(name, source, "a", settings.tree)
    assert train(settings, folder, lambda line: None).counters.env_steps >= 1500
    assert not (folder.path / "faults.log").exists()
