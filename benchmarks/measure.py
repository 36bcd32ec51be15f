"""What every benchmark shares: one training run in a process of its own, measured in CPU seconds after imports."""

from __future__ import annotations

import os

for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ[f"{_library}_NUM_THREADS"] = "1"

import platform  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Iterable, Mapping  # noqa: E402
from concurrent.futures import ProcessPoolExecutor  # noqa: E402
from multiprocessing import get_context  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.utils.tensorboard  # noqa: E402, F401  # imported by runs when they begin: not part of training

import algorithm.adapters.gym  # noqa: E402, F401
import algorithm.agents.acer.agent  # noqa: E402, F401
import algorithm.agents.sac.agent  # noqa: E402, F401
import algorithm.runtimes.local  # noqa: E402, F401
from algorithm.config.loader import read_assignments, read_variant, resolve  # noqa: E402
from algorithm.runs import run_folder  # noqa: E402
from algorithm.runs.build import train  # noqa: E402
from algorithm.runs.play import play  # noqa: E402
from algorithm.training.evaluator import EvaluationResult  # noqa: E402

EPISODES = 20  # played greedily with the weights at the end, off the clock


def train_cartpole(seed: int, assignments: Iterable[str] = ()) -> dict[str, Any]:
    """Train gym/cartpole; what it took and reached."""
    return train_folder("gym/cartpole", seed, assignments)


def train_folder(
    env: str, seed: int, assignments: Iterable[str] = (), episodes: int = EPISODES, variant: str = "default"
) -> dict[str, Any]:
    """Train a variant of a folder with `section.key=value` changes; what it took and reached.

    `episodes` are played greedily with the weights at the end, off the clock.
    """
    source = run_folder.find_environment_folder(env)
    layers = [
        ("config.yaml", read_variant(source / "config.yaml", variant)),
        ("benchmark", read_assignments([*assignments, f"base_config.seed={seed}"])),
    ]
    with tempfile.TemporaryDirectory() as place:
        run_folder.RUNS = Path(place)
        settings = resolve(layers)
        folder = run_folder.RunFolder.create(env, source, "run", settings.tree)
        begin = time.process_time()
        result = train(settings, folder, lambda line: None)
        seconds = time.process_time() - begin
        greedy = float("nan")
        if episodes:  # not those of the evaluation that chose the weights
            greedy = _only(play(settings, folder, episodes, True, log=lambda line: None, new_episodes=True)).mean
        table = np.genfromtxt(folder.path / "metrics.csv", delimiter=",", names=True, deletechars="")
    table = np.atleast_1d(table)
    return {
        "env_steps": result.counters.env_steps,
        "updates": result.counters.updates,
        "cpu_seconds": seconds,
        "reached": bool(result.goal_reached),
        "evaluation": _only(result.evaluation).mean if result.evaluation else float("nan"),
        "greedy": greedy,
        "trust_region_fraction": _mean_of_role(table, "train/trust_region_fraction"),
        "curve": (table["env_steps"].tolist(), _of_role(table, "rollout/return").tolist()),
    }


def _only(played: Mapping[str, EvaluationResult]) -> EvaluationResult:
    """What the only role has played."""
    (own,) = played.values()
    return own


def _of_role(table: np.ndarray, name: str) -> np.ndarray:
    """A column of the only role, whose name stands behind it where the simulator gives one."""
    (column,) = [column for column in table.dtype.names if column == name or column.startswith(f"{name}/")]
    return table[column]


def _mean_of_role(table: np.ndarray, name: str) -> float:
    """The mean of a column that not every algorithm has."""
    return float(np.nanmean(_of_role(table, name))) if any(n.startswith(name) for n in table.dtype.names) else np.nan


def in_own_processes(function: Callable[..., dict], arguments: list[tuple]) -> list[dict]:
    """Call `function` once for each tuple of arguments, one after the other, each in a fresh process."""
    results = []
    for each in arguments:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            results.append(pool.submit(function, *each).result())
    return results


def spread(values: Iterable[float], digits: int = 0) -> str:
    """Median and range."""
    values = list(values)
    return f"{np.median(values):,.{digits}f} [{min(values):,.{digits}f} - {max(values):,.{digits}f}]"


def machine() -> str:
    """Where the figures come from."""
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}, "
        f"numpy {np.__version__}"
    )
