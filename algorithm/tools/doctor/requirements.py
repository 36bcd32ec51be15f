"""Checks of the packages that this program requires, and of the adapters and the export that use them."""

from __future__ import annotations

import inspect
import re
import runpy
import sys
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module, metadata
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from algorithm.config.registry import ADAPTERS, find_class
from algorithm.program import DATA, get_install_command
from algorithm.tools.doctor.check import (
    BROKEN,
    MISSING,
    OK,
    Check,
    Outcome,
    SubprocessFailed,
    run_in_subprocess,
)

if TYPE_CHECKING:  # imports numpy, which may be missing
    from algorithm.adapters.adapter import StartCheck

SETUP_FILE = DATA / "setup.py"
SETUPTOOLS_MODULES = ("setuptools", "setuptools.command", "setuptools.command.build_py")  # that setup.py imports
PACKAGE_NAME = "samara-rl"
FOR_DEVELOPERS = {"test", "dev", "docs", "benchmark"}  # extras
MAX_LISTED = 6  # packages of an extra that are listed; of more, only the number
# The effect of versions that setup.py excludes, if importing them raises no error.
VERSION_NOTES = {
    "mujoco": "dm_control fails at run time with mujoco 4",
    "numpy": "mlagents-envs uses np.bool, which numpy 1.24 to 1.26 do not have",
    "protobuf": "older ones cannot rebuild the messages of ML-Agents",
}


@cache
def read_setup() -> dict[str, Any]:
    """Return what this program requires: `python_requires`, `install_requires` and `extras_require`, as in setup.py.

    In a checkout they are from setup.py, in an installed package from its metadata.
    """
    return _run_setup_file() if SETUP_FILE.is_file() else _read_metadata()


def _run_setup_file() -> dict[str, Any]:
    """Return the arguments with which setup.py calls setuptools, which need not be installed."""
    arguments: dict[str, Any] = {}
    fakes: dict[str, Any] = {name: ModuleType(name) for name in SETUPTOOLS_MODULES}
    fakes["setuptools"].setup, fakes["setuptools"].find_packages = arguments.update, lambda **_: []
    fakes["setuptools.command.build_py"].build_py = object
    with patch.dict(sys.modules, fakes):
        runpy.run_path(str(SETUP_FILE))
    return arguments


def _read_metadata() -> dict[str, Any]:
    """Return the requirements in the metadata of the installed package."""
    package = metadata.metadata(PACKAGE_NAME)
    extras: dict[str, list[str]] = {name: [] for name in package.get_all("Provides-Extra") or ()}
    core: list[str] = []
    for text in package.get_all("Requires-Dist") or ():
        extra = re.search(r"""( and |; )extra == ["']([\w-]+)["']""", text)
        (extras[extra[2]] if extra else core).append(text.replace(extra[0], "") if extra else text)
    return {"python_requires": package["Requires-Python"], "install_requires": core, "extras_require": extras}


def list_core_checks() -> Iterator[Check]:
    """Yield a check for each package that is always required."""
    for text in read_setup()["install_requires"]:
        name = re.split(r"[^\w.-]", text)[0]
        yield Check(name, partial(check_installed, [text], get_install_command()), is_required=True)


def list_extras() -> list[str]:
    """Return the names of the extras that add something to what can be trained or exported."""
    return [name for name in read_setup()["extras_require"] if name not in FOR_DEVELOPERS]


def make_extra_check(name: str) -> Check:
    """Return the check of all packages of an extra."""
    return Check(f"extra {name}", partial(_check_extra, name))


def _check_extra(name: str) -> Outcome:
    return check_installed(read_setup()["extras_require"][name], get_install_command(name))


