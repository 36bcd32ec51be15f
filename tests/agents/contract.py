"""Tests that every agent must pass: a test class inherits `AgentContract` and names its algorithm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from algorithm.agents.agent import Agent
from algorithm.config.registry import find_class
from algorithm.networks import Blueprint, Gru, Mlp, Vector
from algorithm.networks.precision import Placement
from algorithm.rollout import Rollout
from algorithm.specs import ACTION_MASK, ActionSpec, Role
from algorithm.training.learner import Learner
from tests.builders import (
    add_team,
    compute_gradient,
    make_agent,
    make_role,
    make_step,
    random_rollout_of,
    read_defaults,
    update,
)

LANES, ROWS = 4, 6
KINDS = {
    "discrete": ActionSpec(0, (3,)),
    "branches": ActionSpec(0, (3, 2)),
    "continuous": ActionSpec(2),
    "hybrid": ActionSpec(2, (3, 2)),
}
NETWORKS = {
    "shared": Blueprint({"*": Vector(normalize=True)}, body=Mlp(8)),
    "separate": Blueprint(policy=Mlp(8), critic=Mlp(8)),
    "memory": Blueprint(body=Mlp(8), memory=Gru(6)),
}
OPTIMIZER = {
    "learning_rate_schedule": "linear",
    "learning_rate_final_fraction": 0.25,
    "optimizer": "rmsprop",
    "optimizer_beta1": 0.3,
    "optimizer_decay": 0.7,
    "optimizer_epsilon": 0.01,
    "epsilon_inside": True,
    "learning_rate": 0.5,  # not of SAC, whose groups have their own
    "max_grad_norm": 3.0,
}
REWARDS = {"reward_scale": 2.0, "reward_clip": 3.0, "reward_normalization": "return_std", "gamma": 0.5}
CPU, META = torch.device("cpu"), torch.device("meta")
every_kind = pytest.mark.parametrize("kind", KINDS)
every_network = pytest.mark.parametrize("network", NETWORKS)


def read_state(learner: Learner) -> list[Tensor]:
    return [value for kind in learner.parameters.state().values() for value in kind.values()]


class OneDevice(TorchDispatchMode):
    """A check that all operations of a block are on tensors of one device."""

    def __init__(self, device: str):
        super().__init__()
        self.device, self.n_operations = device, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.n_operations += 1
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                assert tensor.device.type == self.device, f"{function} has a tensor on {tensor.device}"
        return function(*args, **(kwargs or {}))


def iterate_referents(root: object) -> Iterator[object]:
    """Iterate over what closures, records and containers below an object refer to."""
    seen: set[int] = set()
    pending: list[Any] = [root]
    while pending:
        item = pending.pop()
        if id(item) in seen or item is None:
            continue
        seen.add(id(item))
        yield item
        if isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, list | tuple | set):
            pending += item
        elif getattr(item, "__closure__", None):
            pending += [cell.cell_contents for cell in item.__closure__]
        elif hasattr(item, "__dataclass_fields__"):
            pending += [getattr(item, name, None) for name in item.__dataclass_fields__]


class AgentContract:
    """The tests of one algorithm with some settings, each for every kind of action that it supports."""

    algorithm: ClassVar[str]  # its name in the registry
    kinds: ClassVar[tuple[str, ...]] = tuple(KINDS)
    changes: ClassVar[dict[str, Any]] = {}  # settings that are not the defaults
    has_teams = False  # whether the agent learns from the observations of a team
    reads_values = False  # whether an update needs values on the host

    def make(self, kind: str, network: str, masked: bool = False, seed: int = 0, **changes: Any) -> tuple[Agent, Role]:
        if kind not in self.kinds:
            pytest.skip(f"{self.algorithm} has no {kind} actions")
        agent_class, role = find_class("algorithm", self.algorithm), make_role(LANES, spec=KINDS[kind], masked=masked)
        role = add_team(role) if self.has_teams else role
        settings = {**read_defaults(f"{self.algorithm.lower()}_config"), **self.changes, **changes}
        return make_agent(agent_class, agent_class.Settings(**settings), role, NETWORKS[network], seed), role

    def make_rollout(self, agent: Agent, role: Role, seed: int = 0) -> Rollout:
        """Return a collected rollout, or a replayed one as long as the agent's sequences may be."""
        rows = min(ROWS, agent.schedule.sequence_length) if agent.schedule.uses_replay else ROWS
        return random_rollout_of(agent, role, seed, rows)

    @torch.no_grad()
    def make_batch(self, agent: Agent, rollout: Rollout, device: torch.device = CPU) -> Rollout:
        """Return the batch that an agent learns from, given a collected rollout in numpy."""
        batch = rollout.convert(lambda array: torch.from_numpy(array).to(device))
        return batch if agent.schedule.epochs is None else agent.prepare(batch)

    def compute_losses(self, agent: Agent, rollout: Rollout) -> dict[str, Tensor]:
        """Return the losses of a collected rollout in numpy, with the same samples each time."""
        torch.manual_seed(0)
        return dict(agent.loss(self.make_batch(agent, rollout))[0])

    def compute_gradients(self, agent: Agent, rollout: Rollout) -> dict[str, Tensor]:
        losses = self.compute_losses(agent, rollout)
        return {name: compute_gradient(loss, agent.groups[name].module) for name, loss in losses.items()}

    @every_kind
    @every_network
    def test_the_gradient_of_a_loss_reaches_its_own_group_only(self, kind, network):
        agent, role = self.make(kind, network)
        losses = self.compute_losses(agent, self.make_rollout(agent, role))
        assert losses.keys() <= agent.groups.keys()
        for name, loss in losses.items():
            assert isinstance(loss, Tensor) and loss.shape == ()
            for other, group in agent.groups.items():
                gradient = compute_gradient(loss, group.module)
                assert bool(gradient.abs().max() > 0) == (name == other), (name, other)
            for target in agent.target_networks.values():
                assert not compute_gradient(loss, target.network.requires_grad_()).any()

    @every_kind
    def test_rows_that_are_not_valid_change_nothing(self, kind):
        agent, role = self.make(kind, "separate")
        rollout = self.make_rollout(agent, role)
        if len(rollout) == 1:
            rollout = replace(rollout, first=rollout.first.copy(), alive=rollout.alive.copy())
            rollout.first[1, 0], rollout.alive[0, 0] = True, True
        ignored, spec = ~rollout.valid, role.action_spec
        assert 0 < ignored.sum() < ignored.size
        changed = replace(
            rollout,
            reward=np.where(ignored, np.float32(1e3), rollout.reward),
            raw_action=rollout.raw_action.copy(),
            behavior=np.where(ignored[..., None], np.float32(0.3), rollout.behavior),
        )
        changed.raw_action[ignored, : spec.continuous] *= -0.5
        changed.raw_action[ignored, spec.continuous :] = 0
        expected, found = (self.compute_gradients(agent, each) for each in (rollout, changed))
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-6)

    @every_kind
    def test_a_batch_without_valid_rows_has_no_gradient(self, kind):
        agent, role = self.make(kind, "separate")
        rollout = self.make_rollout(agent, role)
        rollout = replace(rollout, first=np.ones_like(rollout.first), alive=np.ones_like(rollout.alive))
        assert not rollout.valid.any()
        assert all(gradient.eq(0).all() for gradient in self.compute_gradients(agent, rollout).values())
        result = agent.loss(self.make_batch(agent, rollout))[1]
        assert result.compute_td_errors().eq(0).all() and result.compute_metrics()["train/critic_loss"] == 0

    @every_kind
    @every_network
    @pytest.mark.parametrize("masked", [False, True], ids=["all actions", "masked"])
    def test_updates_are_finite_and_change_every_group(self, kind, network, masked):
        if masked and not KINDS[kind].branches:
            pytest.skip("no branches")
        agent, role = self.make(kind, network, masked)
        learner = Learner(agent, role, {}, 1000)
        before = learner.parameters.vector.clone()
        for seed in range(2):
            rollout = self.make_rollout(agent, role, seed)
            learner.observe(rollout)
            result = update(learner, rollout if agent.schedule.epochs is None else learner.prepare(rollout))
        assert learner.updates == 2 and learner.skipped_updates == 0
        assert all(value.isfinite() for value in result.compute_metrics().values())
        assert np.isfinite(result.compute_td_errors()).all()
        for part in learner.parameters.group_slices.values():
            assert not torch.equal(learner.parameters.vector[part], before[part])

    @every_kind
    @every_network
    def test_decisions_are_allowed_and_continue_the_memory(self, kind, network):
        masked = bool(KINDS[kind].branches)
        agent, role = self.make(kind, network, masked)
        rollout, spec = self.make_rollout(agent, role), role.action_spec
        obs = {name: value[0] for name, value in rollout.obs.items()}
        step = make_step(obs)
        statistics, memory = agent.policy.act(obs, rollout.memory)
        if memory.size:
            assert np.abs(statistics - agent.policy.act(obs, 0 * rollout.memory)[0]).max() > 1e-6
        agent.rng = np.random.default_rng(3)
        samples = agent.family.sample(statistics, np.random.default_rng(3)), agent.family.mode(statistics)
        for decide, sample in zip((agent.act, agent.greedy), samples, strict=True):
            decision = decide(step, rollout.memory)
            np.testing.assert_array_equal(decision.raw_action, sample)
            np.testing.assert_array_equal(decision.behavior, statistics)
            np.testing.assert_array_equal(decision.memory, memory)
            np.testing.assert_array_equal(decision.action, agent.family.to_action(decision.raw_action))
            assert decision.action.shape == (LANES, spec.size) and decision.action.dtype == np.float32
            for number, start in enumerate(np.cumsum((0, *spec.branches))[:-1]):
                chosen = start + decision.action[:, spec.continuous + number].astype(int)
                assert obs[ACTION_MASK][np.arange(LANES), chosen].all()

    @every_kind
    def test_a_restored_learner_continues_bit_for_bit(self, kind):
        agent, role = self.make(kind, "separate")
        other, _ = self.make(kind, "separate", seed=1)
        learner, restored = (Learner(each, role, {}, 1000) for each in (agent, other))
        for seed in range(4):
            if seed == 2:
                restored.parameters.load(learner.parameters.state())
                restored.restore(learner.state())
            for each in (learner, restored)[: 1 + (seed >= 2)]:
                rollout = self.make_rollout(each.agent, role, seed)
                torch.manual_seed(seed)
                each.observe(rollout)
                update(each, rollout if agent.schedule.epochs is None else each.prepare(rollout))
        assert all(map(torch.equal, read_state(learner), read_state(restored)))
        states = (each.state() for each in (learner, restored))
        assert all(map(torch.equal, *(state.values() for state in states)))

    def test_gradients_of_parts_of_a_batch_have_their_mean(self):
        """Weighted by the numbers of valid rows, as several learners average them."""
        agent, role = self.make("discrete", "separate")
        if agent.merges_moments:
            pytest.skip("normalization over the batch is that of all learners, by `merge_moments`")
        rollout = self.make_rollout(agent, role)
        parts = [rollout.take_columns(np.array(columns)) for columns in ([0, 1, 2], [3])]
        whole, *gradients = (self.compute_gradients(agent, each) for each in (rollout, *parts))
        for name, gradient in whole.items():
            total = sum(part[name] * each.valid.sum() for part, each in zip(gradients, parts, strict=True))
            torch.testing.assert_close(total / rollout.valid.sum(), gradient, rtol=1e-4, atol=1e-6)

    @every_kind
    def test_all_operations_of_an_update_are_on_the_device_of_learning(self, kind):
        if self.reads_values:
            pytest.skip("the update reads values")
        with META:
            agent, role = self.make(kind, "separate")
            learner = Learner(agent, role, {}, 1000, Placement(learning=META, acting=META))
        rollout = self.make_rollout(agent, role)
        batch = self.make_batch(agent, rollout, META)
        with OneDevice("meta") as check:
            losses, result = agent.loss(batch)
            torch.stack(list(losses.values())).sum().backward()
            learner.apply_gradients()
            result.compute_metrics()
            result.compute_td_errors()
        assert check.n_operations > 50

    @every_kind
    def test_a_report_refers_to_no_graph(self, kind):
        """Otherwise the graph of an update would be kept until the next one."""
        agent, role = self.make(kind, "separate")
        _, result = agent.loss(self.make_batch(agent, self.make_rollout(agent, role)))
        result.features = None
        tensors = [item for item in iterate_referents(result) if isinstance(item, Tensor)]
        assert len(tensors) > 2 and all(tensor.grad_fn is None for tensor in tensors)

    def test_the_groups_have_the_optimizer_of_the_settings(self):
        names = {field.name for field in fields(find_class("algorithm", self.algorithm).Settings)}
        settings = {name: value for name, value in OPTIMIZER.items() if name in names}
        agent, _ = self.make("discrete", "separate", **settings)
        groups = [group for group in agent.groups.values() if group.optimizer != "natural"]
        assert groups
        for group in groups:
            assert {name: getattr(group, name) for name in settings} == settings

    def test_the_reward_transform_is_that_of_the_settings(self):
        agent, _ = self.make("discrete", "separate", **REWARDS)
        assert asdict(agent.reward_transform) == {
            "scale": 2.0,
            "clip": 3.0,
            "reward_normalization": "return_std",
            "gamma": 0.5,
            "return_bound": None,
        }
