"""Installed packages are compared with the requirements of setup.py, in environments that lack some."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError, StartCheck
from algorithm.tools.doctor import requirements
from algorithm.tools.doctor.check import BROKEN, MISSING, OK, TIMEOUT
from algorithm.tools.doctor.requirements import (
    check_installed,
    list_adapter_checks,
    list_core_checks,
    list_extras,
    make_adapter_check,
    read_setup,
)

COMMAND = 'pip install -e ".[mine]"'


@pytest.fixture
def shim(tmp_path, monkeypatch):
    """Add a package before the installed ones: its version, its requirements, and the text of its module."""
    monkeypatch.syspath_prepend(tmp_path / "shims")

    def make(name, version, module=None, text="", needs=()):
        info = tmp_path / "shims" / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = [f"Requires-Dist: {need}\n" for need in needs]
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{''.join(lines)}")
        if module:
            (tmp_path / "shims" / f"{module}.py").write_text(text)
            (info / "RECORD").write_text(f"{module}.py,,\n")

    return make


def test_requirements_are_read_from_setup_py():
    before = sys.modules.get("setuptools")
    assert "torch" in [check.name for check in list_core_checks()]
    assert {"mlagents-envs", "grpcio", "protobuf", "pillow"} <= {check.name for check in list_core_checks()}
    assert {"onnx", "mujoco", "dm-control"} <= set(list_extras())
    assert {"test", "dev", "docs", "benchmark"} <= set(read_setup()["extras_require"]) - set(list_extras())
    assert read_setup()["python_requires"] == ">=3.10"
    assert sys.modules.get("setuptools") is before


def test_an_installed_package_has_the_requirements_in_its_metadata(shim, monkeypatch):
    needs = ["numpy>=2", "onnx>=1.16; extra == 'onnx'", "envpool; python_version >= '3.11' and extra == \"envpool\""]
    shim("samara_rl", "9.0", needs=needs)
    path = next(Path(sys.path[0]).glob("samara_rl-*")) / "METADATA"
    path.write_text(path.read_text() + "Requires-Python: >=3.10\nProvides-Extra: onnx\nProvides-Extra: envpool\n")
    monkeypatch.setattr(requirements, "SETUP_FILE", Path("setup.py"))
    assert read_setup.__wrapped__() == {
        "python_requires": ">=3.10",
        "install_requires": ["numpy>=2"],
        "extras_require": {"onnx": ["onnx>=1.16"], "envpool": ["envpool; python_version >= '3.11'"]},
    }


def test_the_core_is_installed():
    assert [(check.name, check().line) for check in list_core_checks() if check().state != OK] == []


def test_a_package_that_is_not_installed_is_missing():
    state, line = check_installed(["numpy>=2", "surely-not-there>=1"], COMMAND)
    assert (state, line) == (MISSING, f"{COMMAND} (not installed: surely-not-there)")


def test_requirements_of_another_python_are_skipped():
    state, line = check_installed(["surely-not-there; python_version < '3'"], COMMAND)
    assert state == MISSING and "none of its packages supports Python 3." in line


@pytest.mark.parametrize(
    ("name", "version", "needed"),
    [("protobuf", "3.20.3", "protobuf>=4.25"), ("numpy", "1.26.4", "numpy>=2"), ("mujoco", "4.0.0", "mujoco>=3,<4")],
)
def test_a_version_out_of_range_is_broken_with_the_reason(shim, name, version, needed):
    shim(name, version)
    state, line = check_installed([needed], COMMAND)
    assert state == BROKEN
    assert line.startswith(f"{name} {version} is not ") and line.endswith(COMMAND)
    assert requirements.VERSION_NOTES[name] in line


def test_a_package_that_is_slow_to_import_is_a_timeout_and_not_broken(monkeypatch):
    def wait(function, *arguments):
        raise TimeoutError("no answer within 60 s")

    monkeypatch.setattr(requirements, "run_in_subprocess", wait)
    requirements.find_import_error.cache_clear()
    found = next(check for check in list_core_checks() if check.name == "numpy")()
    assert (found.state, found.line) == (TIMEOUT, "no answer within 60 s")


def test_extras_have_no_underscores_which_pip_23_does_not_find():
    assert not any("_" in name for name in read_setup()["extras_require"])


def test_a_package_that_cannot_be_imported_is_broken(shim):
    shim("crippled", "1.0", "crippled", "raise ImportError('libGL.so.1: cannot open shared object file')")
    state, line = check_installed(["crippled"], COMMAND)
    assert state == BROKEN
    assert "crippled cannot be imported (ImportError: libGL.so.1: cannot open" in line
    assert line.endswith("pip install --force-reinstall crippled")


def test_a_package_that_ends_the_process_is_broken(shim):
    shim("fatal", "1.0", "fatal", "import os; os._exit(9)")
    assert check_installed(["fatal"], COMMAND)[1].startswith("fatal cannot be imported (it ended with exit code 9)")


def test_extras_of_a_requirement_are_checked_too(shim):
    shim("outer", "1.0", needs=["surely-not-there; extra == 'more-of-it'", "neither-there"])
    assert check_installed(["outer"], COMMAND) == (OK, "outer 1.0")
    state, line = check_installed(["outer[more_of_it]"], COMMAND)
    assert state == MISSING and "not installed: surely-not-there)" in line


@pytest.mark.parametrize(
    ("name", "module"), [("pyyaml", "yaml"), ("numpy", "numpy"), ("types-PyYAML", None), ("pytest", "pytest")]
)
def test_the_module_of_a_package_is_found(name, module):
    if requirements._find_version(name) is None:
        pytest.skip("not installed")
    assert (requirements._find_modules(name) or [None])[0] == module


def test_without_packaging_the_report_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    found = next(iter(list_core_checks()))()
    assert found.state == BROKEN and found.line.endswith("pip install -e .")
    assert "versions cannot be compared" in found.line


def test_version_ranges_are_in_setup_py_only():
    folder = Path(requirements.__file__).parent
    for path in folder.glob("*.py"):
        assert ">=" not in path.read_text(encoding="utf-8").replace(" >= ", ""), path


@pytest.mark.parametrize("error", [EnvironmentStartError, EnvironmentCrashed])
def test_what_an_adapter_needs_is_broken_only_for_a_run_that_needs_it(error):
    def refuse() -> str:
        raise error("port 5004 is taken: end it")

    check = make_adapter_check(StartCheck(name="ports", run=refuse))
    assert (check().state, check().line) == (MISSING, "port 5004 is taken: end it")
    assert check.as_required()().state == BROKEN
    assert make_adapter_check(StartCheck(name="ports", run=lambda: "free"))().state == OK


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
