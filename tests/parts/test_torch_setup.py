from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from algorithm.config.loader import read_assignments, resolve
from algorithm.errors import UserError
from algorithm.networks import Blueprint, Mlp
from algorithm.networks.precision import Placement
from algorithm.parts.torch_setup import choose_placement, describe_placement, list_bfloat16_instructions
from algorithm.specs import ActionSpec, ObsSpec, Role
from tests.builders import make_acer, make_role

SEEING = Role(2, {"camera": ObsSpec((3, 8, 8), "uint8")}, ActionSpec(branches=(2,)))
NETWORKS = {"small": (make_role(), 8), "large": (make_role(), 1000), "images": (SEEING, 8)}  # role and units


def place(network="small", *assignments) -> Placement:
    """Return the placement of an agent with settings of base_config."""
    role, units = NETWORKS[network]
    agent = make_acer(role, Blueprint(body=Mlp(units, units)))
    settings = resolve([("test", read_assignments(list(assignments), section="base_config."))])
    return choose_placement(settings.base, agent, role)


@pytest.fixture
def no_gpu(monkeypatch):
    """Let torch report no device but the processor."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch):
    """Let torch report two devices, of which the second has bfloat16; they cannot be used."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an old one")
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(selected.append(device.index)))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: selected[-1] == 1)
    selected = []


@pytest.fixture
def apple(monkeypatch, no_gpu):
    """Let torch report the device of Apple; it cannot be used."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: (major, minor) <= (13, 5))


@pytest.fixture(
    params=[{"avx2": True}, {"avx512_bf16": True, "amx_bf16": False}, {"architecture": "arm64", "bf16": True}]
)
def processor(request, monkeypatch):
    """Let torch report the instructions of a processor."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: request.param, raising=False)
    return request.param


# Machine, network and settings, with the devices that learn and act and the precision, or with the error.
PLACEMENTS = """
two_gpus small device=cuda:1 precision=bfloat16 | cuda:1 cpu bfloat16
two_gpus small device=cuda:0 | cuda:0 cpu float32
two_gpus small device=cuda:0 precision=bfloat16_forced | cuda:0 cpu bfloat16
two_gpus small device=cuda:0 precision=bfloat16 | is bfloat16, which cuda:0 (an old one, no bfloat16) only emulates
two_gpus small | cpu cpu float32
two_gpus large | cuda cuda float32
two_gpus images device=auto | cuda cuda float32
two_gpus large device=cuda:0 | cuda:0 cuda:0 float32
two_gpus images device=cuda:0 | cuda:0 cuda:0 float32
two_gpus small device=cuda:0 inference_device=device | cuda:0 cuda:0 float32
two_gpus large device=cuda:0 inference_device=cpu | cuda:0 cpu float32
two_gpus images device=cuda:0 inference_device=CPU | cuda:0 cpu float32
apple small | cpu cpu float32
apple large | mps mps float32
apple images | mps mps float32
apple small device=MPS | mps cpu float32
apple small device=mps precision=bfloat16 | bfloat16, which mps (no bfloat16) only emulates
no_gpu large | cpu cpu float32
no_gpu images inference_device=cpu | cpu cpu float32
no_gpu small inference_device=device | cpu cpu float32
no_gpu small device=mps | but torch finds no such device; use cpu or auto
no_gpu small device=cuda | but torch finds no such device; use cpu or auto
no_gpu small device=gpu | but torch finds no such device; use cpu or auto
two_gpus small device=cuda:7 | but torch finds no such device; use cpu or auto
"""


@pytest.mark.parametrize("row", PLACEMENTS.strip().splitlines())
def test_devices_and_precision_suit_the_machine_and_the_network(row, request):
    given, expected = row.split(" | ")
    machine, network, *assignments = given.split()
    request.getfixturevalue(machine)
    try:
        found = place(network, *assignments)
    except UserError as error:
        assert expected in str(error)
    else:
        assert f"{found.learning} {found.acting} {found.precision}".replace("torch.", "") == expected


def test_bfloat16_needs_a_processor_with_its_instructions_unless_it_is_forced(processor):
    assert place("small", "precision=BFloat16_Forced").precision == torch.bfloat16
    if "avx2" in processor:
        with pytest.raises(UserError, match=r"bfloat16, which cpu \(.*no bfloat16\) only emulates"):
            place("small", "precision=bfloat16")
    else:
        assert place("small", "precision=bfloat16").precision == torch.bfloat16


def test_an_older_torch_reports_the_instructions_of_x86(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert list_bfloat16_instructions() == ["avx512_bf16"]


def test_a_device_is_described_with_its_bfloat16(processor, two_gpus):
    *_, last = processor
    described = "no bfloat16" if last == "avx2" else "bfloat16 by "
    line = describe_placement(Placement())
    assert line.startswith("learning and acting on cpu (") and described in line
    separate = Placement(learning=torch.device("cuda:1"))
    assert describe_placement(separate) == "learning on cuda:1 (an old one, bfloat16), acting on cpu"
