"""Checks of the installation: packages, the adapters and the export that use them, Python, devices, disk, memory."""

from __future__ import annotations

import inspect
import os
import platform
import re
import runpy
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock, patch

from algorithm.config.registry import ADAPTERS, find_class
from algorithm.errors import UserError
from algorithm.parts.env_folder import RUNS
from algorithm.program import DATA, get_install_command
from algorithm.tools.doctor.check import Check, Missing, SubprocessFailed, run_in_subprocess

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
GB = 10**9
LEAST_DISK = 0.2 * GB  # for checkpoints and logs of a small run
LEAST_MEMORY = 0.5 * GB  # what torch and a small run take
THREADS = tuple(f"{library}_NUM_THREADS" for library in ("OMP", "OPENBLAS", "MKL"))


@cache
def read_setup() -> dict[str, Any]:
    """Return what this program requires: `python_requires`, `install_requires` and `extras_require`, as in setup.py.

    In a checkout they are from setup.py, in an installed package from its metadata.
    """
    return _run_setup_file() if SETUP_FILE.is_file() else _read_metadata()


def _run_setup_file() -> dict[str, Any]:
    """Return the arguments with which setup.py calls setuptools, which need not be installed."""
    fakes = {name: Mock(build_py=object) for name in SETUPTOOLS_MODULES}
    with patch.dict(sys.modules, fakes):
        runpy.run_path(str(SETUP_FILE))
    return fakes["setuptools"].setup.call_args.kwargs


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
    texts = read_setup()["extras_require"][name]
    return Check(f"extra {name}", partial(check_installed, texts, get_install_command(name)))


def check_installed(texts: list[str], command: str) -> str:
    """Check that requirements are installed, in their range of versions, and can be imported.

    `command` is the command that installs them, for messages. Raises Missing, or UserError if they are broken.
    """
    requirements = [requirement for text in texts for requirement in _list_requirements(text)]
    versions = {requirement.name: _find_version(requirement.name) for requirement in requirements}
    if not requirements:
        raise Missing(f"none of its packages supports Python {sys.version_info[0]}.{sys.version_info[1]}")
    if missing := [name for name, version in versions.items() if version is None]:
        raise Missing(f"{command} (not installed: {', '.join(missing)})")
    for requirement in requirements:
        name, version = requirement.name, versions[requirement.name]
        if not requirement.specifier.contains(version, prereleases=True):
            note = f" ({VERSION_NOTES[name]})" if name in VERSION_NOTES else ""
            raise UserError(f"{name} {version} is not {requirement.specifier}{note}: {command}")
    for name in versions:
        if (module := _find_module(name)) and (error := find_import_error(module)):
            raise UserError(f"{module} cannot be imported ({error}): pip install --force-reinstall {name}")
    found = [f"{name} {version}" for name, version in versions.items()]
    return ", ".join(found) if len(found) <= MAX_LISTED else f"{len(found)} packages"


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


def parse_requirement(text: str) -> Any:
    """Return a requirement of `packaging`. Raises UserError if that package is not installed."""
    try:
        from packaging.requirements import Requirement
    except ImportError as error:
        raise UserError(f"versions cannot be compared ({error}): {get_install_command()}") from error
    return Requirement(text)


def _list_requirements(text: str) -> Iterator[Any]:
    """Yield a requirement, and the requirements of its extras, as far as they are for this Python."""

    def is_for(requirement: Any, extra: str) -> bool:
        return requirement.marker is None or requirement.marker.evaluate({"extra": extra})

    requirement = parse_requirement(text)
    if not is_for(requirement, ""):
        return
    yield requirement
    if requirement.extras and _find_version(requirement.name):
        for other in map(parse_requirement, metadata.requires(requirement.name) or ()):
            if not is_for(other, "") and any(is_for(other, extra) for extra in requirement.extras):
                yield other


def _find_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _find_module(name: str) -> str | None:
    """Return the most likely module of a package; None if it has only types, or no list of files."""
    found: list[str] = []
    for file in sorted(metadata.files(name) or (), key=lambda file: (len(file.parts), file.parts)):
        if file.name == "__init__.py":
            found.append(".".join(file.parts[:-1]))
        elif len(file.parts) == 1 and (module := inspect.getmodulename(file.name)):
            found.append(module)
    importable = [module for module in found if all(re.fullmatch(r"[A-Za-z]\w*", part) for part in module.split("."))]
    own = name.replace("-", "_").casefold()
    return min(importable, key=lambda module: (module.casefold() != own, module.count(".")), default=None)


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

    def run() -> str:
        if check.in_subprocess:
            return run_in_subprocess(f"{check.run.__module__}:{check.run.__qualname__}")
        try:
            return check.run()
        except SimulatorError as error:
            raise Missing(str(error)) from error

    return Check(check.name, run)


