"""The start of a run, as far as nothing is written; in a process of its own, since a simulator may crash or hang."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np
import torch

from algorithm.agents.agent import Agent
from algorithm.cli.doctor.check import BROKEN, OK, Seen, described
from algorithm.cli.doctor.machine import place_of_runs, size
from algorithm.config.loader import Settings
from algorithm.errors import UserError
from algorithm.runs.make_env import make_adapter, of_unity
from algorithm.runs.memory_budget import Budget, replay_size
from algorithm.runs.run_folder import RunFolder, environment_folder
from algorithm.runs.session import planned
from algorithm.runs.team_builder import make_agent
from algorithm.runs.torch_setup import named_device, placement
from algorithm.specs import Role, of_role
from algorithm.training.placement import CPU, accelerator, describe_device

NUMBERS = 4  # bytes
COPIES = 4  # numbers in a checkpoint for each parameter: itself, its average, and two of the optimizer
BESIDE = 2  # checkpoints beside those that are kept: the best one, and the one that is being written


def try_out(options: dict[str, Any]) -> dict[str, Seen]:
    """Find the device, open the environment and make its agents; what each comes to."""
    ((_, settings),) = planned(argparse.Namespace(**options))
    try:
        seen = {"device": (OK, _device(settings))}
    except UserError as error:
        seen = {"device": (BROKEN, str(error))}
    if of_unity(settings):
        return seen
    folder = RunFolder(environment_folder(options["env"]))
    stage = "environment"
    try:
        with closing(make_adapter(settings, folder, settings.base.n_envs)) as adapter:
            adapter.reset(settings.base.seed)
            seen[stage] = OK, "; ".join(_offers(name, role) for name, role in adapter.roles.items())
            stage = "agent"
            agents = {name: _agent(settings.of(name), folder, role) for name, role in adapter.roles.items()}
            parameters = sum(map(_parameters, agents.values()))
            seen[stage] = OK, f"{settings.base.algorithm} with {parameters:,} parameters"
            stage = "replay"
            bytes_, said = _replays(settings, agents, adapter.roles)
            seen[stage] = OK, said
            stage = "checkpoints"
            seen[stage] = _fits(bytes_ + NUMBERS * COPIES * parameters, settings.base.keep_checkpoints)
    except Exception as error:  # whatever the first thing is that does not work
        seen[stage] = BROKEN, described(error)
    return seen


def _device(settings: Settings) -> str:
    """Return which device learns, for people. Raises UserError if torch does not find it."""
    if settings.base.device != "auto":
        return f"learning on {describe_device(named_device(settings))}"
    if found := accelerator():
        return f"auto: {describe_device(torch.device(found))} for images or a million parameters, otherwise cpu"
    return f"auto: {describe_device(CPU)}"


def _offers(name: str, role: Role) -> str:
    return f"{role.lanes} lanes{of_role(name)}, observes {', '.join(role.obs_specs)}, acts with {role.action_spec}"


def _agent(settings: Settings, folder: RunFolder, role: Role) -> Agent:
    agent = make_agent(settings, folder, role, np.random.default_rng(settings.base.seed))
    if settings.base.precision != "float32":
        placement(settings, agent, role)
    return agent


def _parameters(agent: Agent) -> int:
    return sum(parameter.numel() for parameter in agent.policy.parameters())


def _replays(settings: Settings, agents: Mapping[str, Agent], roles: Mapping[str, Role]) -> tuple[int, str]:
    """The bytes of all replays, and a line. Raises UserError where they do not fit."""
    said: list[str] = []
    budget = Budget(said.append, place_of_runs() if settings.replay.memory_map else None)
    for name, agent in agents.items():
        budget.plan(name, replay_size(settings.of(name).replay, agent, roles[name]))
    return budget.planned, "; ".join(line.removeprefix("replay: ") for line in said)


def _fits(bytes_: int, kept: int) -> Seen:
    """Whether checkpoints of so many bytes fit on the disk, once the replay is full."""
    free, needed = shutil.disk_usage(place_of_runs()).free, bytes_ * (kept + BESIDE)
    if needed > free:
        return BROKEN, (
            f"{kept + BESIDE} of {size(bytes_)} do not fit on the disk, {size(free)} are free: "
            "lower base_config.keep_checkpoints or replay_config.capacity"
        )
    return OK, f"at most {kept + BESIDE} of {size(bytes_)}, {size(free)} are free"
