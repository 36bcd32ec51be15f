"""Names for messages: the commands that start and install this program, and roles; and the folder of its data files.

This module imports the standard library only.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

DEFAULT_ROLE = "agent"  # the role in a simulator without named roles
PACKAGE = Path(__file__).resolve().parent
IS_CHECKOUT = (PACKAGE.parent / "main.py").is_file() and (PACKAGE.parent / "setup.py").is_file()


def get_command(*words: str) -> str:
    """Return the command that starts this program, `python main.py`, `python -m algorithm` or `samara`, with arguments.

    It is the command that started this process; in another program, the command that this installation has.
    """
    return f"{_find_command()} {join_command(*words)}".rstrip()


def join_command(*words: str) -> str:
    """Return a command line with the quotes of the user's shell."""
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


def _find_command() -> str:
    started = Path(sys.argv[0] if sys.argv else "")
    if started.name.removesuffix(".exe").removesuffix("-script.py") == "samara":
        return "samara"
    if started.parent == PACKAGE and started.name == "__main__.py":
        return "python -m algorithm"
    return "python main.py" if IS_CHECKOUT else "samara"


def get_install_command(extra: str | None = None) -> str:
    """Return the command that installs the packages that this program requires, or the packages of an extra."""
    target = "." if IS_CHECKOUT else "samara-rl"
    if extra:
        target = f'"{target}[{extra}]"'
    return f"pip install -e {target}" if IS_CHECKOUT else f"pip install {target}"


def get_document(name: str) -> str:
    """Return the path of a page of the documentation, for messages; an installed package contains a copy."""
    return f"docs/{name}.md" if IS_CHECKOUT else str(DATA / "docs" / f"{name}.md")


def find_data_folder(package: Path) -> Path:
    """Return the folder with default_config.yaml, envs/ and docs/ of the package in the folder `package`.

    They are at the top of the repository in a checkout, and in `algorithm/_data`, where the build copies them, in an
    installed package.
    """
    checkout = package.parent
    return checkout if (checkout / "default_config.yaml").is_file() else package / "_data"


DATA = find_data_folder(PACKAGE)


def metric_suffix(role: str) -> str:
    """Return what the names of the metrics of a role end with: nothing for the default role."""
    return "" if role == DEFAULT_ROLE else f"/{role}"


def role_suffix(role: str) -> str:
    """Return ` of <role>` for a message, or an empty string for the only role of a simulator without named roles."""
    return "" if role == DEFAULT_ROLE else f" of {role}"
