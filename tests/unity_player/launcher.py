"""An executable file that runs the scripted player, as a built player would be started."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def make_player(folder: Path, task: str, *flags: str) -> Path:
    """Write the program into `folder` and return its path; `flags` are options of `python -m tests.unity_player`."""
    command = [sys.executable, "-m", "tests.unity_player", task, *flags]
    if os.name == "nt":
        path = folder / f"{task}.cmd"
        path.write_text(f"@set PYTHONPATH={ROOT}\r\n@{subprocess.list2cmdline(command)} %*\r\n", encoding="utf-8")
        return path
    path = (
        folder / f"{task}.app" / "Contents" / "MacOS" / task if sys.platform == "darwin" else folder / f"{task}.x86_64"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.join(command)} "$@"\n', encoding="utf-8"
    )
    path.chmod(0o755)
    return path