def check_installed(texts: list[str], command: str) -> Outcome:
    """Check that requirements are installed, in their range of versions, and can be imported.

    `command` is the command that installs them, for messages.
    """
    requirements = [requirement for text in texts for requirement in _list_requirements(text)]
    versions = {requirement.name: _find_version(requirement.name) for requirement in requirements}
    if not requirements:
        return MISSING, f"none of its packages supports Python {sys.version_info[0]}.{sys.version_info[1]}"
    if missing := [name for name, version in versions.items() if version is None]:
        return MISSING, f"{command} (not installed: {', '.join(missing)})"
    for requirement in requirements:
        name, version = requirement.name, versions[requirement.name]
        if not requirement.specifier.contains(version, prereleases=True):
            note = f" ({VERSION_NOTES[name]})" if name in VERSION_NOTES else ""
            return BROKEN, f"{name} {version} is not {requirement.specifier}{note}: {command}"
    for name in versions:
        for module in _find_modules(name)[:1]:
            if error := find_import_error(module):
                return BROKEN, f"{module} cannot be imported ({error}): pip install --force-reinstall {name}"
    found = [f"{name} {version}" for name, version in versions.items()]
    return OK, ", ".join(found) if len(found) <= MAX_LISTED else f"{len(found)} packages"


@cache
def find_import_error(module: str) -> str | None:
    """Return the error of importing a module; None if that works. Raises TimeoutError if it takes too long."""
    try:
        return run_in_subprocess(f"{__name__}:load_module", module)
    except SubprocessFailed as error:
        return str(error)


def load_module(module: str) -> None:
    """Import a module, in a process that was started for it."""
    import_module(module)


def import_packaging(module: str) -> Any:
    """Return a module of the package `packaging`. Raises SubprocessFailed if it is not installed."""
    try:
        return import_module(f"packaging.{module}")
    except ImportError as error:
        raise SubprocessFailed(f"versions cannot be compared ({error}): {get_install_command()}") from error


def _list_requirements(text: str) -> Iterator[Any]:
    """Yield a requirement, and the requirements of its extras, as far as they are for this Python."""
    Requirement = import_packaging("requirements").Requirement  # noqa: N806

    def is_for(requirement: Any, extra: str) -> bool:
        return requirement.marker is None or requirement.marker.evaluate({"extra": extra})

    requirement = Requirement(text)
    if not is_for(requirement, ""):
        return
    yield requirement
    if requirement.extras and _find_version(requirement.name):
        for other in map(Requirement, metadata.requires(requirement.name) or ()):
            if not is_for(other, "") and any(is_for(other, extra) for extra in requirement.extras):
                yield other


def _find_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _find_modules(name: str) -> list[str]:
    """Return the modules of a package, the most likely first; empty if it has only types, or no list of files."""
    found: dict[str, None] = {}
    for file in sorted(metadata.files(name) or (), key=lambda file: (len(file.parts), file.parts)):
        if file.name == "__init__.py":
            found[".".join(file.parts[:-1])] = None
        elif len(file.parts) == 1 and (module := inspect.getmodulename(file.name)):
            found[module] = None
    importable = [module for module in found if all(re.fullmatch(r"[A-Za-z]\w*", part) for part in module.split("."))]
    own = name.replace("-", "_").casefold()
    return sorted(importable, key=lambda module: (module.casefold() != own, module.count(".")))


def list_adapter_checks() -> Iterator[Check]:
    """Yield the checks of every adapter that is installed."""
    for name in ADAPTERS:
        try:
            adapter_class = find_class("env_type", name)
        except Exception:
            # A broken package may raise anything when it is imported, for example ValueError for another binary version
            # of numpy; the checks of the packages report it.
            continue
        yield from map(make_adapter_check, adapter_class.list_start_checks(None))


def make_adapter_check(check: StartCheck) -> Check:
    """Return a check of an adapter as one of the doctor's: it is missing where it raises SimulatorError."""
    from algorithm.adapters.adapter import SimulatorError

    def run() -> Outcome:
        if check.in_subprocess:
            return OK, run_in_subprocess(f"{check.run.__module__}:{check.run.__qualname__}")
        try:
            return OK, check.run()
        except SimulatorError as error:
            return MISSING, str(error)

    return Check(check.name, run)


def make_onnx_check() -> Check:
    """Return the check of an export: a file is written from torch, and run by onnxruntime, if both are installed."""

    def run() -> Outcome:
        state, line = _check_extra("onnx")
        return (OK, run_in_subprocess("algorithm.tools.export.export:run_round_trip")) if state == OK else (state, line)

    return Check("onnx round trip", run)
