"""What this machine has: Python, devices, threads, disk, memory and ports."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from algorithm.adapters.unity.ports import EDITOR_PORT, FIRST_PORT, holder, taken
from algorithm.cli.doctor.check import BROKEN, MISSING, OK, Check, Seen
from algorithm.cli.doctor.requirements import comparing, packaged
from algorithm.cli.doctor.subprocess_probe import ask
from algorithm.runs.env_folder import RUNS

GB = 10**9
LEAST_DISK = 0.2 * GB  # for checkpoints and logs of a small run
LEAST_MEMORY = 0.5 * GB  # what torch and a small run take
THREADS = tuple(f"{library}_NUM_THREADS" for library in ("OMP", "OPENBLAS", "MKL"))
LAST_PORT = 65535
PLAYERS = 8  # ports of players that are looked at: as many as there are copies by default


def machine_checks() -> Iterator[Check]:
    """Those of every machine but for its ports."""
    yield Check("python", python)
    yield Check("devices", devices)
    yield Check("threads", threads)
    yield Check("disk", disk)
    yield Check("memory", memory)


def port_checks() -> Iterator[Check]:
    """The ports that Unity uses where nothing else is said."""
    yield Check("port of the editor", partial(ports, [EDITOR_PORT], "give --port, and set it in Unity too"))
    yield Check("ports of players", partial(ports, range(FIRST_PORT, FIRST_PORT + PLAYERS), "players take others"))


def python() -> Seen:
    """Its version against what setup.py asks for."""
    version, needed = platform.python_version(), packaged()["python_requires"]
    if not comparing("specifiers").SpecifierSet(needed).contains(version, prereleases=True):
        return BROKEN, f"{version} is not {needed}: make an environment with another Python"
    return OK, f"{version} on {platform.system()} {platform.machine()}"


@cache
def torch_says() -> dict[str, Any]:
    """What torch finds, in a process of its own: a driver may hang."""
    return ask(f"{__name__}:look_at_torch")


def look_at_torch() -> dict[str, Any]:
    """Its build, its devices with what goes wrong where they compute, and its threads."""
    import torch

    from algorithm.training.placement import CPU, describe_device

    return {
        "version": torch.__version__,
        "processor": describe_device(CPU),
        "cuda": torch.version.cuda,
        "devices": [
            [torch.cuda.get_device_name(place), _computes(place)] for place in range(torch.cuda.device_count())
        ],
        "mps": torch.backends.mps.is_available(),
        "threads": torch.get_num_threads(),
    }


def _computes(place: int) -> str | None:
    """What goes wrong on a CUDA device; None where it multiplies two matrices."""
    import torch

    try:
        matrix = torch.ones(8, 8, device=f"cuda:{place}")
        return None if (matrix @ matrix).sum().item() == 512 else "it computes wrongly"
    except RuntimeError as error:
        return str(error).partition("\n")[0]


def devices() -> Seen:
    """The processor, the CUDA devices and Apple's, with torch's build."""
    said = torch_says()
    for place, (name, wrong) in enumerate(said["devices"]):
        if wrong:
            return BROKEN, f"cuda:{place} ({name}) does not compute ({wrong}): install a build of torch that suits it"
    found = [f"{os.cpu_count()} cores of {said['processor']}"]
    found += [f"cuda:{place} ({name})" for place, (name, _) in enumerate(said["devices"])]
    found += ["mps"] * said["mps"]
    build = f"torch {said['version']} is built for CUDA {said['cuda']}" if said["cuda"] else "this torch has no CUDA"
    driver = ", which finds no device" if said["cuda"] and not said["devices"] else ""
    return OK, f"{', '.join(found)}; {build}{driver}"


def threads() -> Seen:
    """What main.py set, or the user before it."""
    told = {name: os.environ.get(name, "") for name in THREADS}
    for name, value in told.items():
        if not value.isdecimal() or int(value) == 0:
            return BROKEN, f"{name} is {value!r}: set it to 1, or unset it"
    line = f"torch has {torch_says()['threads']}; " + ", ".join(f"{name}={value}" for name, value in told.items())
    more = [name for name, value in told.items() if int(value) > 1]
    return OK, line + (f" (small networks are fastest with 1: unset {', '.join(more)})" if more else "")


def disk() -> Seen:
    """Where runs go, whether or not the folder is there yet."""
    place = place_of_runs()
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        return BROKEN, f"nothing can be written to {place} ({error.strerror}): start in another folder"
    free = shutil.disk_usage(place).free
    if free < LEAST_DISK:
        return BROKEN, f"{size(free)} are free in {place}: a run takes {size(LEAST_DISK)} or more"
    return OK, f"{size(free)} are free in {place}"


def place_of_runs() -> Path:
    """The folder that is there of those on the way to where runs go."""
    place = RUNS.absolute()
    return next(folder for folder in (place, *place.parents) if folder.is_dir())


def memory() -> Seen:
    """What programs can still have."""
    from algorithm.runs.memory_budget import available

    free = available()
    if free is None:
        return OK, "how much is free is not told here"
    if free < LEAST_MEMORY:
        return BROKEN, f"{size(free)} are free: a run takes {size(LEAST_MEMORY)} beside its replay, so end something"
    return OK, f"{size(free)} are free"


def ports(wanted: Iterable[int], instead: str) -> Seen:
    """Whether nobody listens on ports of this machine; `instead` is what else can be done."""
    numbers = list(wanted)
    if numbers[-1] > LAST_PORT:
        return BROKEN, f"{numbers[-1]} is no port, the last one is {LAST_PORT}: {instead}"
    held = [f"{port} is taken by {holder(port)}" for port in numbers if taken(port)]
    if held:
        return MISSING, f"{', '.join(held)}: end it, or {instead}"
    return OK, f"{numbers[0]} is free" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} are free"


def size(bytes_: float) -> str:
    """Bytes as people read them."""
    return f"{bytes_ / GB:,.1f} GB" if bytes_ >= GB else f"{bytes_ / 10**6:,.0f} MB"
