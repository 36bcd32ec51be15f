"""Checks of the machine: the observed values, and the lines about them."""

import shutil
from types import SimpleNamespace

import pytest

from algorithm.networks.precision import CPU
from algorithm.parts import components_builder as of_memory
from algorithm.parts.torch_setup import describe_device
from algorithm.tools.doctor import machine
from algorithm.tools.doctor.check import BROKEN, OK

CUDA = {
    "version": "2.13.0",
    "processor": "cpu (x86_64, AVX2, no bfloat16)",
    "cuda": "13.0",
    "devices": [["H100", None]],
    "mps": False,
    "threads": 1,
}


def test_python_is_compared_with_setup_py(monkeypatch):
    assert machine.check_python()[0] == OK
    monkeypatch.setattr(machine.platform, "python_version", lambda: "3.9.19")
    state, line = machine.check_python()
    assert state == BROKEN and line.startswith("3.9.19 is not >=3.10: ")


@pytest.mark.parametrize(
    ("observed", "state", "line"),
    [
        ({}, OK, "cores of cpu (x86_64, AVX2, no bfloat16), cuda:0 (H100); torch 2.13.0 is built for CUDA 13.0"),
        ({"devices": []}, OK, "no bfloat16); torch 2.13.0 is built for CUDA 13.0, which finds no device"),
        ({"devices": [], "cuda": None, "mps": True}, OK, ", mps; this torch has no CUDA"),
        ({"devices": [["H100", None], ["K80", "no kernel image"]]}, BROKEN, "cuda:1 (K80) does not compute (no kernel"),
    ],
)
def test_devices_are_reported(monkeypatch, observed, state, line):
    monkeypatch.setattr(machine, "query_torch", lambda: {**CUDA, **observed})
    found = machine.check_devices()
    assert found[0] == state and line in found[1]


def test_torch_is_examined_in_a_separate_process():
    import torch

    observed = machine.query_torch()
    assert observed["version"] == torch.__version__ and len(observed["devices"]) == torch.cuda.device_count()
    assert observed["threads"] == 1  # as set by the environment variables of the tests
    assert observed["processor"] == describe_device(CPU)


@pytest.mark.parametrize(
    ("value", "state", "line"),
    [
        ("1", OK, "OMP_NUM_THREADS=1"),
        ("8", OK, "unset OMP_NUM_THREADS"),
        ("many", BROKEN, "'many': set it to 1"),
        ("0", BROKEN, "'0'"),
    ],
)
def test_the_number_of_threads_is_checked(monkeypatch, value, state, line):
    monkeypatch.setattr(machine, "query_torch", lambda: CUDA)
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    found = machine.check_threads()
    assert found[0] == state and line in found[1]


def test_a_full_disk_is_broken(monkeypatch, tmp_path):
    assert machine.check_disk() == (OK, machine.check_disk()[1])
    assert str(tmp_path) in machine.check_disk()[1]
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=5 * 10**6))
    state, line = machine.check_disk()
    assert state == BROKEN and line.startswith("5 MB are free in ")


def test_a_folder_that_cannot_be_written_is_broken(monkeypatch, tmp_path):
    (tmp_path / "runs").mkdir()
    assert machine.find_runs_folder() == tmp_path / "runs"
    (tmp_path / "runs").rmdir()
    (tmp_path / "runs").write_text("a file")
    assert machine.find_runs_folder() == tmp_path

    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(machine.tempfile, "TemporaryFile", refuse)
    state, line = machine.check_disk()
    assert state == BROKEN and f"nothing can be written to {tmp_path} (Permission denied)" in line


@pytest.mark.parametrize(("free", "state"), [(10**8, BROKEN), (10**10, OK), (None, OK)])
def test_memory_is_reported(monkeypatch, free, state):
    monkeypatch.setattr(of_memory, "measure_free_memory", lambda: free)
    assert machine.check_memory()[0] == state
