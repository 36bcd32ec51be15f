"""Checks, which never affect each other: of packages, in environments that lack some, and of the machine."""

import os
import shutil
import sys
import threading
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError, StartCheck
from algorithm.errors import UserError
from algorithm.networks.precision import CPU
from algorithm.parts import components_builder
from algorithm.parts.torch_setup import describe_device
from algorithm.tools.doctor import installation
from algorithm.tools.doctor.check import (
    BROKEN,
    MISSING,
    OK,
    TIMEOUT,
    Check,
    Finding,
    Missing,
    SubprocessFailed,
    run_in_subprocess,
)
from algorithm.tools.doctor.installation import list_adapter_checks, list_core_checks, list_extras, read_setup

COMMAND = 'pip install -e ".[mine]"'
NEVER = threading.Event()
POSIX = pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")


def fail(error: Exception):
    raise error


def find(run, *arguments) -> tuple[str, str]:
    """Return the state and the line of a check."""
    finding = Check("a", partial(run, *arguments)).find()
    return finding.state, finding.line


def find_installed(*texts: str) -> tuple[str, str]:
    return find(installation.check_installed, list(texts), COMMAND)


@pytest.fixture
def shim(tmp_path, monkeypatch):
    """Add a package before the installed ones: its version, its requirements, and the text of its module."""
    monkeypatch.syspath_prepend(tmp_path / "shims")

    def make(name, version, text=None, needs=(), metadata=""):
        info = tmp_path / "shims" / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = [f"Requires-Dist: {need}\n" for need in needs]
        (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n{''.join(lines)}{metadata}")
        if text is not None:
            (tmp_path / "shims" / f"{name}.py").write_text(text)
            (info / "RECORD").write_text(f"{name}.py,,\n")

    return make


def test_requirements_are_read_from_setup_py():
    before = sys.modules.get("setuptools")
    core, extras = {check.name for check in list_core_checks()}, read_setup()["extras_require"]
    assert {"torch", "mlagents-envs", "grpcio", "protobuf", "pillow"} <= core
    assert {"onnx", "mujoco", "dm-control"} <= set(list_extras())
    assert {"test", "dev", "docs", "benchmark"} <= set(extras) - set(list_extras())
    assert not any("_" in name for name in extras)  # which pip 23 does not find
    assert read_setup()["python_requires"] == ">=3.10"
    assert sys.modules.get("setuptools") is before


def test_an_installed_package_has_the_requirements_in_its_metadata(shim, monkeypatch):
    needs = ["numpy>=2", "onnx>=1.16; extra == 'onnx'", "envpool; python_version >= '3.11' and extra == \"envpool\""]
    extras = "Requires-Python: >=3.10\nProvides-Extra: onnx\nProvides-Extra: envpool\n"
    shim("samara_rl", "9.0", needs=needs, metadata=extras)
    monkeypatch.setattr(installation, "SETUP_FILE", Path("setup.py"))
    assert read_setup.__wrapped__() == {
        "python_requires": ">=3.10",
        "install_requires": ["numpy>=2"],
        "extras_require": {"onnx": ["onnx>=1.16"], "envpool": ["envpool; python_version >= '3.11'"]},
    }


def test_the_core_is_installed():
    assert [(check.name, check().line) for check in list_core_checks() if check().state != OK] == []


def test_a_package_that_is_not_installed_or_for_another_python_is_missing():
    missing = (MISSING, f"{COMMAND} (not installed: surely-not-there)")
    assert find_installed("numpy>=2", "surely-not-there>=1") == missing
    state, line = find_installed("surely-not-there; python_version < '3'")
    assert state == MISSING and "none of its packages supports Python 3." in line


@pytest.mark.parametrize(
    ("name", "version", "needed"),
    [("protobuf", "3.20.3", "protobuf>=4.25"), ("numpy", "1.26.4", "numpy>=2"), ("mujoco", "4.0.0", "mujoco>=3,<4")],
)
def test_a_version_out_of_range_is_broken_with_the_reason(shim, name, version, needed):
    shim(name, version)
    state, line = find_installed(needed)
    assert state == BROKEN
    assert line.startswith(f"{name} {version} is not ") and line.endswith(COMMAND)
    assert installation.VERSION_NOTES[name] in line


def test_a_package_that_is_slow_to_import_is_a_timeout_and_not_broken(monkeypatch):
    def wait(function, *arguments):
        raise TimeoutError("no answer within 60 s")

    monkeypatch.setattr(installation, "run_in_subprocess", wait)
    installation.find_import_error.cache_clear()
    assert find_installed("numpy") == (TIMEOUT, "no answer within 60 s")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("raise ImportError('libGL.so.1: cannot open it')", "ImportError: libGL.so.1: cannot open it"),
        ("import os; os._exit(9)", "it ended with exit code 9"),
    ],
)
def test_a_package_that_cannot_be_imported_is_broken(text, why, shim):
    name = f"crippled_{len(text)}"
    shim(name, "1.0", text)
    line = f"{name} cannot be imported ({why}): pip install --force-reinstall {name}"
    assert find_installed(name) == (BROKEN, line)


