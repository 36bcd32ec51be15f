"""What setup.py asks for, and what of it is installed."""

from __future__ import annotations

import inspect
import re
import runpy
import sys
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from algorithm.cli.doctor.check import BROKEN, MISSING, OK, Check, Seen
from algorithm.cli.doctor.subprocess_probe import Lost, TimedOut, ask

SETUP = Path(__file__).resolve().parents[3] / "setup.py"
FOR_DEVELOPERS = {"test", "dev", "docs", "benchmark"}  # extras
SHOWN = 6  # packages of an extra; of more only their number is told
# What goes wrong with versions that setup.py leaves out, where that is not told when they are imported.
WHY = {
    "mujoco": "dm_control fails at run time with mujoco 4",
    "numpy": "mlagents-envs uses np.bool, which numpy 1.24 to 1.26 do not have",
    "protobuf": "older ones cannot rebuild the messages of ML-Agents",
}


@cache
def packaged() -> dict[str, Any]:
    """What setup.py tells setuptools, which need not be there."""
    told: dict[str, Any] = {}
    stand_in: Any = ModuleType("setuptools")
    stand_in.setup, stand_in.find_packages = told.update, lambda **_: []
    before = sys.modules.get("setuptools")
    sys.modules["setuptools"] = stand_in
    try:
        runpy.run_path(str(SETUP))
    finally:
        del sys.modules["setuptools"]
        if before:
            sys.modules["setuptools"] = before
    return told


def core_checks() -> Iterator[Check]:
    """One for each package without which nothing works."""
    for text in packaged()["install_requires"]:
        name = re.split(r"[^\w.-]", text)[0]
        yield Check(name, partial(installed, [text], "pip install -e .")).asked()


def extras() -> list[str]:
    """Return the names of the extras that add something to what can be trained or exported."""
    return [name for name in packaged()["extras_require"] if name not in FOR_DEVELOPERS]


def extra_check(name: str) -> Check:
    """Of everything that an extra holds."""
    return Check(f"extra {name}", partial(installed, packaged()["extras_require"][name], f'pip install -e ".[{name}]"'))


def installed(texts: list[str], command: str) -> Seen:
    """Whether what requirements ask for is there, in their range, and can be imported; `command` would install it."""
    needs = {(need.name, str(need.specifier)): need for text in texts for need in _applying(text)}
    versions = {need.name: _version(need.name) for need in needs.values()}
    if not needs:
        return MISSING, f"there is none of it for Python {sys.version_info[0]}.{sys.version_info[1]}"
    if absent := [name for name, version in versions.items() if version is None]:
        return MISSING, f"{command} (there is no {', '.join(absent)})"
    for need in needs.values():
        if not need.specifier.contains(versions[need.name], prereleases=True):
            why = f" ({WHY[need.name]})" if need.name in WHY else ""
            return BROKEN, f"{need.name} {versions[need.name]} is not {need.specifier}{why}: {command}"
    for name in versions:
        for module in _modules(name)[:1]:
            if error := import_error(module):
                return BROKEN, f"{module} cannot be imported ({error}): pip install --force-reinstall {name}"
    told = [f"{name} {version}" for name, version in versions.items()]
    return OK, ", ".join(told) if len(told) <= SHOWN else f"{len(told)} packages"


@cache
def import_error(module: str) -> str | None:
    """Return the error of importing a module; None if that works. Raises TimedOut if it takes too long."""
    try:
        return ask(f"{__name__}:load", module)
    except TimedOut:
        raise
    except Lost as error:
        return str(error)


def load(module: str) -> None:
    """Import a module, in a process that was started for it."""
    import_module(module)


def comparing(module: str) -> Any:
    """A module of packaging, which reads versions. Raises Lost where it is not there."""
    try:
        return import_module(f"packaging.{module}")
    except ImportError as error:
        raise Lost(f"versions cannot be compared ({error}): pip install -e .") from error


def _applying(text: str) -> Iterator[Any]:
    """A requirement, and those behind its own extras, as far as they are for this Python."""
    Requirement = comparing("requirements").Requirement  # noqa: N806
    need = Requirement(text)
    if need.marker and not need.marker.evaluate({"extra": ""}):
        return
    yield need
    for other in metadata.requires(need.name) or () if need.extras and _version(need.name) else ():
        behind = Requirement(other)
        if behind.marker and any(behind.marker.evaluate({"extra": extra}) for extra in need.extras):
            if not behind.marker.evaluate({"extra": ""}):  # those of an extra alone
                yield behind


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _modules(name: str) -> list[str]:
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
