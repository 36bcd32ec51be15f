"""Python code in a process in which a package is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
sys.path_importer_cache.clear()
"""


def run_without(package: str, code: str) -> str:
    """Return what `code` prints in a process that cannot import `package`."""
    return subprocess.run(
        [sys.executable, "-c", BLOCK + code, package],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.strip()
