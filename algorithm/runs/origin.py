"""The origin of a run's result: environment, algorithm, variant, seed, and the versions of the code that trained it."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from algorithm.config.loader import Settings
from algorithm.runs.env_folder import LOCAL_ENVS, PROJECT_ENVS

PACKAGES = {"samara": "samara-rl", "torch": "torch", "numpy": "numpy", "gymnasium": "gymnasium"}
# Packages of simulators, by the module that this process has imported if it uses them.
SIMULATORS = {
    "ale_py": "ale-py",
    "Box2D": "box2d",
    "dm_control": "dm_control",
    "envpool": "envpool",
    "minatar": "minatar",
    "minigrid": "minigrid",
    "mujoco": "mujoco",
    "pettingzoo": "pettingzoo",
    "pybullet": "pybullet",
}
PACKAGES_BY_ENV_TYPE = {"unity": "mlagents-envs"}  # by env_type: simulators that other processes import
GIT_LIMIT = 5.0  # seconds


def describe_origin(environment: str, settings: Settings, variant: str | None) -> dict[str, Any]:
    """Return what identifies a run, as in result.json.

    Args:
        environment: Name of the environment's folder.
        settings: Settings of the run.
        variant: Variant of the folder's config.yaml, None if it is not known.

    `commit` is that of the checkout that holds the environment's folder, or else the project; absent without one.
    """
    found = find_commit(LOCAL_ENVS / environment, PROJECT_ENVS / environment, PROJECT_ENVS.parent)
    return {
        "environment": environment,
        "algorithm": settings.base.algorithm.upper(),
        "variant": variant,
        "seed": settings.base.seed,
        "versions": read_versions(settings.base.env_type),
        **({"commit": found} if found else {}),
    }


def read_versions(env_type: str) -> dict[str, str]:
    """Return the versions of Python, of what every run uses, and of the simulators that this one uses."""
    simulators = {name: name for module, name in SIMULATORS.items() if module in sys.modules}
    if other := PACKAGES_BY_ENV_TYPE.get(env_type.casefold()):
        simulators[other] = other
    return {"python": platform.python_version(), **_find_versions({**PACKAGES, **simulators})}


def _find_versions(packages: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, package in packages.items():
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:  # the project runs from its checkout
            continue
    return found


def find_commit(*folders: Path) -> str | None:
    """Return the commit of the first of these folders that a git checkout holds; None if there is none, or no git."""
    for folder in folders:
        if folder.is_dir():
            try:
                command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
                process = subprocess.run(command, capture_output=True, text=True, timeout=GIT_LIMIT, check=False)
            except (OSError, subprocess.TimeoutExpired):
                return None
            if process.returncode == 0:
                return process.stdout.strip()
    return None


def read_recorded_variant(result: Path) -> str | None:
    """Return the variant that an earlier result.json of the run names; None if it names none, or cannot be read."""
    try:
        return json.loads(result.read_text(encoding="utf-8"))["variant"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
