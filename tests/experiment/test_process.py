from __future__ import annotations

import pytest
import torch

from algorithm.experiment import process
from algorithm.experiment.errors import UserError
from algorithm.experiment.process import placement
from algorithm.experiment.settings import resolve
from algorithm.loop.placement import CPU
from algorithm.networks import Blueprint, Mlp
from algorithm.specs import ActionSpec, ObsSpec, Role
from tests.builders import make_acer, make_role

GPU = torch.device("cuda:0")
SEEING = Role(2, {"camera": ObsSpec((3, 8, 8), "uint8")}, ActionSpec(branches=(2,)))


def placed(role=None, units=8, **base):
    role = role or make_role()
    agent = make_acer(role, Blueprint(body=Mlp(units, units)))
    return placement(resolve([("test", {"base_config": base})]), agent, role)


@pytest.fixture
def two_gpus(monkeypatch):
    """Two devices, as torch would tell of them; nothing can be put there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an old one")
    monkeypatch.setattr(process, "_has_bfloat16", lambda device: device.index == 1)


def test_a_precision_that_the_device_does_not_compute_in_is_refused(two_gpus):
    assert placed(device="cuda:1", precision="bfloat16").precision == torch.bfloat16
    assert placed(device="cuda:0").precision == torch.float32
    with pytest.raises(UserError, match="precision is bfloat16, which an old one does not compute in; use float32"):
        placed(device="cuda:0", precision="bfloat16")


def test_every_processor_computes_in_either_precision():
    assert placed(precision="BFloat16").precision == torch.bfloat16


@pytest.mark.parametrize(
    ("role", "units", "act_on", "acting"),
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
def test_small_networks_act_on_the_processor_unless_told_otherwise(two_gpus, role, units, act_on, acting):
    found = placed(role, units, device="cuda:0", act_on=act_on)
    assert (found.learning, found.acting) == (GPU, acting)


@pytest.mark.parametrize("act_on", ["auto", "cpu", "device"])
def test_what_learns_on_the_processor_acts_there(act_on):
    found = placed(act_on=act_on)
    assert found.learning == found.acting == CPU
