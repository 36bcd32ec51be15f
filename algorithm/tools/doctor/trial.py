"""Checks of the start of a run, without writing files; in a subprocess, since a simulator may crash or hang."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from algorithm.config.loader import Settings
from algorithm.config.sections import BaseConfig
from algorithm.errors import UserError
from algorithm.networks.precision import CPU
from algorithm.parts.components_builder import (
    MemoryBudget,
    compute_agent_replay_size,
    get_agent_settings,
    make_agent,
    make_auxiliaries,
)
from algorithm.parts.make_env import Environments
from algorithm.parts.network_record import count_parameters
from algorithm.parts.run_folder import RunFolder, find_environment_folder
from algorithm.parts.torch_setup import choose_placement, describe_device, find_accelerator, get_named_device
from algorithm.program import DEFAULT_ROLE, role_suffix
from algorithm.runs.commands import make_request
from algorithm.runs.run_requests import plan_runs
from algorithm.specs import Role
from algorithm.tools.doctor.check import (
    BROKEN,
    MISSING,
    OK,
    TIMEOUT,
    Check,
    Outcome,
    SubprocessFailed,
    describe_error,
    run_in_subprocess,
)
from algorithm.tools.doctor.machine import find_runs_folder, format_size
from algorithm.tools.doctor.requirements import list_extras, make_adapter_check, make_extra_check, make_onnx_check
from algorithm.training.auxiliary_set import AuxiliarySet

BYTES_PER_VALUE = 4  # bytes
VALUES_PER_PARAMETER = 4  # values in a checkpoint: the parameter, its average, two moments of the optimizer
EXTRA_CHECKPOINTS = 2  # in addition to keep_checkpoints: the best checkpoint, and a checkpoint while it is written


def list_start_checks(options: argparse.Namespace) -> Iterator[Check]:
    """Yield the checks of the run that the options request. Raises UserError if the settings are not valid."""
    ((_, settings),) = plan_runs(make_request(options))
    read_outcomes = cache(partial(_read_outcomes, vars(options)))  # one trial for all of its checks

    def get_outcome(name: str) -> Outcome:
        return read_outcomes().get(name, (MISSING, "not checked, since an earlier check failed"))

    extra = settings.base.env_type.casefold().replace("_", "-")
    if extra in list_extras():
        yield make_extra_check(extra).as_required()
    if settings.base.export != "never":
        yield make_extra_check("onnx").as_required()
        yield make_onnx_check().as_required()
    yield Check("device", partial(get_outcome, "device"))
    environments = Environments(settings, RunFolder(find_environment_folder(options.env)))
    if environments.adapter_class.starts_programs:
        # The adapter raises an error for settings that do not fit, and starts nothing before its first reset.
        environments.open(settings.base.n_envs)
        for check in environments.adapter_class.list_start_checks(environments.config):
            yield make_adapter_check(check).as_required()
    else:
        for name in ("environment", "agent", "replay", "checkpoints"):
            yield Check(name, partial(get_outcome, name))


def _read_outcomes(options: dict[str, Any]) -> Mapping[str, Outcome]:
    """Return what `run_trial` returns, in a subprocess."""
    try:
        return run_in_subprocess(f"{__name__}:run_trial", options)
    except TimeoutError as error:
        return {"device": (TIMEOUT, f"the start of a run: {error}")}
    except SubprocessFailed as error:
        return {"device": (BROKEN, f"the start of a run fails: {error}")}


def run_trial(options: dict[str, Any]) -> dict[str, Outcome]:
    """Find the device, open the environment and build its agents; return the outcome of each check."""
    ((_, settings),) = plan_runs(make_request(argparse.Namespace(**options)))
    try:
        outcomes = {"device": (OK, _describe_device(get_agent_settings(settings, DEFAULT_ROLE).base))}
    except UserError as error:
        outcomes = {"device": (BROKEN, str(error))}
    folder = RunFolder(find_environment_folder(options["env"]))
    environments = Environments(settings, folder)
    if environments.adapter_class.starts_programs:
        return outcomes
    stage = "environment"
    try:
        with closing(environments.open(settings.base.n_envs)) as adapter:
            adapter.reset(settings.base.seed)
            roles = adapter.roles
            outcomes[stage] = OK, "; ".join(_describe_role(name, role) for name, role in roles.items())
            stage = "agent"
            sets = {
                name: _make_auxiliaries(get_agent_settings(settings, name), folder, role)
                for name, role in roles.items()
            }
            parameters = sum(count_parameters(each.agent.policy) for each in sets.values())
            outcomes[stage] = OK, f"{settings.base.algorithm} with {parameters:,} parameters"
            stage = "replay"
            replay_bytes, outcomes[stage] = _check_replays(settings, sets, roles)
            stage = "checkpoints"
            checkpoint_bytes = replay_bytes + BYTES_PER_VALUE * VALUES_PER_PARAMETER * parameters
            outcomes[stage] = _check_disk(checkpoint_bytes, settings.base.keep_checkpoints)
    except Exception as error:  # a simulator or a network may raise anything
        outcomes[stage] = BROKEN, describe_error(error)
    return outcomes


def _describe_device(base: BaseConfig) -> str:
    """Return which device learns, for people. Raises UserError if torch does not find it."""
    if base.device != "auto":
        return f"learning on {describe_device(get_named_device(base.device))}"
    if found := find_accelerator():
        return f"auto: {describe_device(torch.device(found))} for images or a million parameters, otherwise cpu"
    return f"auto: {describe_device(CPU)}"


def _describe_role(name: str, role: Role) -> str:
    return f"{role.lanes} lanes{role_suffix(name)}, observes {', '.join(role.obs_specs)}, acts with {role.action_spec}"


def _make_auxiliaries(settings: Settings, folder: RunFolder, role: Role) -> AuxiliarySet:
    """Build an agent, and its auxiliaries."""
    agent = make_agent(settings, folder, role, np.random.default_rng(settings.base.seed))
    if settings.base.precision != "float32":
        choose_placement(settings.base, agent, role)
    return AuxiliarySet(make_auxiliaries(settings), agent, role)


def _check_replays(
    settings: Settings, sets: Mapping[str, AuxiliarySet], roles: Mapping[str, Role]
) -> tuple[int, Outcome]:
    """Return the bytes of all replays, and their outcome. Raises UserError if they do not fit into memory."""
    lines: list[str] = []
    budget = MemoryBudget(lines.append, find_runs_folder() if settings.replay.memory_map else None)
    for name, each in sets.items():
        replay = get_agent_settings(settings, name).replay
        budget.reserve(name, compute_agent_replay_size(replay, each.agent, roles[name], each.n_records))
    return budget.reserved_bytes, (OK, "; ".join(line.removeprefix("replay: ") for line in lines))


def _check_disk(checkpoint_bytes: int, kept: int) -> Outcome:
    """Check that checkpoints of this size fit on the disk when the replay is full."""
    free, count = shutil.disk_usage(find_runs_folder()).free, kept + EXTRA_CHECKPOINTS
    sizes = f"{count} of {format_size(checkpoint_bytes)}"
    if checkpoint_bytes * count > free:
        advice = "lower base_config.keep_checkpoints or replay_config.capacity"
        return BROKEN, f"{sizes} do not fit on the disk, {format_size(free)} are free: {advice}"
    return OK, f"at most {sizes}, {format_size(free)} are free"
