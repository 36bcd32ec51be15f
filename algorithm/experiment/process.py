"""The process and the device that a run has."""

from __future__ import annotations

import torch

from algorithm.experiment.errors import UserError
from algorithm.experiment.settings import Settings
from algorithm.loop.placement import Placement


def device(settings: Settings) -> torch.device:
    """The device of the settings. Raises UserError where it is not there."""
    name = settings.base.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    found = torch.device(name)
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise UserError(f"base_config.device is {name}, but torch finds no such device; use cpu or auto")
    return found


def placement(settings: Settings) -> Placement:
    """Where learning and acting run. Raises UserError for a precision that the device does not have."""
    learning = device(settings)
    if settings.base.precision == "bfloat16" and learning.type == "cuda" and not _has_bfloat16(learning):
        name = torch.cuda.get_device_name(learning)
        raise UserError(f"base_config.precision is bfloat16, which {name} does not compute in; use float32")
    return Placement(learning, getattr(torch, settings.base.precision), learning)


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
