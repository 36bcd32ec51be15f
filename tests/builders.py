"""Builders for several tests: settings, agents, and records with every kind of episode boundary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, product
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from algorithm.agents.a2c import A2C
from algorithm.agents.acer.agent import Acer
from algorithm.agents.agent import Agent, LossResult
from algorithm.agents.poca import Poca
from algorithm.agents.ppo import Ppo
from algorithm.agents.reactor import Reactor
from algorithm.agents.sac.agent import Sac
from algorithm.agents.settings import A2CSettings, AcerSettings, PocaSettings, PpoSettings, ReactorSettings, SacSettings
from algorithm.distributions import MASKED_LOGIT, FlattenedFamily
from algorithm.networks import Blueprint, Mlp
from algorithm.networks.normalization import find_batch_norms
from algorithm.returns import ESTIMATORS, RewardStream, find_estimators
from algorithm.rollout import Rollout, Step
from algorithm.specs import ACTION_MASK, TEAM, TEAM_ACTION, TEAM_PRESENT, ActionSpec, ObsSpec, Role, select_observed
from algorithm.training.learner import Learner

CONFIG = Path(__file__).parents[1] / "default_config.yaml"
# Every estimator with every kind of critic that it supports.
PAIRS = [
    *((estimator, "action_value") for estimator in ESTIMATORS),
    *((estimator, "state_value") for estimator in find_estimators(for_state_values=True)),
]

NO_STREAMS: Mapping[str, RewardStream] = {}

AnyAgent, AnySettings = TypeVar("AnyAgent", bound=Agent), TypeVar("AnySettings")


def make_autograd_learner(*arguments: Any) -> Learner:
    """Return a learner whose agent computes all gradients by autograd."""
    with patch("algorithm.training.learner.use_manual_passes"):
        return Learner(*arguments)


def perturb(module: nn.Module) -> nn.Module:
    """Give a module other parameters and running statistics than the initial ones, and return it."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        for norm in find_batch_norms([module]):
            norm.running[: norm.size].normal_()
            norm.running[norm.size : 2 * norm.size].uniform_(0.5, 2)
    return module


class PassThrough:
    """A factory of an encoder that returns a vector in its own dtype, so that a network can run in float64."""

    def __call__(self, spec: ObsSpec) -> nn.Module:
        encoder = nn.Identity()
        encoder.size = spec.shape[0]
        return encoder


def read_defaults(section: str) -> dict[str, Any]:
    """Return a section of default_config.yaml."""
    return yaml.safe_load(CONFIG.read_text())[section]


def make_settings(kind: type[AnySettings], section: str, **changes: Any) -> AnySettings:
    """Return the default settings of an algorithm with some changes."""
    return kind(**{**read_defaults(section), **changes})


acer_settings = partial(make_settings, AcerSettings, "acer_config")
sac_settings = partial(make_settings, SacSettings, "sac_config")
a2c_settings = partial(make_settings, A2CSettings, "a2c_config")
ppo_settings = partial(make_settings, PpoSettings, "ppo_config")
poca_settings = partial(make_settings, PocaSettings, "poca_config")
reactor_settings = partial(make_settings, ReactorSettings, "reactor_config")


def make_role(
    lanes: int = 4, size: int = 3, actions: int = 3, spec: ActionSpec | None = None, masked: bool = False
) -> Role:
    """Return a role with one vector observation, and a mask if `masked`; with one discrete branch without a `spec`."""
    spec = spec or ActionSpec(branches=(actions,))
    mask = {ACTION_MASK: ObsSpec((sum(spec.branches),), "uint8")} if masked else {}
    return Role(lanes, {"obs": ObsSpec((size,)), **mask}, spec)


def add_team(role: Role, others: int = 2) -> Role:
    """Return a role whose lanes have observations of `others` other members of a team, as `TeamView` adds them."""
    specs = {f"{TEAM}{name}": ObsSpec((others, *spec.shape)) for name, spec in select_observed(role.obs_specs).items()}
    specs |= {TEAM_PRESENT: ObsSpec((others + 1,)), TEAM_ACTION: ObsSpec((others, role.action_spec.encoded_size))}
    return replace(role, obs_specs={**role.obs_specs, **specs})


