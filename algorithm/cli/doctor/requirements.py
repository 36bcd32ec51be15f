"""What setup.py asks for, and what of it is installed."""

from __future__ import annotations

import inspect
import re
import runpy
import sys
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module, metadata
from types import ModuleType
from typing import Any

from algorithm.cli.doctor.check import BROKEN, MISSING, OK, Check, Outcome
from algorithm.cli.doctor.subprocess_probe import SubprocessFailed, SubprocessTimeout, run_in_subprocess
from algorithm.data import DATA

SETUP_FILE = DATA / "setup.py"
FOR_DEVELOPERS = {"test", "dev", "docs", "benchmark"}  # extras
MAX_LISTED = 6  # packages of an extra; of more only their number is told
# What goes wrong with versions that setup.py leaves out, where that is not told when they are imported.
VERSION_NOTES = {
    "mujoco": "dm_control fails at run time with mujoco 4",
    "numpy": "mlagents-envs uses np.bool, which numpy 1.24 to 1.26 do not have",
    "protobuf": "older ones cannot rebuild the messages of ML-Agents",
}


@cache
def read_setup() -> dict[str, Any]:
    """What setup.py tells setuptools, which need not be there."""
    arguments: dict[str, Any] = {}
    fake_setuptools: Any = ModuleType("setuptools")
    fake_setuptools.setup, fake_setuptools.find_packages = arguments.update, lambda **_: []
    original = sys.modules.get("setuptools")
    sys.modules["setuptools"] = fake_setuptools
    try:
        runpy.run_path(str(SETUP_FILE))
    finally:
        del sys.modules["setuptools"]
        if original:
            sys.modules["setuptools"] = original
    return arguments


def list_core_checks() -> Iterator[Check]:
    """One for each package without which nothing works."""
    for text in read_setup()["install_requires"]:
        name = re.split(r"[^\w.-]", text)[0]
        yield Check(name, partial(check_installed, [text], "pip install -e .")).as_required()


def list_extras() -> list[str]:
    """Return the names of the extras that add something to what can be trained or exported."""
    return [name for name in read_setup()["extras_require"] if name not in FOR_DEVELOPERS]


def make_extra_check(name: str) -> Check:
    """Of everything that an extra holds."""
    return Check(
        f"extra {name}", partial(check_installed, read_setup()["extras_require"][name], f'pip install -e ".[{name}]"')
    )


def check_installed(texts: list[str], command: str) -> Outcome:
    """Whether what requirements ask for is there, in their range, and can be imported; `command` would install it."""
    requirements = {
        (requirement.name, str(requirement.specifier)): requirement
        for text in texts
        for requirement in _list_requirements(text)
    }
    versions = {requirement.name: _find_version(requirement.name) for requirement in requirements.values()}
    if not requirements:
        return MISSING, f"there is none of it for Python {sys.version_info[0]}.{sys.version_info[1]}"
    if missing := [name for name, version in versions.items() if version is None]:
        return MISSING, f"{command} (there is no {', '.join(missing)})"
    for requirement in requirements.values():
        if not requirement.specifier.contains(versions[requirement.name], prereleases=True):
            note = f" ({VERSION_NOTES[requirement.name]})" if requirement.name in VERSION_NOTES else ""
            return (
                BROKEN,
                f"{requirement.name} {versions[requirement.name]} is not {requirement.specifier}{note}: {command}",
            )
    for name in versions:
        for module in _find_modules(name)[:1]:
            if error := find_import_error(module):
                return BROKEN, f"{module} cannot be imported ({error}): pip install --force-reinstall {name}"
    found = [f"{name} {version}" for name, version in versions.items()]
    return OK, ", ".join(found) if len(found) <= MAX_LISTED else f"{len(found)} packages"


@cache
def find_import_error(module: str) -> str | None:
    """Return the error of importing a module; None if that works. Raises SubprocessTimeout if it takes too long."""
    try:
        return run_in_subprocess(f"{__name__}:load_module", module)
    except SubprocessTimeout:
        raise
    except SubprocessFailed as error:
        return str(error)


def load_module(module: str) -> None:
    """Import a module, in a process that was started for it."""
    import_module(module)


def import_packaging(module: str) -> Any:
    """A module of packaging, which reads versions. Raises Lost where it is not there."""
    try:
        return import_module(f"packaging.{module}")
    except ImportError as error:
        raise SubprocessFailed(f"versions cannot be compared ({error}): pip install -e .") from error


def _list_requirements(text: str) -> Iterator[Any]:
    """A requirement, and those behind its own extras, as far as they are for this Python."""
    Requirement = import_packaging("requirements").Requirement  # noqa: N806
    requirement = Requirement(text)
    if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
        return
    yield requirement
    for other in (
        metadata.requires(requirement.name) or () if requirement.extras and _find_version(requirement.name) else ()
    ):
        extra_requirement = Requirement(other)
        if extra_requirement.marker and any(
            extra_requirement.marker.evaluate({"extra": extra}) for extra in requirement.extras
        ):
            if not extra_requirement.marker.evaluate({"extra": ""}):  # those of an extra alone
                yield extra_requirement


def _find_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _find_modules(name: str) -> list[str]:
    """What a package is imported by, most likely first; nothing where its files are not known, or are only types."""
    found: dict[str, None] = {}
    for file in sorted(metadata.files(name) or (), key=lambda file: (len(file.parts), file.parts)):
        if file.name == "__init__.py":
            found[".".join(file.parts[:-1])] = None
        elif len(file.parts) == 1 and (module := inspect.getmodulename(file.name)):
            found[module] = None
    importable = [module for module in found if all(re.fullmatch(r"[A-Za-z]\w*", part) for part in module.split("."))]
    own = name.replace("-", "_").casefold()
    return sorted(importable, key=lambda module: (module.casefold() != own, module.count(".")))
