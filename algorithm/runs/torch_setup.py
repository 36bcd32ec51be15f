"""The process and the devices of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from algorithm.agents.agent import Agent
from algorithm.config.loader import Settings
from algorithm.errors import UserError
from algorithm.specs import Role
from algorithm.training.placement import CPU, Placement, describe_device, find_accelerator, has_bfloat16, is_available

SMALL_PARAMETERS = 1_000_000  # parameters


def choose_device(settings: Settings, agent: Agent, role: Role) -> torch.device:
    """Return the device on which an agent learns. Raises UserError if torch does not find it."""
    if settings.base.device == "auto":
        return CPU if _is_small(agent, role) else torch.device(find_accelerator() or CPU)
    return get_named_device(settings)


def get_named_device(settings: Settings) -> torch.device:
    """Return the device that the settings name. Raises UserError if torch does not find it."""
    name = settings.base.device
    found = torch.device(name)
    if not is_available(found):
        raise UserError(f"base_config.device is {name}, but torch finds no such device; use cpu or auto")
    return found


def choose_placement(settings: Settings, agent: Agent, role: Role) -> Placement:
    """Return where learning and acting run. Raises UserError for a precision that the device only emulates."""
    precision, learning = settings.base.precision, choose_device(settings, agent, role)
    if precision == "bfloat16" and not has_bfloat16(learning):
        raise UserError(
            f"base_config.precision is bfloat16, which {describe_device(learning)} only emulates, several times "
            "slower than float32: use float32, or bfloat16_forced to emulate it"
        )
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    return Placement(learning, dtype, choose_acting_device(settings, agent, role))


def choose_acting_device(settings: Settings, agent: Agent, role: Role) -> torch.device:
    """Return where an agent acts: the device of the settings, or the processor."""
    inference_device = settings.base.inference_device
    on_cpu = inference_device == "cpu" or (inference_device == "auto" and _is_small(agent, role))
    return CPU if on_cpu else choose_device(settings, agent, role)


def _is_small(agent: Agent, role: Role) -> bool:
    """Whether a few rows cost a processor less than a device takes to begin: few parameters and no images."""
    images = any(len(spec.shape) > 2 for spec in role.obs_specs.values())
    return not images and sum(parameter.numel() for parameter in agent.policy.parameters()) < SMALL_PARAMETERS


def configure_torch() -> None:
    """One thread, and memory that is kept.

    Small networks only lose with more threads, and processes beside this one keep their core. Freeing one large block
    that was never touched lets glibc keep up to twice as much: otherwise it hands the pages of every activation back to
    the system and faults them in again (with 6,400 rows, three times the time of a forward pass). Elsewhere it does
    nothing.
    """
    torch.set_num_threads(1)
    torch.empty(31 * 2**20, dtype=torch.uint8)


@contextmanager
def preserve_working_directory() -> Iterator[None]:
    """Return to the working directory at the end of the block, in which an environment may leave it."""
    directory = Path.cwd()
    try:
        yield
    finally:
        os.chdir(directory)