def make_agent(
    kind: type[AnyAgent], settings: Any, role: Role | None, blueprint: Blueprint | None, seed: int, **arguments: Any
) -> AnyAgent:
    """Return an agent in float32, as built by a run."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    return kind(settings, blueprint or Blueprint(body=Mlp(16)), role or make_role(), rng, **arguments)


def make_default(
    kind: type[AnyAgent],
    settings: Callable[..., Any],
    role: Role | None = None,
    blueprint: Blueprint | None = None,
    seed: int = 0,
    streams: Mapping[str, RewardStream] | None = None,
    **changes: Any,
) -> AnyAgent:
    """Return an agent with the default settings and some changes."""
    arguments = {} if streams is None else {"streams": streams}
    return make_agent(kind, settings(**changes), role, blueprint, seed, **arguments)


make_acer = partial(make_default, Acer, acer_settings, streams=NO_STREAMS)
make_sac = partial(make_default, Sac, sac_settings)
make_a2c = partial(make_default, A2C, a2c_settings, streams=NO_STREAMS)
make_ppo = partial(make_default, Ppo, ppo_settings, streams=NO_STREAMS)
make_poca = partial(make_default, Poca, poca_settings)
make_reactor = partial(make_default, Reactor, reactor_settings)


def make_exact(agent: AnyAgent, *networks: nn.Module, std: float) -> AnyAgent:
    """Return an agent in float64 whose networks have random parameters, each other ones.

    The encoders of its blueprint have to keep float64, as PassThrough does.
    """
    for network in networks:
        network.double()
        for parameter in network.parameters():
            nn.init.normal_(parameter, std=std)
    return agent


def make_exact_acer(role: Role | None = None, body: Mlp | None = None, seed: int = 0, **changes) -> Acer:
    """Return an agent in float64 whose policy and average policy are far from uniform and from each other."""
    agent = make_acer(role, Blueprint(encoders={"*": PassThrough()}, body=body), seed, **changes)
    return make_exact(agent, agent.policy, agent.average_policy.network, std=0.7)


def make_exact_reactor(
    role: Role | None = None, blueprint: Blueprint | None = None, seed: int = 0, **changes
) -> Reactor:
    """Return an agent in float64 whose policy is far from uniform, and whose target network has other parameters."""
    agent = make_reactor(role, blueprint or Blueprint(encoders={"*": PassThrough()}, body=Mlp(6)), seed, **changes)
    return make_exact(agent, agent.policy, agent.target.network, std=0.5)


def find_allowed_statistics(agent: Agent, allowed: np.ndarray, spec: ActionSpec) -> np.ndarray:
    """Return which of the discrete statistics [..., K] are allowed, given the allowed actions of each branch.

    K is the number of combinations if the policy is one distribution over them.
    """
    if not isinstance(agent.family, FlattenedFamily):
        return allowed
    starts = list(accumulate(spec.branches[:-1], initial=0))
    combinations = product(*map(range, spec.branches))
    return np.stack(
        [
            np.all([allowed[..., start + index] for start, index in zip(starts, indices, strict=True)], 0)
            for indices in combinations
        ],
        -1,
    )


def random_boundaries(rng: np.random.Generator, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return random episode boundaries: first [T+1, B], alive [T, B], is_bootstrap_row [T, B].

    Episodes end by termination and by truncation, each with and without a bootstrap row.
    """
    first = np.zeros((rows + 1, columns), bool)
    alive, is_bootstrap_row = np.ones((rows, columns), bool), np.zeros((rows, columns), bool)
    first[0] = rng.random(columns) < 0.3
    for column in range(columns):
        row = 0
        while row < rows:
            ends, terminates, has_bootstrap_row = rng.random(3) < (0.35, 0.5, 0.5)
            if ends:
                alive[row, column] = not terminates
                row += has_bootstrap_row
                is_bootstrap_row[row : row + 1, column] = has_bootstrap_row
                first[row + 1 : row + 2, column] = True
            row += 1
    return first, alive, is_bootstrap_row


def random_estimator_inputs(
    names: Sequence[str], seed: int, rows: int | None = None, columns: int = 3
) -> dict[str, Any]:
    """Return inputs of an estimator with random boundaries: reward, alive, first, gamma, and the inputs `names`."""
    rng = np.random.default_rng(seed)
    rows = rows or int(rng.integers(1, 14))
    first, alive, final = random_boundaries(rng, rows, columns)
    reward, gamma = np.where(final, 0, rng.normal(size=(rows, columns))), float(rng.uniform(0, 1))
    others = {
        "q_taken": rng.normal(size=(rows, columns)),
        "v": rng.normal(size=(rows + 1, columns)),
        "rho": rng.uniform(0, 2, size=(rows, columns)),
        "trace": rng.uniform(0, 1.5, size=(rows, columns)),
        "trace_lambda": float(rng.uniform(0, 1)),
    }
    return {"reward": reward, "alive": alive, "first": first, "gamma": gamma, **{name: others[name] for name in names}}


