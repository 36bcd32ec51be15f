"""The provenance of a run's result: environment, algorithm, variant, seed, and versions of the code."""

from __future__ import annotations

import platform
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from algorithm.config.registry import find_class
from algorithm.config.sections import BaseConfig
from algorithm.parts.env_folder import LOCAL_ENVS, PROJECT_ENVS
from algorithm.program import DATA

PACKAGES = {"samara": "samara-rl", "torch": "torch", "numpy": "numpy", "gymnasium": "gymnasium"}
# Packages of simulators, by the module that this process has imported if it uses them: of the same name, or of another.
SIMULATORS = {"ale_py": "ale-py", "Box2D": "box2d"} | {
    name: name for name in ("dm_control", "envpool", "minatar", "minigrid", "mujoco", "pettingzoo", "pybullet")
}
GIT_TIMEOUT = 5.0  # seconds


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
