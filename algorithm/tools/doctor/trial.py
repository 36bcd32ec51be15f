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

from algorithm.cli.commands import make_request
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
from algorithm.runs.run_requests import plan_runs, read_settings
from algorithm.specs import Role
from algorithm.tools.doctor.check import (
    BROKEN,
    MISSING,
    OK,
    TIMEOUT,
    Check,
    Missing,
    SubprocessFailed,
    run_in_subprocess,
)
from algorithm.tools.doctor.installation import (
    find_runs_folder,
    format_size,
    list_extras,
    make_adapter_check,
    make_extra_check,
    make_onnx_check,
)
from algorithm.training.auxiliary_set import AuxiliarySet

BYTES_PER_VALUE = 4  # bytes
VALUES_PER_PARAMETER = 4  # values in a checkpoint: the parameter, its average, two moments of the optimizer
EXTRA_CHECKPOINTS = 2  # in addition to keep_checkpoints: the best checkpoint, and a checkpoint while it is written


STAGES = ("environment", "agent", "replay", "checkpoints")


def list_start_checks(options: argparse.Namespace) -> Iterator[Check]:
    """Yield the checks of the run that the options request. Raises UserError if the settings are not valid."""
    settings = read_settings(make_request(options)).settings
    find = cache(partial(_find_all, vars(options)))  # one trial for all of its checks

    def get_line(name: str) -> str:
        state, line = find().get(name, (MISSING, "not checked, since an earlier check failed"))
        if state == OK:
            return line
        raise {MISSING: Missing, TIMEOUT: TimeoutError}.get(state, UserError)(line)

    extra = settings.base.env_type.casefold().replace("_", "-")
    if extra in list_extras():
        yield make_extra_check(extra).as_required()
    if settings.base.export != "never":
        yield make_extra_check("onnx").as_required()
        yield make_onnx_check().as_required()
    yield Check("device", partial(get_line, "device"))
    environments = Environments(settings, RunFolder(find_environment_folder(options.env)))
    if environments.adapter_class.starts_programs:
        # The adapter raises an error for settings that do not fit, and starts nothing before its first reset.
        environments.open(settings.base.n_envs)
        for check in environments.adapter_class.list_start_checks(environments.config):
            yield make_adapter_check(check).as_required()
    else:
        yield from (Check(name, partial(get_line, name)) for name in STAGES)


def _find_all(options: dict[str, Any]) -> Mapping[str, tuple[str, str]]:
    """Return what `run_trial` returns, in a subprocess."""
    try:
        return run_in_subprocess(f"{__name__}:run_trial", options)
    except TimeoutError as error:
        return {"device": (TIMEOUT, f"the start of a run: {error}")}
    except SubprocessFailed as error:
        return {"device": (BROKEN, f"the start of a run fails: {error}")}


def run_trial(options: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Find the device, then start a run up to the first stage that fails; return state and line of each check."""
    ((_, settings),) = plan_runs(make_request(argparse.Namespace(**options)), lambda line: None)
    environments = Environments(settings, folder := RunFolder(find_environment_folder(options["env"])))
    base = get_agent_settings(settings, DEFAULT_ROLE).base
    findings = [Check("device", partial(_describe_device, base)).find()]
    lines = _start_run(settings, folder, environments)
    for stage in () if environments.adapter_class.starts_programs else STAGES:
        findings.append(Check(stage, lines.__next__).find())
        if findings[-1].state != OK:
            break
    return {finding.name: (finding.state, finding.line) for finding in findings}


def _start_run(settings: Settings, folder: RunFolder, environments: Environments) -> Iterator[str]:
    """Open the environment and build its agents; yield the line of each stage, or raise its error."""
    with closing(environments.open(settings.base.n_envs)) as adapter:
        adapter.reset(settings.base.seed)
        roles = adapter.roles
        yield "; ".join(_describe_role(name, role) for name, role in roles.items())
        own = {name: get_agent_settings(settings, name) for name in roles}
        sets = {name: _make_auxiliaries(own[name], folder, role) for name, role in roles.items()}
        parameters = sum(count_parameters(each.agent.policy) for each in sets.values())
        yield f"{settings.base.algorithm} with {parameters:,} parameters"
        lines: list[str] = []
        budget = MemoryBudget(lines.append, find_runs_folder() if settings.replay.memory_map else None)
        for name, each in sets.items():
            size = compute_agent_replay_size(own[name].replay, each.agent, roles[name], each.n_records)
            budget.reserve(name, size)
        yield "; ".join(line.removeprefix("replay: ") for line in lines)
        checkpoint_bytes = budget.reserved_bytes + BYTES_PER_VALUE * VALUES_PER_PARAMETER * parameters
        yield _check_disk(checkpoint_bytes, settings.base.keep_checkpoints)


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


def _check_disk(checkpoint_bytes: int, kept: int) -> str:
    """Check that checkpoints of this size fit on the disk when the replay is full. Raises UserError."""
    free, count = shutil.disk_usage(find_runs_folder()).free, kept + EXTRA_CHECKPOINTS
    sizes = f"{count} of {format_size(checkpoint_bytes)}"
    if checkpoint_bytes * count > free:
        advice = "lower base_config.keep_checkpoints or replay_config.capacity"
        raise UserError(f"{sizes} do not fit on the disk, {format_size(free)} are free: {advice}")
    return f"at most {sizes}, {format_size(free)} are free"
