"""Where an agent learns and acts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Placement:
    """The device of learning with the precision of its networks, and the device of acting (always float32)."""

    learning: torch.device = CPU
    precision: torch.dtype = torch.float32
    acting: torch.device = CPU