def make_onnx_check() -> Check:
    """Return the check of an export: a file is written from torch, and run by onnxruntime, if both are installed."""

    def run() -> str:
        make_extra_check("onnx").run()
        return run_in_subprocess("algorithm.tools.export.export:run_round_trip")

    return Check("onnx round trip", run)


# The machine.


def check_python() -> str:
    """Check that the version of Python is the required one, or a later one."""
    version, needed = platform.python_version(), read_setup()["python_requires"]
    if not parse_requirement(f"python{needed}").specifier.contains(version, prereleases=True):
        raise UserError(f"{version} is not {needed}: make an environment with another Python")
    return f"{version} on {platform.system()} {platform.machine()}"


def describe_devices() -> str:
    """Return the processor, the accelerators and the build of torch. Raises UserError if a device computes wrongly."""
    import torch

    from algorithm.networks.precision import CPU
    from algorithm.parts.torch_setup import describe_device

    found = [f"{os.cpu_count()} cores of {describe_device(CPU)}"]
    for index in range(torch.cuda.device_count()):
        found.append(f"cuda:{index} ({torch.cuda.get_device_name(index)})")
        if failure := _test_device(index):
            raise UserError(f"{found[-1]} does not compute ({failure}): install a build of torch that suits it")
    build = "this torch has no CUDA"
    if torch.version.cuda:
        build = f"torch {torch.__version__} is built for CUDA {torch.version.cuda}"
        build += "" if len(found) > 1 else ", which finds no device"
    return f"{', '.join(found + ['mps'] * torch.backends.mps.is_available())}; {build}"


def _test_device(index: int) -> str | None:
    """Return the error of a matrix product on a CUDA device; None if it is right."""
    import torch

    try:
        matrix = torch.ones(8, 8, device=f"cuda:{index}")
        return None if (matrix @ matrix).sum().item() == 512 else "it computes wrongly"
    except RuntimeError as error:
        return str(error).partition("\n")[0]


def check_threads() -> str:
    """Check the environment variables for threads, which this program sets unless the user has set them."""
    values = {name: os.environ.get(name, "") for name in THREADS}
    for name, value in values.items():
        if not value.isdecimal() or int(value) == 0:
            raise UserError(f"{name} is {value!r}: set it to 1, or unset it")
    n_threads = run_in_subprocess("torch:get_num_threads")
    line = f"torch has {n_threads}; " + ", ".join(f"{name}={value}" for name, value in values.items())
    above_one = [name for name, value in values.items() if int(value) > 1]
    return line + (f" (small networks are fastest with 1: unset {', '.join(above_one)})" if above_one else "")


def check_disk() -> str:
    """Check that the folder of the runs can be written to, and has enough free space."""
    folder = find_runs_folder()
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"nothing can be written to {folder} ({error.strerror}): start in another folder") from error
    free = shutil.disk_usage(folder).free
    if free < LEAST_DISK:
        raise UserError(f"{format_size(free)} are free in {folder}: a run takes {format_size(LEAST_DISK)} or more")
    return f"{format_size(free)} are free in {folder}"


def find_runs_folder() -> Path:
    """Return the folder of the runs, or its first parent that exists."""
    runs_folder = RUNS.absolute()
    return next(folder for folder in (runs_folder, *runs_folder.parents) if folder.is_dir())


def check_memory() -> str:
    """Check the free memory."""
    from algorithm.parts.components_builder import measure_free_memory

    free = measure_free_memory()
    if free is None:
        return "the free memory is unknown on this system"
    line = f"{format_size(free)} are free"
    if free < LEAST_MEMORY:
        raise UserError(
            f"{line}: a run takes {format_size(LEAST_MEMORY)} in addition to its replay, so close other programs"
        )
    return line


def format_size(bytes_: float) -> str:
    """Return a number of bytes as text."""
    return f"{bytes_ / GB:,.1f} GB" if bytes_ >= GB else f"{bytes_ / 10**6:,.0f} MB"


MACHINE_CHECKS = (
    Check("python", check_python),
    Check("devices", partial(run_in_subprocess, f"{__name__}:describe_devices")),  # since a driver may hang
    Check("threads", check_threads),
    Check("disk", check_disk),
    Check("memory", check_memory),
)
