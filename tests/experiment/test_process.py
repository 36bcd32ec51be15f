from __future__ import annotations

import pytest
import torch

from algorithm.experiment import process
from algorithm.experiment.errors import UserError
from algorithm.experiment.process import placement
from algorithm.experiment.settings import resolve


def settings(**base):
    return resolve([("test", {"base_config": base})])


@pytest.fixture
def two_gpus(monkeypatch):
    """Two devices, as torch would tell of them; nothing can be put there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an old one")
    monkeypatch.setattr(process, "_has_bfloat16", lambda device: device.index == 1)


def test_a_precision_that_the_device_does_not_compute_in_is_refused(two_gpus):
    assert placement(settings(device="cuda:1", precision="bfloat16")).precision == torch.bfloat16
    assert placement(settings(device="cuda:0")).precision == torch.float32
    with pytest.raises(UserError, match="precision is bfloat16, which an old one does not compute in; use float32"):
        placement(settings(device="cuda:0", precision="bfloat16"))


def test_every_processor_computes_in_either_precision():
    assert placement(settings(precision="BFloat16")).precision == torch.bfloat16
