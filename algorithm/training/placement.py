"""Where an agent learns and acts, and what the devices of this machine compute in."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

CPU = torch.device("cpu")
BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")  # instructions of x86 and ARM processors, as torch names them


@dataclass(frozen=True)
class Placement:
    """The device of learning with the precision of its networks, and the device of acting (always float32)."""

    learning: torch.device = CPU
    precision: torch.dtype = torch.float32
    acting: torch.device = CPU

    def __str__(self) -> str:
        if self.acting == self.learning:
            return f"learning and acting on {describe_device(self.learning)}"
        return f"learning on {describe_device(self.learning)}, acting on {self.acting}"


def find_accelerator() -> str | None:
    """Return the type of the accelerator that torch can use: cuda, mps, or None."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else None


def is_available(device: torch.device) -> bool:
    """Return whether torch finds this device."""
    if device.type == "cuda":
        return (device.index or 0) < torch.cuda.device_count()
    return device.type != "mps" or torch.backends.mps.is_available()


def has_bfloat16(device: torch.device) -> bool:
    """Return whether a device has instructions for bfloat16: without them torch emulates it, many times slower."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "mps":
        return torch.backends.mps.is_macos_or_newer(14, 0)
    return bool(list_bfloat16_instructions())


def list_bfloat16_instructions() -> list[str]:
    """Return the names of the processor's instructions for bfloat16."""
    if hasattr(torch.cpu, "get_capabilities"):
        capabilities = torch.cpu.get_capabilities()
    else:  # an older torch, which detects those of x86 only
        capabilities = {
            "avx512_bf16": torch.cpu._is_avx512_bf16_supported(),
            "amx_bf16": torch.cpu._is_amx_tile_supported(),
        }
    return [name for name in BFLOAT16 if capabilities.get(name)]


def describe_device(device: torch.device) -> str:
    """Return the name of a device, what it is, and whether it computes in bfloat16."""
    if device.type == "cpu":
        names = ", ".join(list_bfloat16_instructions())
        kind = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, "
        return f"{device} ({kind}{f'bfloat16 by {names}' if names else 'no bfloat16'})"
    kind = f"{torch.cuda.get_device_name(device)}, " if device.type == "cuda" else ""
    return f"{device} ({kind}{'bfloat16' if has_bfloat16(device) else 'no bfloat16'})"