def random_rollout(
    rng: np.random.Generator, rows: int = 6, columns: int = 4, size: int = 3, actions: int = 3
) -> Rollout:
    """Return a collected rollout with one lane for each column."""
    first, alive, final = random_boundaries(rng, rows, columns)
    return Rollout(
        obs={"obs": rng.normal(size=(rows + 1, columns, size)).astype(np.float32)},
        first=first,
        raw_action=rng.integers(actions, size=(rows, columns, 1)).astype(np.float32),
        reward=np.where(final, 0, rng.normal(size=(rows, columns))).astype(np.float32),
        alive=alive,
        behavior=rng.normal(size=(rows, columns, actions)).astype(np.float32),
        memory=np.zeros((columns, 0), np.float32),
        lane=np.arange(columns),
        continues_previous=np.ones(columns, bool),
        weight=np.ones(columns, np.float32),
        index=np.full(columns, -1),
        version=np.zeros(columns, np.int64),
    )


def random_rollout_of(agent: Agent, role: Role, seed: int = 0, rows: int = 6) -> Rollout:
    """Return a collected rollout of an agent of any kind of action, in float32, with one lane for each column.

    The behavior is another policy than the agent's. Forbidden actions, if the role has a mask, were not taken.
    """
    rng, spec, columns = np.random.default_rng(seed), role.action_spec, role.lanes
    rollout = random_rollout(rng, rows, columns)
    obs: dict[str, np.ndarray] = dict(rollout.obs)
    behavior = 0.5 * rng.normal(size=(rows, columns, agent.family.statistics_size))
    parts = [rng.normal(size=(rows, columns, spec.continuous))]
    if ACTION_MASK in role.obs_specs:
        allowed = rng.random((rows + 1, columns, sum(spec.branches))) < 0.6
        allowed[..., np.cumsum((0, *spec.branches[:-1]))] = True
        obs[ACTION_MASK] = allowed.astype(np.uint8)
        allowed_statistics = find_allowed_statistics(agent, allowed[:-1], spec)
        behavior[..., -allowed_statistics.shape[-1] :][~allowed_statistics] = MASKED_LOGIT
    else:
        allowed = np.ones((rows + 1, columns, sum(spec.branches)), bool)
    for name in (name for name in role.obs_specs if name.startswith(TEAM)):
        value = rng.normal(size=(rows + 1, columns, *role.obs_specs[name].shape))
        obs[name] = (value < 0.5 if name == TEAM_PRESENT else value).astype(np.float32)
    for start, actions in zip(np.cumsum((0, *spec.branches)), spec.branches, strict=False):
        chances = rng.random((rows, columns, actions)) * allowed[:-1, :, start : start + actions]
        parts.append(chances.argmax(-1)[..., None])
    return replace(
        rollout,
        obs=obs,
        raw_action=np.concatenate(parts, -1).astype(np.float32),
        behavior=behavior.astype(np.float32),
        memory=rng.normal(size=(columns, agent.state_size)).astype(np.float32),
        weight=rng.uniform(0.5, 1.5, columns).astype(np.float32),
    )


def to_float64(rollout: Rollout) -> Rollout:
    """Return the same record as tensors, in float64."""

    def upload(array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.double() if tensor.is_floating_point() else tensor

    return rollout.convert(upload)


def make_step(
    obs: Mapping[str, np.ndarray], lane: Sequence[int] | None = None, first: bool | Sequence[bool] = False
) -> Step:
    """Return a Step of all lanes, or of some, each in the middle of an episode, or at the start of one."""
    lanes = len(next(iter(obs.values())))
    return Step(
        lane=np.arange(lanes) if lane is None else np.asarray(lane),
        obs=obs,
        first=np.broadcast_to(first, lanes).copy(),
        is_bootstrap_row=np.zeros(lanes, bool),
        reward=np.zeros(lanes, np.float32),
        alive=np.ones(lanes, bool),
    )


def compute_gradient(scalar: Tensor, *modules: nn.Module) -> Tensor:
    """Return the gradient of all parameters of some modules as one vector; the graph is kept."""
    parameters = [each for module in modules for each in module.parameters() if each.requires_grad]
    gradients = torch.autograd.grad(scalar, parameters, allow_unused=True, materialize_grads=True, retain_graph=True)
    return torch.cat([gradient.flatten() for gradient in gradients])


def update(learner: Learner, rollout: Rollout) -> LossResult:
    """Make one update of a learner from one batch."""
    result = learner.compute_gradients(rollout)
    learner.apply_gradients()
    return result
