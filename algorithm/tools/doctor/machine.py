"""Checks of this machine: Python, devices, threads, disk and memory."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from algorithm.parts.env_folder import RUNS
from algorithm.tools.doctor.check import BROKEN, OK, Check, Outcome, run_in_subprocess
from algorithm.tools.doctor.requirements import import_packaging, read_setup

GB = 10**9
LEAST_DISK = 0.2 * GB  # for checkpoints and logs of a small run
LEAST_MEMORY = 0.5 * GB  # what torch and a small run take
THREADS = tuple(f"{library}_NUM_THREADS" for library in ("OMP", "OPENBLAS", "MKL"))


def check_python() -> Outcome:
    """Check that the version of Python is the required one, or a later one."""
    version, needed = platform.python_version(), read_setup()["python_requires"]
    if not import_packaging("specifiers").SpecifierSet(needed).contains(version, prereleases=True):
        return BROKEN, f"{version} is not {needed}: make an environment with another Python"
    return OK, f"{version} on {platform.system()} {platform.machine()}"


@cache
def query_torch() -> dict[str, Any]:
    """Return what torch finds; in a subprocess, since a driver may hang."""
    return run_in_subprocess(f"{__name__}:inspect_torch")


def inspect_torch() -> dict[str, Any]:
    """Return the build of torch, its devices, each with the error of a computation on it, and its threads."""
    import torch

    from algorithm.networks.precision import CPU
    from algorithm.parts.torch_setup import describe_device

    return {
        "version": torch.__version__,
        "processor": describe_device(CPU),
        "cuda": torch.version.cuda,
        "devices": [
            [torch.cuda.get_device_name(index), _test_device(index)] for index in range(torch.cuda.device_count())
        ],
        "mps": torch.backends.mps.is_available(),
        "threads": torch.get_num_threads(),
    }


def _test_device(index: int) -> str | None:
    """Return the error of a matrix product on a CUDA device; None if it is right."""
    import torch

    try:
        matrix = torch.ones(8, 8, device=f"cuda:{index}")
        return None if (matrix @ matrix).sum().item() == 512 else "it computes wrongly"
    except RuntimeError as error:
        return str(error).partition("\n")[0]


def check_devices() -> Outcome:
    """Check the processor and the accelerators, and report the build of torch."""
    torch_info = query_torch()
    for index, (name, failure) in enumerate(torch_info["devices"]):
        if failure:
            return BROKEN, f"cuda:{index} ({name}) does not compute ({failure}): install a build of torch that suits it"
    found = [f"{os.cpu_count()} cores of {torch_info['processor']}"]
    found += [f"cuda:{index} ({name})" for index, (name, _) in enumerate(torch_info["devices"])]
    found += ["mps"] * torch_info["mps"]
    build = "this torch has no CUDA"
    if torch_info["cuda"]:
        build = f"torch {torch_info['version']} is built for CUDA {torch_info['cuda']}"
        build += "" if torch_info["devices"] else ", which finds no device"
    return OK, f"{', '.join(found)}; {build}"


def check_threads() -> Outcome:
    """Check the environment variables for threads, which this program sets unless the user has set them."""
    values = {name: os.environ.get(name, "") for name in THREADS}
    for name, value in values.items():
        if not value.isdecimal() or int(value) == 0:
            return BROKEN, f"{name} is {value!r}: set it to 1, or unset it"
    line = f"torch has {query_torch()['threads']}; " + ", ".join(f"{name}={value}" for name, value in values.items())
    above_one = [name for name, value in values.items() if int(value) > 1]
    return OK, line + (f" (small networks are fastest with 1: unset {', '.join(above_one)})" if above_one else "")


def check_disk() -> Outcome:
    """Check that the folder of the runs can be written to, and has enough free space."""
    folder = find_runs_folder()
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return BROKEN, f"nothing can be written to {folder} ({error.strerror}): start in another folder"
    free = shutil.disk_usage(folder).free
    if free < LEAST_DISK:
        return BROKEN, f"{format_size(free)} are free in {folder}: a run takes {format_size(LEAST_DISK)} or more"
    return OK, f"{format_size(free)} are free in {folder}"


def find_runs_folder() -> Path:
    """Return the folder of the runs, or its first parent that exists."""
    runs_folder = RUNS.absolute()
    return next(folder for folder in (runs_folder, *runs_folder.parents) if folder.is_dir())


def check_memory() -> Outcome:
    """Check the free memory."""
    from algorithm.parts.components_builder import measure_free_memory

    free = measure_free_memory()
    if free is None:
        return OK, "the free memory is unknown on this system"
    line = f"{format_size(free)} are free"
    if free < LEAST_MEMORY:
        needed = f"a run takes {format_size(LEAST_MEMORY)} in addition to its replay"
        return BROKEN, f"{line}: {needed}, so close other programs"
    return OK, line


def format_size(bytes_: float) -> str:
    """Return a number of bytes as text."""
    return f"{bytes_ / GB:,.1f} GB" if bytes_ >= GB else f"{bytes_ / 10**6:,.0f} MB"


MACHINE_CHECKS = (
    Check("python", check_python),
    Check("devices", check_devices),
    Check("threads", check_threads),
    Check("disk", check_disk),
    Check("memory", check_memory),
)
