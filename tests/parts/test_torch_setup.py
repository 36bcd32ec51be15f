from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from algorithm.config.loader import resolve
from algorithm.errors import UserError
from algorithm.networks import Blueprint, Mlp
from algorithm.networks.precision import CPU, Placement
from algorithm.parts.torch_setup import (
    choose_placement,
    describe_placement,
    list_bfloat16_instructions,
)
from algorithm.specs import ActionSpec, ObsSpec, Role
from tests.builders import make_acer, make_role

GPU = torch.device("cuda:0")
SEEING = Role(2, {"camera": ObsSpec((3, 8, 8), "uint8")}, ActionSpec(branches=(2,)))


def placed(role=None, units=8, **base):
    role = role or make_role()
    agent = make_acer(role, Blueprint(body=Mlp(units, units)))
    return choose_placement(resolve([("test", {"base_config": base})]).base, agent, role)


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
def apple(monkeypatch):
    """Let torch report the device of Apple; it cannot be used."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: (major, minor) <= (13, 5))


@pytest.fixture(
    params=[{"avx2": True}, {"avx512_bf16": True, "amx_bf16": False}, {"architecture": "arm64", "bf16": True}]
)
def processor(request, monkeypatch):
    """Let torch report the instructions of a processor."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: request.param, raising=False)
    return request.param


def test_a_precision_that_a_gpu_only_emulates_is_rejected(two_gpus):
    assert placed(device="cuda:1", precision="bfloat16").precision == torch.bfloat16
    assert placed(device="cuda:0").precision == torch.float32
    wrong = r"precision is bfloat16, which cuda:0 \(an old one, no bfloat16\) only emulates.*use float32, or bfloat16_f"
    with pytest.raises(UserError, match=wrong):
        placed(device="cuda:0", precision="bfloat16")
    assert placed(device="cuda:0", precision="bfloat16_forced").precision == torch.bfloat16


def test_bfloat16_needs_a_processor_with_its_instructions_unless_it_is_forced(processor):
    assert placed(precision="BFloat16_Forced").precision == torch.bfloat16
    if "avx2" in processor:
        with pytest.raises(UserError, match=r"bfloat16, which cpu \(.*no bfloat16\) only emulates"):
            placed(precision="bfloat16")
    else:
        assert placed(precision="bfloat16").precision == torch.bfloat16


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


@pytest.mark.parametrize(("machine", "accelerator"), [("two_gpus", "cuda"), ("apple", "mps")])
def test_auto_is_the_accelerator_for_images_and_large_networks(request, machine, accelerator):
    request.getfixturevalue(machine)
    for role, units, learning in ((None, 8, "cpu"), (None, 1000, accelerator), (SEEING, 8, accelerator)):
        assert placed(role, units).learning == placed(role, units, device="auto").learning == torch.device(learning)


def test_the_device_of_apple_can_be_set(apple):
    found = placed(device="MPS")
    assert (found.learning, found.acting) == (torch.device("mps"), CPU)
    with pytest.raises(UserError, match=r"bfloat16, which mps \(no bfloat16\) only emulates"):
        placed(device="mps", precision="bfloat16")


def test_auto_is_the_cpu_without_an_accelerator(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert placed(SEEING, 1000).learning == CPU


@pytest.mark.parametrize("name", ["mps", "cuda", "gpu", "cuda:7"])
def test_a_device_that_torch_does_not_find_is_rejected(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError, match="but torch finds no such device; use cpu or auto"):
        placed(device=name)


@pytest.mark.parametrize(
    ("role", "units", "inference_device", "acting"),
    [
        (None, 8, "auto", CPU),
        (None, 1000, "auto", GPU),
        (SEEING, 8, "auto", GPU),
        (None, 8, "device", GPU),
        (None, 1000, "cpu", CPU),
        (SEEING, 8, "CPU", CPU),
    ],
    ids=str,
)
def test_small_networks_act_on_the_cpu_by_default(two_gpus, role, units, inference_device, acting):
    found = placed(role, units, device="cuda:0", inference_device=inference_device)
    assert (found.learning, found.acting) == (GPU, acting)


@pytest.mark.parametrize("inference_device", ["auto", "cpu", "device"])
def test_an_agent_that_learns_on_the_cpu_acts_there(inference_device):
    found = placed(inference_device=inference_device)
    assert found.learning == found.acting == CPU
