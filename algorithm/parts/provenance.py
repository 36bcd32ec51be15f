"""The provenance of a run: its environment and variant, the versions of the code, and the processes that trained it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from typing_extensions import NotRequired

from algorithm.config.registry import find_class
from algorithm.config.sections import BaseConfig
from algorithm.parts.env_folder import LOCAL_ENVS, PROJECT_ENVS, read_origin
from algorithm.program import DATA
from algorithm.records_io import OpenRecord, append_json_line, read_json_lines

PACKAGES = {"samara": "samara-rl", "torch": "torch", "numpy": "numpy", "gymnasium": "gymnasium"}
# Packages of simulators, by the module that this process has imported if it uses them: of the same name, or of another.
SIMULATORS = {"ale_py": "ale-py", "Box2D": "box2d"} | {
    name: name for name in ("dm_control", "envpool", "minatar", "minigrid", "mujoco", "pettingzoo", "pybullet")
}
GIT_TIMEOUT = 5.0  # seconds
SESSIONS_FILE = "sessions.jsonl"
CPU_INFO = Path("/proc/cpuinfo")


def describe_provenance(environment: str, base: BaseConfig, variant: str | None) -> dict[str, Any]:
    """Return the part of result.json that identifies a run.

    Args:
        environment: Name of the environment's folder.
        base: The section `base_config` of the run.
        variant: Variant of the folder's config.yaml, None if it is not known.

    Returns:
        Environment, algorithm, variant, seed, versions, and `commit`: the commit of the checkout that contains the
        environment's folder, or else of the project's checkout; missing without a checkout.
    """
    is_checkout = (DATA / ".git").exists()  # otherwise a checkout around the installed package is not of this project
    commit = find_commit(LOCAL_ENVS / environment, *([PROJECT_ENVS / environment, DATA] if is_checkout else []))
    return {
        "environment": environment,
        "algorithm": base.algorithm.upper(),
        "variant": variant,
        "seed": base.seed,
        "versions": read_versions(base.env_type),
        **({"commit": commit} if commit else {}),
    }


def read_versions(env_type: str) -> dict[str, str]:
    """Return the versions of Python, of the packages of every run, and of the simulators that this run uses."""
    simulators = {name: name for module, name in SIMULATORS.items() if module in sys.modules}
    simulators |= {package: package for package in find_class("env_type", env_type).packages}
    versions = {"python": platform.python_version()}
    for name, package in {**PACKAGES, **simulators}.items():
        with suppress(metadata.PackageNotFoundError):  # the project runs from its checkout
            versions[name] = metadata.version(package)
    if torch := sys.modules.get("torch"):  # which names its build (+cpu, +cu130); the metadata of PyPI's package do not
        versions["torch"] = str(torch.__version__)
    return versions


def find_commit(*folders: Path) -> str | None:
    """Return the commit of the first of these folders that is in a git checkout; None without checkout or git."""
    for folder in folders:
        if folder.is_dir():
            try:
                command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
                process = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT, check=False)
            except (OSError, subprocess.TimeoutExpired):
                return None
            if process.returncode == 0:
                return process.stdout.strip()
    return None


class SessionRecord(OpenRecord):
    """A line of sessions.jsonl."""

    started: NotRequired[str]
    env_steps: int
    machine: dict[str, str | int | None]
    versions: dict[str, str]
    commit: NotRequired[str | None]


def record_session(folder: Path, base: BaseConfig, env_steps: int) -> None:
    """Append a line to sessions.jsonl in a run folder: this process trains the run from `env_steps` on.

    It is called after the environments were opened, so that the versions of simulators are known.
    """
    origin = describe_provenance(read_origin(folder) or "", base, None)
    session = {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "env_steps": env_steps,
        "seed": base.seed,
        "machine": describe_machine(),
        "versions": origin["versions"],
        "commit": origin.get("commit"),
    }
    append_json_line(folder / SESSIONS_FILE, session)


def read_sessions(folder: Path, log: Callable[[str], None]) -> list[SessionRecord]:
    """Return the sessions of a run, oldest first, without damaged lines; `log` receives a line if there are any.

    It is empty for a run of a version that did not record sessions.
    """
    sessions, problem = read_json_lines(folder / SESSIONS_FILE, SessionRecord)
    if problem:
        log(f"{problem}: these sessions are left out")
    return sessions


def describe_machine() -> dict[str, Any]:
    """Return system, processor, number of cores and bytes of memory of this machine, and the GPU that torch uses.

    The name of the machine is left out, since the record may be published with the run.
    """
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):  # not Linux, or a processor without a name
        processor = platform.processor() or platform.machine()
    machine: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor,
        "cores": os.cpu_count(),
        "memory": measure_total_memory(),
    }
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        machine["accelerator"] = torch.cuda.get_device_name()
    return machine


def measure_total_memory() -> int | None:
    """Return the bytes of memory of this machine; None if the system does not return them."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