def test_extras_of_a_requirement_are_checked_too(shim):
    shim("outer", "1.0", needs=["surely-not-there; extra == 'more-of-it'", "neither-there"])
    assert find_installed("outer") == (OK, "outer 1.0")
    state, line = find_installed("outer[more_of_it]")
    assert state == MISSING and "not installed: surely-not-there)" in line


@pytest.mark.parametrize(
    ("name", "module"), [("pyyaml", "yaml"), ("numpy", "numpy"), ("types-PyYAML", None), ("pytest", "pytest")]
)
def test_the_module_of_a_package_is_found(name, module):
    if installation._find_version(name) is None:
        pytest.skip("not installed")
    assert installation._find_module(name) == module


def test_without_packaging_the_report_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    state, line = find_installed("numpy")
    assert state == BROKEN and line.startswith("versions cannot be compared") and line.endswith("pip install -e .")


def test_version_ranges_are_in_setup_py_only():
    for path in Path(installation.__file__).parent.glob("*.py"):
        assert ">=" not in path.read_text(encoding="utf-8").replace(" >= ", ""), path


@pytest.mark.parametrize("error", [EnvironmentStartError, EnvironmentCrashed])
def test_what_an_adapter_needs_is_broken_only_for_a_run_that_needs_it(error):
    def refuse() -> str:
        raise error("port 5004 is taken: end it")

    check = installation.make_adapter_check(StartCheck(name="ports", run=refuse))
    assert (check().state, check().line) == (MISSING, "port 5004 is taken: end it")
    assert check.as_required()().state == BROKEN
    assert installation.make_adapter_check(StartCheck(name="ports", run=lambda: "free"))().state == OK


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("no gymnasium"), OSError("no libGL"), ValueError("numpy.dtype size changed")]
)
def test_an_adapter_whose_packages_are_broken_has_no_checks(error, monkeypatch):
    """A broken package may raise anything when it is imported."""

    class Broken(ModuleType):
        def __getattr__(self, name):
            raise error

    names = [check.name for check in list_adapter_checks()]
    monkeypatch.setitem(sys.modules, "algorithm.adapters.gym", Broken("algorithm.adapters.gym"))
    assert [check.name for check in list_adapter_checks()] == names  # GymAdapter has none


def test_python_is_compared_with_setup_py(monkeypatch):
    assert find(installation.check_python)[0] == OK
    monkeypatch.setattr(installation.platform, "python_version", lambda: "3.9.19")
    state, line = find(installation.check_python)
    assert state == BROKEN and line.startswith("3.9.19 is not >=3.10: ")


@pytest.mark.parametrize(
    ("cuda", "mps", "devices", "state", "line"),
    [
        ("13.0", False, {"H100": None}, OK, ", cuda:0 (H100); torch 2.13.0 is built for CUDA 13.0"),
        ("13.0", False, {}, OK, "; torch 2.13.0 is built for CUDA 13.0, which finds no device"),
        (None, True, {}, OK, ", mps; this torch has no CUDA"),
        ("13.0", False, {"H100": None, "K80": "no image"}, BROKEN, "cuda:1 (K80) does not compute (no image): install"),
    ],
)
def test_devices_are_reported(monkeypatch, cuda, mps, devices, state, line):
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(devices))
    monkeypatch.setattr(torch.cuda, "get_device_name", list(devices).__getitem__)
    monkeypatch.setattr(installation, "_test_device", list(devices.values()).__getitem__)
    found = find(installation.describe_devices)
    assert found[0] == state and line in found[1]
    assert state == BROKEN or f"cores of {describe_device(CPU)}{line}" in found[1]


