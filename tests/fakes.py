"""Fake implementations of every contract, each with features that the rest of the program must support."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.adapters.adapter import Adapter
from algorithm.agents.agent import Agent, DataSchedule, LossResult, ParameterGroup, RewardTransform, unroll
from algorithm.agents.metrics import mean_weights, td_error_stats, weighted_means
from algorithm.agents.settings import AgentSettings
from algorithm.auxiliaries.auxiliary import Auxiliary, AuxiliaryInputs
from algorithm.auxiliaries.settings import AuxiliarySettings
from algorithm.distributions import CategoricalFamily
from algorithm.exploration.explorer import Explorer
from algorithm.losses import squared_error
from algorithm.networks import ActorCritic, Blueprint, RunningMoments, TargetNetwork
from algorithm.rollout import Decision, Rollout, Step
from algorithm.specs import ActionSpec, ObsSpec, Role

LATE = 25  # the tick at which the role `late` appears
MORE = {3: 1, 20: 1, 41: 2}  # the number of lanes that are added, by tick
THREE_ACTIONS = {"obs": ObsSpec((2,))}, ActionSpec(branches=(3,))


class FakeAdapter(Adapter):
    """An adapter whose state is the number of ticks, and a random generator.

    A lane exists from a tick on (`starts`: {role: the first tick of each of its lanes}), and a role from the first of
    its lanes on. Observations are random, and episodes truncated after `length` steps; their first step has no reward.
    """

    length = 5

    def __init__(self, specs: Mapping[str, tuple[dict[str, ObsSpec], ActionSpec]], starts: Mapping[str, list[int]]):
        self.specs, self.starts = specs, {role: np.array(ticks) for role, ticks in starts.items()}
        self._set_tick(0)

    def reset(self, seed):
        self.rng = np.random.default_rng(seed)
        self._set_tick(0)
        return self._make_steps({})

    def step(self, actions):
        self._set_tick(self.tick + 1)
        return self._make_steps(actions)

    def state(self):
        return {"tick": self.tick, "generator": self.rng.bit_generator.state}

    def restore(self, state):
        self.rng = np.random.default_rng()
        self.rng.bit_generator.state = state["generator"]
        self._set_tick(state["tick"])

    def close(self):
        pass

    def _set_tick(self, tick):
        self.tick = tick
        lanes = {name: int((starts <= tick).sum()) for name, starts in self.starts.items()}
        self.roles = {name: Role(lanes[name], *specs) for name, specs in self.specs.items() if lanes[name]}

    def _make_steps(self, actions):
        return {name: self._make_step(name, role, actions.get(name)) for name, role in self.roles.items()}

    def _make_step(self, name, role, action):
        age = (self.tick - self.starts[name][: role.lanes]) % (self.length + 1)
        reward = np.where(age == 0, 0, self._find_rewards(role.lanes, action)).astype(np.float32)
        return Step(
            lane=np.arange(role.lanes),
            obs={key: self._observe((role.lanes, *spec.shape)) for key, spec in role.obs_specs.items()},
            first=age == 0,
            is_bootstrap_row=age == self.length,
            reward=reward,
            alive=np.ones(role.lanes, bool),
        )

    def _observe(self, shape):
        return self.rng.random(shape, dtype=np.float32)

    def _find_rewards(self, lanes, action):
        return self.rng.random(lanes)


class TwoRoles(FakeAdapter):
    """An adapter with two roles of different shapes; `late` appears after `LATE` ticks."""

    def __init__(self, config):
        late = {"sight": ObsSpec((4,))}, ActionSpec(branches=(2,))
        super().__init__({"early": THREE_ACTIONS, "late": late}, {"early": [0] * config.n_envs, "late": [LATE]})


class Pair(FakeAdapter):
    """An adapter with two roles of the same shapes; lane k of both are a team."""

    def __init__(self, config):
        starts = [0] * config.n_envs
        super().__init__({"left": THREE_ACTIONS, "right": THREE_ACTIONS}, {"left": starts, "right": starts})

    def _make_step(self, name, role, action):
        step = super()._make_step(name, role, action)
        return replace(step, group=step.lane)


class Skipping(Adapter):
    """An adapter in which lane k requests an action at every (k + 1)-th tick only.

    The observation of a lane is the number of its decisions in this episode.
    """

    def __init__(self, config):
        self.roles = {"agent": Role(config.n_envs, {"obs": ObsSpec((1,))}, ActionSpec(branches=(2,)))}
        self.age = np.zeros(config.n_envs, np.int64)

    def reset(self, seed):
        self.tick = 0
        self.age[:] = 0
        return {"agent": self._make_step(np.arange(len(self.age)))}

    def step(self, actions):
        self.tick += 1
        deciding = np.flatnonzero(self.tick % (np.arange(len(self.age)) + 1) == 0)
        self.age[deciding] = (self.age[deciding] + 1) % 7
        return {"agent": self._make_step(deciding)}

    def state(self):
        return {"tick": self.tick, "age": self.age.tolist()}

    def restore(self, state):
        self.tick, self.age[:] = state["tick"], state["age"]

    def close(self):
        pass

    def _make_step(self, lane):
        age = self.age[lane]
        first = age == 0
        alive = ~first | (self.tick == 0)
        obs = {"obs": age[:, None].astype(np.float32)}
        none = np.zeros(len(lane), bool)
        reward = np.full(len(lane), self.tick > 0, np.float32)
        return Step(lane=lane, obs=obs, first=first, is_bootstrap_row=none, reward=reward, alive=alive)


class Growing(FakeAdapter):
    """An adapter that adds lanes at the ticks of `MORE`."""

    def __init__(self, config):
        added = [tick for tick, count in MORE.items() for _ in range(count)]
        super().__init__({"agent": THREE_ACTIONS}, {"agent": [0] * config.n_envs + added})


class AnyAction(FakeAdapter):
    """An adapter with the actions (continuous, branches) and the observations (shape) that `env_args` describe.

    The reward of a step is the sum of the action.
    """

    length = 4

    def __init__(self, config):
        spec = ActionSpec(config.args.get("continuous", 0), tuple(config.args.get("branches", ())))
        obs_specs = {"obs": ObsSpec(tuple(config.args.get("shape", (2,))))}
        super().__init__({"agent": (obs_specs, spec)}, {"agent": [0] * config.n_envs})

    def _observe(self, shape):
        return 3 + self.rng.standard_normal(shape, dtype=np.float32)

    def _find_rewards(self, lanes, action):
        return 0.0 if action is None else action.sum(-1)


class RunningSum(nn.Module):
    """A memory without parameters that sums the features of the episode."""

    def __init__(self, size: int):
        super().__init__()
        self.size = self.state_size = size

    def step(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return features + memory, features + memory

    def unroll(self, features: Tensor, first: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        outputs = []
        for row, is_first in zip(features, first, strict=True):
            memory = row + torch.where(is_first.unsqueeze(-1), torch.zeros_like(memory), memory)
            outputs.append(memory)
        return torch.stack(outputs), memory


@dataclass(frozen=True)
class TwoGroupsSettings(AgentSettings):
    """Settings of `TwoGroups`: none, its constants are in the code."""

    uses_replay, replay_ratio = True, 1.5


class TwoGroups(Agent):
    """An agent with a parameter group each for policy and critic, with different learning rates and optimizers."""

    Settings = TwoGroupsSettings

    def __init__(self, settings: TwoGroupsSettings, blueprint: Blueprint, role: Role, rng: np.random.Generator):
        actions = role.action_spec.branches[0]
        self.family = CategoricalFamily(actions)
        self.policy = ActorCritic(blueprint, role.obs_specs, actions, 1)
        self.critic = ActorCritic(blueprint, role.obs_specs, 1, actions)
        self.target = TargetNetwork(self.critic, ActorCritic(blueprint, role.obs_specs, 1, actions))
        shared = {"optimizer_epsilon": 1e-6, "learning_rate_schedule": "linear", "max_grad_norm": 1.0}
        adam = {"optimizer": "adam", "optimizer_decay": 0.999, "epsilon_inside": False}
        rmsprop = {"optimizer": "rmsprop", "optimizer_decay": 0.99, "epsilon_inside": True}
        self.groups = {
            "policy": ParameterGroup(module=self.policy, learning_rate=1e-3, **shared, **adam),
            "critic": ParameterGroup(module=self.critic, learning_rate=1e-2, **shared, **rmsprop),
        }
        self.target_networks = {"target": self.target}
        self.schedule = DataSchedule(
            rollout_length=8,
            sequence_length=12,
            batch_size=4,
            replay_ratio=1.5,
            replay_count_distribution="fixed",
            learning_starts=32,
        )
        self.reward_transform = RewardTransform(scale=1.0, clip=1.0, reward_normalization=None, gamma=0.9)
        self.rng = rng

    def loss(self, rollout: Rollout):
        features = unroll(self.policy.torso, rollout)
        policy = self.policy.heads(features)[..., :-1].log_softmax(-1)
        q, target_q = (
            network.heads(unroll(network.torso, rollout))[..., 1:] for network in (self.critic, self.target.network)
        )
        action = rollout.raw_action.long()
        v = (policy.exp() * target_q).sum(-1).detach()
        target = rollout.reward + 0.9 * rollout.alive * v[1:]
        weights = mean_weights(rollout.valid, rollout.weight)
        error = squared_error(target, q[:-1].gather(-1, action).squeeze(-1))
        advantage = (target - v[:-1]) * policy[:-1].gather(-1, action).squeeze(-1)
        losses = {"policy": -(weights * advantage).sum(), "critic": (weights * error).sum()}
        return losses, LossResult(
            lambda: weighted_means(weights, {"train/critic_loss": error}),
            lambda: td_error_stats(rollout.valid, error.detach()),
            features,
        )

    def update_targets(self, update):
        self.target.polyak_update(0.05)


@dataclass(frozen=True, kw_only=True)
class DistillationSettings(AuxiliarySettings):
    learning_rate: float = 3e-3
    max_grad_norm: float = 1.0
    weight: float = 0.5


class Distillation(Auxiliary):
    """An auxiliary that predicts the output of its moving average, with the error as an extra reward."""

    Settings, shapes_features = DistillationSettings, True

    def __init__(self, settings):
        super().__init__(settings)
        self.reward_weight = settings.weight

    def build(self, agent, role):
        torso = agent.policy.torso
        self.module = nn.ModuleDict({"student": nn.Linear(torso.size, 4), "rewards": RunningMoments()})
        self.teacher = TargetNetwork(self.module["student"], nn.Linear(torso.size, 4))
        return self.module

    def make_target_networks(self):
        return {"teacher": self.teacher}

    def _error(self, features: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.teacher.network(features) + 0.1
        return (self.module["student"](features) - target).square().mean(-1)

    def reward(self, inputs: AuxiliaryInputs):
        return self._error(inputs.features)[:-1]

    def loss(self, inputs: AuxiliaryInputs):
        assert inputs.encode({k: v[0] for k, v in inputs.rollout.obs.items()}).shape[0] == len(inputs.rollout.lane)
        return (inputs.rollout.same_episode * self._error(inputs.features)[:-1]).mean(), {}

    def observe(self, rollout: Rollout):
        self.module["rewards"].merge(torch.from_numpy(rollout.reward[rollout.valid]))

    def update_targets(self):
        self.teacher.polyak_update(0.1)


class Mixture(Explorer):
    """An explorer that takes a uniform action with probability `epsilon`, and stores the mixture as behavior."""

    def __init__(self, role: Role, epsilon: float):
        self.epsilon = epsilon

    def act(self, agent, step, memory):
        decision = agent.act(step, memory)
        probs = np.exp(decision.behavior - decision.behavior.max(-1, keepdims=True))
        probs /= probs.sum(-1, keepdims=True)
        mixture = (1 - self.epsilon) * probs + self.epsilon / probs.shape[-1]
        behavior = np.log(mixture).astype(np.float32)
        family = CategoricalFamily(probs.shape[-1])
        sample = family.sample(behavior, agent.rng)
        return Decision(raw_action=sample, action=family.to_action(sample), behavior=behavior, memory=decision.memory)
