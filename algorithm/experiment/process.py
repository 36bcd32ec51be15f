"""The process and the device that a run has."""

from __future__ import annotations

import torch

from algorithm.agents.agent import Agent
from algorithm.experiment.errors import UserError
from algorithm.experiment.settings import Settings
from algorithm.loop.placement import CPU, Placement
from algorithm.specs import Role

SMALL = 1_000_000  # parameters


def device(settings: Settings) -> torch.device:
    """The device of the settings. Raises UserError where it is not there."""
    name = settings.base.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    found = torch.device(name)
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise UserError(f"base_config.device is {name}, but torch finds no such device; use cpu or auto")
    return found


def placement(settings: Settings, agent: Agent, role: Role) -> Placement:
    """Where learning and acting run. Raises UserError for a precision that the device does not have."""
    base, learning = settings.base, device(settings)
    if base.precision == "bfloat16" and learning.type == "cuda" and not _has_bfloat16(learning):
        name = torch.cuda.get_device_name(learning)
        raise UserError(f"base_config.precision is bfloat16, which {name} does not compute in; use float32")
    return Placement(learning, getattr(torch, base.precision), acting_device(settings, agent, role))


def acting_device(settings: Settings, agent: Agent, role: Role) -> torch.device:
    """Where an agent acts: the device of the settings, or the processor."""
    act_on = settings.base.act_on
    on_cpu = act_on == "cpu" or (act_on == "auto" and _small(agent, role))
    return CPU if on_cpu else device(settings)


def _small(agent: Agent, role: Role) -> bool:
    """Whether a few rows cost a processor less than a device takes to begin: few parameters and no images."""
    images = any(len(spec.shape) > 2 for spec in role.obs_specs.values())
    return not images and sum(parameter.numel() for parameter in agent.policy.parameters()) < SMALL


def _has_bfloat16(device: torch.device) -> bool:
    with torch.cuda.device(device):
        return torch.cuda.is_bf16_supported(including_emulation=False)


def prepare_process() -> None:
    """One thread, and memory that is kept.

    Small networks only lose with more threads, and processes beside this one keep their core. Freeing one large block
    that was never touched lets glibc keep up to twice as much: otherwise it hands the pages of every activation back to
    the system and faults them in again (with 6,400 rows, three times the time of a forward pass). Elsewhere it does
    nothing.
    """
    torch.set_num_threads(1)
    torch.empty(31 * 2**20, dtype=torch.uint8)
