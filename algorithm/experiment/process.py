"""The process and the device that a run has."""

from __future__ import annotations

import torch

from algorithm.experiment.errors import UserError
from algorithm.experiment.settings import Settings


def device(settings: Settings) -> torch.device:
    """The device of the settings. Raises UserError where it is not there."""
    name = settings.base.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    found = torch.device(name)
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise UserError(f"base_config.device is {name}, but torch finds no such device; use cpu or auto")
    return found


def prepare_process() -> None:
    """One thread, and memory that is kept.

    Small networks only lose with more threads, and processes beside this one keep their core. Freeing one large block
    that was never touched lets glibc keep up to twice as much: otherwise it hands the pages of every activation back to
    the system and faults them in again (with 6,400 rows, three times the time of a forward pass). Elsewhere it does
    nothing.
    """
    torch.set_num_threads(1)
    torch.empty(31 * 2**20, dtype=torch.uint8)