@pytest.mark.parametrize(
    ("value", "state", "line"),
    [
        ("1", OK, "torch has 1; OMP_NUM_THREADS=1"),
        ("8", OK, "unset OMP_NUM_THREADS"),
        ("many", BROKEN, "'many': set it to 1"),
        ("0", BROKEN, "'0'"),
    ],
)
def test_the_number_of_threads_is_checked(monkeypatch, value, state, line):
    if value == "8":
        monkeypatch.setattr(installation, "run_in_subprocess", lambda function: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    found = find(installation.check_threads)
    assert found[0] == state and line in found[1]


def test_a_full_disk_is_broken(monkeypatch, tmp_path):
    state, line = find(installation.check_disk)
    assert state == OK and str(tmp_path) in line
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=5 * 10**6))
    state, line = find(installation.check_disk)
    assert state == BROKEN and line.startswith("5 MB are free in ")


def test_a_folder_that_cannot_be_written_is_broken(monkeypatch, tmp_path):
    (tmp_path / "runs").mkdir()
    assert installation.find_runs_folder() == tmp_path / "runs"
    (tmp_path / "runs").rmdir()
    (tmp_path / "runs").write_text("a file")
    assert installation.find_runs_folder() == tmp_path

    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(installation.tempfile, "TemporaryFile", refuse)
    state, line = find(installation.check_disk)
    assert state == BROKEN and f"nothing can be written to {tmp_path} (Permission denied)" in line


@pytest.mark.parametrize(("free", "state"), [(10**8, BROKEN), (10**10, OK), (None, OK)])
def test_memory_is_reported(monkeypatch, free, state):
    monkeypatch.setattr(components_builder, "measure_free_memory", lambda: free)
    assert find(installation.check_memory)[0] == state


# Checks and subprocesses.


@pytest.mark.parametrize(
    ("run", "state", "line"),
    [
        (lambda: "all\n is well", OK, "all is well"),
        (lambda: fail(Missing("get it")), MISSING, "get it"),
        (lambda: {}["b"], BROKEN, "KeyError: 'b'"),
        (lambda: fail(UserError("set b to 1")), BROKEN, "set b to 1"),
        (lambda: fail(TimeoutError("no answer within 1 s")), TIMEOUT, "no answer within 1 s"),
        (NEVER.wait, TIMEOUT, "no answer within 0.5 s: try again when the machine is less busy"),
    ],
)
def test_a_check_has_a_state_and_one_line_and_what_is_missing_is_broken_if_required(run, state, line):
    check = Check("a", run, limit=0.5)
    assert check() == Finding("a", state, line)
    assert check.as_required()() == Finding("a", BROKEN if state == MISSING else state, line)


def test_an_answer_is_a_json_value_without_printed_output():
    assert run_in_subprocess("operator:add", [1], ["a"]) == [1, "a"]
    assert run_in_subprocess("os:getpid") != os.getpid()
    assert run_in_subprocess("os:system", "echo hello") == 0


def test_modules_are_imported_from_the_folders_of_this_process(tmp_path, monkeypatch):
    Path("json.py").write_text("raise SystemExit(7)")  # in the working directory
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "of_mine.py").write_text("def double(x): return 2 * x")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    assert run_in_subprocess("of_mine:double", 4) == 8


@pytest.mark.parametrize(
    ("function", "arguments", "why"),
    [
        ("no_such_module:f", (), "ModuleNotFoundError: No module named 'no_such_module'"),
        ("operator:truediv", (1, 0), "ZeroDivisionError: division by zero"),
        ("os:_exit", (3,), "it ended with exit code 3"),
        pytest.param("os:abort", (), "it crashed with signal SIGABRT", marks=POSIX),
    ],
)
def test_an_error_and_a_crash_are_reported(function, arguments, why):
    with pytest.raises(SubprocessFailed, match=why):
        run_in_subprocess(function, *arguments)


def test_a_process_that_hangs_is_ended():
    with pytest.raises(TimeoutError, match="no answer within 0.5 s: try again when the machine is less busy"):
        run_in_subprocess("time:sleep", 600, limit=0.5)
