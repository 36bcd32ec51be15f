"""The devices of a run, and the settings of torch."""

from __future__ import annotations

import platform

import torch

from algorithm.agents.agent import Agent
from algorithm.config.sections import BaseConfig
from algorithm.errors import UserError
from algorithm.networks.precision import CPU, Placement
from algorithm.specs import Role

SMALL_PARAMETERS = 1_000_000  # number of parameters below which a network is small
BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")  # instructions of x86 and ARM processors, as torch names them


def choose_placement(base: BaseConfig, agent: Agent, role: Role) -> Placement:
    """Return the devices on which an agent learns and acts, and the precision.

    Raises:
        UserError: torch does not find the device, or the device only emulates the precision.
    """
    precision, learning = base.precision, choose_device(base, agent, role)
    if precision == "bfloat16" and not has_bfloat16(learning):
        raise UserError(
            f"base_config.precision is bfloat16, which {describe_device(learning)} only emulates, several times "
            "slower than float32: use float32, or bfloat16_forced to emulate it"
        )
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    return Placement(learning, dtype, choose_acting_device(base, agent, role))


def choose_device(base: BaseConfig, agent: Agent, role: Role) -> torch.device:
    """Return the device on which an agent learns. Raises UserError if torch does not find it."""
    if base.device == "auto":
        return CPU if _is_small(agent, role) else torch.device(find_accelerator() or CPU)
    return get_named_device(base.device)


def get_named_device(name: str) -> torch.device:
    """Return the device with this name. Raises UserError if torch does not find it."""
    device = torch.device(name)
    is_found = device.type != "mps" or torch.backends.mps.is_available()
    if device.type == "cuda":
        is_found = (device.index or 0) < torch.cuda.device_count()
    if not is_found:
        raise UserError(f"base_config.device is {name}, but torch finds no such device; use cpu or auto")
    return device


def choose_acting_device(base: BaseConfig, agent: Agent, role: Role) -> torch.device:
    """Return the device on which an agent acts: the learning device, or the CPU."""
    on_cpu = base.inference_device == "cpu" or (base.inference_device == "auto" and _is_small(agent, role))
    return CPU if on_cpu else choose_device(base, agent, role)


def _is_small(agent: Agent, role: Role) -> bool:
    """Return whether acting on the CPU is faster than on another device: few parameters and no images."""
    images = any(len(spec.shape) > 2 for spec in role.obs_specs.values())
    return not images and sum(parameter.numel() for parameter in agent.policy.parameters()) < SMALL_PARAMETERS


def find_accelerator() -> str | None:
    """Return the type of the accelerator that torch can use: cuda, mps, or None."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else None


def has_bfloat16(device: torch.device) -> bool:
    """Return whether a device has instructions for bfloat16; without them torch emulates it, many times slower."""
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
    else:  # an older torch, which detects the instructions of x86 only
        capabilities = {
            "avx512_bf16": torch.cpu._is_avx512_bf16_supported(),
            "amx_bf16": torch.cpu._is_amx_tile_supported(),
        }
    return [name for name in BFLOAT16 if capabilities.get(name)]


def describe_device(device: torch.device) -> str:
    """Return the name of a device, its kind, and whether it computes in bfloat16."""
    if device.type == "cpu":
        names = ", ".join(list_bfloat16_instructions())
        kind = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, "
        return f"{device} ({kind}{f'bfloat16 by {names}' if names else 'no bfloat16'})"
    kind = f"{torch.cuda.get_device_name(device)}, " if device.type == "cuda" else ""
    return f"{device} ({kind}{'bfloat16' if has_bfloat16(device) else 'no bfloat16'})"


def describe_placement(placement: Placement) -> str:
    """Return the devices of learning and acting, for people."""
    if placement.acting == placement.learning:
        return f"learning and acting on {describe_device(placement.learning)}"
    return f"learning on {describe_device(placement.learning)}, acting on {placement.acting}"


def configure_torch() -> None:
    """Use one thread, and let the C library keep freed memory.

    More threads slow down small networks, and take the cores of other processes. Freeing one large block that was never
    used makes glibc keep up to twice its size; otherwise glibc returns the pages of activations to the system, and each
    forward pass has to fault them in again (three times its duration with 6,400 rows). Other C libraries ignore it.
    """
    torch.set_num_threads(1)
    torch.empty(31 * 2**20, dtype=torch.uint8)
