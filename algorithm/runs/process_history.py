"""The sessions of a run: each process that has trained it, with its start, its machine and its versions."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from typing_extensions import NotRequired

from algorithm.config.sections import BaseConfig
from algorithm.parts.env_folder import read_origin
from algorithm.parts.provenance import describe_provenance
from algorithm.records_io import OpenRecord, append_json_line, read_json_lines

SESSIONS_FILE = "sessions.jsonl"
CPU_INFO = Path("/proc/cpuinfo")


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
    machine: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _find_processor(),
        "cores": os.cpu_count(),
        "memory": _measure_memory(),
    }
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        machine["accelerator"] = torch.cuda.get_device_name()
    return machine


def _find_processor() -> str:
    """Return the name of the processor, as far as the system has it."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _measure_memory() -> int | None:
    """Return the bytes of memory; None if the system does not return them."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
