"""Functions that the benchmarks share: train in a fresh process, measure CPU seconds, format figures."""

from __future__ import annotations

import os

for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ[f"{_library}_NUM_THREADS"] = "1"

import platform  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Iterable, Mapping, Sequence  # noqa: E402
from concurrent.futures import ProcessPoolExecutor  # noqa: E402
from multiprocessing import get_context  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.utils.tensorboard  # noqa: E402, F401  # imported when a run starts, so not part of training

import algorithm.adapters.gym  # noqa: E402, F401
import algorithm.agents.a2c  # noqa: E402, F401
import algorithm.agents.acer.agent  # noqa: E402, F401
import algorithm.agents.ppo  # noqa: E402, F401
import algorithm.agents.sac.agent  # noqa: E402, F401
import algorithm.processes.fleet  # noqa: E402, F401
from algorithm.config.loader import read_assignments, resolve  # noqa: E402
from algorithm.config.yaml_layers import read_variant  # noqa: E402
from algorithm.parts import run_folder  # noqa: E402
from algorithm.runs.build import train  # noqa: E402
from algorithm.runs.callbacks import Callback  # noqa: E402
from algorithm.runs.playing import play  # noqa: E402
from algorithm.training.evaluator import EvaluationResult  # noqa: E402
from algorithm.training.progress import Progress  # noqa: E402

EPISODES = 20  # played greedily with the final weights, outside the measured time
OTHER_EPISODES = 1_000_000  # between the seeds of a run and of these episodes, which evaluations have not played


def train_cartpole(seed: int, assignments: Iterable[str] = ()) -> dict[str, Any]:
    """Train gym/cartpole. Return the figures of `train_folder`."""
    return train_folder("gym/cartpole", seed, assignments)


def train_folder(
    env: str,
    seed: int,
    assignments: Iterable[str] = (),
    episodes: int = EPISODES,
    variant: str = "default",
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Train a variant of an environment folder, and return the figures of the run.

    Args:
        env: Environment folder below envs/.
        seed: Seed of the run.
        assignments: Settings that differ from the variant, as `section.key=value`.
        episodes: Number of episodes that are played greedily with the final weights, outside the measured time.
        variant: Variant of the folder's config.yaml.
        callbacks: Callbacks of the run.

    Returns:
        env_steps (until the weights that reached the goal; of the whole run without it), run_env_steps (of the whole
        run: on a cluster it continues until the goal is confirmed), updates, cpu_seconds (of training), reached
        (whether the goal was reached), evaluation (mean return of the last evaluation), greedy (mean return of the
        greedy episodes), trust_region_fraction (mean over the logged metrics), and curve (env steps and returns of the
        logged metrics).
    """
    source = run_folder.find_environment_folder(env)
    layers = [
        ("config.yaml", read_variant(source / "config.yaml", variant)),
        ("benchmark", read_assignments([*assignments, f"base_config.seed={seed}"])),
    ]
    with tempfile.TemporaryDirectory() as runs:
        run_folder.RUNS = Path(runs)
        settings = resolve(layers)
        folder = run_folder.RunFolder.create(env, source, "run", settings.tree)
        begin = time.process_time()
        result = train(settings, folder, lambda line: None, callbacks)
        seconds = time.process_time() - begin
        greedy = float("nan")
        if episodes:  # new episodes, since the episodes of the evaluations have selected the weights
            others = resolve([*layers, ("benchmark", read_assignments([f"base_config.seed={seed + OTHER_EPISODES}"]))])
            greedy = _get_only_result(play(others, folder, episodes, True, log=lambda line: None)).mean
        table = np.genfromtxt(folder.path / "metrics.csv", delimiter=",", names=True, deletechars="")
        best = folder.find_best()
        until = best.counters if result.goal_reached and best else result.counters
    table = np.atleast_1d(table)
    return {
        "env_steps": until.env_steps,
        "run_env_steps": result.counters.env_steps,
        "updates": result.counters.updates,
        "cpu_seconds": seconds,
        "reached": bool(result.goal_reached),
        "evaluation": _get_only_result(result.evaluation).mean if result.evaluation else float("nan"),
        "greedy": greedy,
        "trust_region_fraction": _average_column(table, "train/trust_region_fraction"),
        "curve": (table["env_steps"].tolist(), _get_column(table, "rollout/return").tolist()),
    }


def _get_only_result(results: Mapping[str, EvaluationResult]) -> EvaluationResult:
    """Return the result of the only role."""
    (result,) = results.values()
    return result


def _get_column(table: np.ndarray, name: str) -> np.ndarray:
    """Return a metric of the only role, whose name may be appended to the metric's; NaN if it was never logged."""
    columns = [column for column in table.dtype.names if column == name or column.startswith(f"{name}/")]
    if not columns:
        return np.full(len(table), np.nan)
    (column,) = columns
    return table[column]


def _average_column(table: np.ndarray, name: str) -> float:
    """Return the mean of a metric of the only role; NaN if it was never logged."""
    column = _get_column(table, name)
    logged = column[~np.isnan(column)]
    return float(logged.mean()) if len(logged) else float("nan")


class StepRecorder(Callback):
    """A callback that records pairs of seconds and env steps."""

    def __init__(self) -> None:
        self.points: list[tuple[float, int]] = []

    def on_progress(self, progress: Progress) -> None:
        self.points.append((time.perf_counter(), progress.counters.env_steps))


def run_in_subprocesses(function: Callable[..., dict], arguments: list[tuple]) -> list[dict]:
    """Call `function` with each tuple of arguments, one after the other, each in a fresh process."""
    results = []
    for each in arguments:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            results.append(pool.submit(function, *each).result())
    return results


def format_spread(values: Iterable[float], digits: int = 0) -> str:
    """Return the median and the range as text."""
    values = list(values)
    return f"{np.median(values):,.{digits}f} [{min(values):,.{digits}f} - {max(values):,.{digits}f}]"


def compare(rounds: int, measure: Callable[[], float], measure_reference: Callable[[], float]) -> str:
    """Return table cells with the rate of the reference, the measured rate, and their ratio."""
    pairs = [(measure_reference(), measure()) for _ in range(rounds)]
    references, rates = zip(*pairs, strict=True)
    ratios = [rate / reference for reference, rate in pairs]
    return f"{format_spread(references)} | {format_spread(rates)} | {format_spread(ratios, 2)}"


def describe_setup() -> str:
    """Return the processor architecture, the number of cores, and the versions of Python, torch and numpy."""
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}, "
        f"numpy {np.__version__}"
    )


def format_sleeping_env(seconds: float) -> str:
    """Return the text of an env.py that makes CartPole-v1 with steps that sleep for some seconds."""
    return f"""
import time
import gymnasium


class Sleeping(gymnasium.Wrapper):
    def step(self, action):
        time.sleep({seconds})
        return self.env.step(action)


def make():
    return Sleeping(gymnasium.make("CartPole-v1"))
"""
