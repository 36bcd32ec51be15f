"""Compare variants of the folders of MuJoCo with the SAC of Stable-Baselines3 after the same number of env steps.

Samara trains with the settings of a variant, Stable-Baselines3 with its defaults. Then the last weights play 10 greedy
episodes, which start in the same states for all learners. CPU seconds are those of training alone. The learning curve
of a variant is measured after training, from its checkpoints. Each run is a file in a folder, so that the table can be
made in several calls; without a variant and --sb3, only the table of the files that exist is printed. Figures of CPU
time compare only runs on processors with the same instructions.

    python benchmarks/locomotion.py benchmarks/results/locomotion --tasks walker2d --variant crossq --sb3 --seeds 7000
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

SB3 = "SB3"
TASKS = {  # by folder below envs/mujoco
    "half_cheetah": "HalfCheetah-v5",
    "walker2d": "Walker2d-v5",
    "humanoid": "Humanoid-v5",
    "hopper": "Hopper-v5",
    "ant": "Ant-v5",
}
EPISODES, CURVE_EPISODES = 10, 5  # of the last weights, and of each earlier checkpoint
FIRST_EPISODE = 1_000_000  # seed of the first episode
CHECKPOINTS = 10  # of a run, at equal intervals
UNKNOWN = "-"

Figures = dict[str, Any]  # of a run: env_steps, cpu_seconds, greedy, instructions, and for a variant curve


def train_variant(env: Any, task: str, variant: str, steps: int, seed: int, runs: Path) -> Figures:
    """Train a variant of a task's folder, play in `env`, and return the figures of the run.

    A run that was interrupted continues from its last checkpoint in `runs`. `curve` has a list [env steps, CPU seconds,
    mean greedy return] for each checkpoint.
    """
    import measure  # noqa: F401  # sets the path of the repository and imports what a run would import otherwise

    from algorithm import train
    from algorithm.parts.env_folder import RUNS
    from algorithm.parts.run_folder import RunFolder
    from algorithm.runs.trained_agent import TrainedAgent, load_agent

    os.chdir(runs)  # of a process that makes this run alone
    environment, name = f"mujoco/{task}", f"{variant}-{steps}-{seed}"
    base = {"seed": seed, "max_step": steps, "evaluate_every": None}
    saving = {"save_every": max(1, steps // CHECKPOINTS), "keep_checkpoints": CHECKPOINTS + 1}
    folder = RunFolder(RUNS / environment / name)
    if folder.has_learned():
        train(environment, name=name, resume=True)
    else:
        given = {"base_config": {**base, **saving}, "goal": None}
        train(environment, name=name, variant=variant, settings=given, replace=True)
    settings = folder.load_settings()
    ((role_name, role),) = folder.read_roles().items()
    curve = []
    for checkpoint in folder.checkpoints(CHECKPOINTS + 1).list_all():
        agent = load_agent(settings, folder, checkpoint, role_name, role)
        act = TrainedAgent(agent, role, disable_sample=True).act
        counters = checkpoint.counters
        episodes = EPISODES if counters.env_steps >= steps else CURVE_EPISODES
        curve.append([counters.env_steps, counters.cpu_seconds, play(env, act, episodes)])
    env_steps, seconds, greedy = curve[-1]
    return {"env_steps": env_steps, "cpu_seconds": seconds, "greedy": greedy, "curve": curve}


def train_sb3(env: Any, steps: int, seed: int) -> Figures:
    """Train SAC of Stable-Baselines3 with its default settings, play, and return the figures of the run."""
    with contextlib.redirect_stderr(io.StringIO()):  # without the deprecation notice of gym, if that is installed
        sb3 = importlib.import_module("stable_baselines3")
    begin = time.process_time()
    model = sb3.SAC("MlpPolicy", env, seed=seed, device="cpu")
    model.learn(steps)
    figures = {"env_steps": model.num_timesteps, "cpu_seconds": time.process_time() - begin}
    return figures | {"greedy": play(env, lambda obs: model.predict(obs, deterministic=True)[0], EPISODES)}


def play(env: Any, act: Callable[[Any], Any], episodes: int) -> float:
    """Return the mean return of episodes whose actions are `act(observation)`."""
    returns = []
    for seed in range(FIRST_EPISODE, FIRST_EPISODE + episodes):
        obs, _ = env.reset(seed=seed)
        total, is_over = 0.0, False
        while not is_over:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total += float(reward)
            is_over = terminated or truncated
        returns.append(total)
    return statistics.fmean(returns)


def train(learner: str, task: str, steps: int, seed: int, runs: Path) -> Figures:
    """Train after the imports, so that the measured time does not contain them."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")  # otherwise the first optimizer imports it
    env = importlib.import_module("gymnasium").make(TASKS[task])
    figures = train_sb3(env, steps, seed) if learner == SB3 else train_variant(env, task, learner, steps, seed, runs)
    return figures | {"instructions": torch.backends.cpu.get_cpu_capability()}


def collect(
    folder: Path, runs: Path, tasks: Sequence[str], learners: Sequence[str], steps: int, seeds: Sequence[int]
) -> Iterator[str]:
    """Make the runs that have no file in `folder`, one after the other, and yield a line for each."""
    for seed in seeds:
        for task in tasks:
            for learner in learners:
                path = folder / f"{task}.{learner}.{steps}.{seed}.json"
                if path.exists():
                    continue
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                    figures = pool.submit(train, learner, task, steps, seed, runs).result()
                path.write_text(json.dumps(figures), encoding="utf-8")
                greedy, seconds = figures["greedy"], figures["cpu_seconds"]
                yield f"{task} {learner} seed {seed}: return {greedy:,.0f}, CPU s {seconds:,.1f}"


def print_table(folder: Path, tasks: Sequence[str], steps: int) -> None:
    """Print the returns and CPU milliseconds of all learners, relative to SB3, and the geometric means of the ratios.

    The last column is the CPU time in which the curve of a variant reaches the mean return of SB3, relative to the CPU
    time of SB3.
    """
    ratios: dict[str, list[tuple[float, float]]] = {}  # of return and CPU time, by variant
    print(f"Mean return of {EPISODES} greedy episodes after {steps:,} env steps, mean over seeds and each seed.\n")
    print("| task | learner | return | to SB3 | CPU ms per env step | to SB3 | CPU until SB3's return |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for task in tasks:
        results = read_results(folder, task, steps)
        sb3 = results.get(SB3)
        for learner, runs in results.items():
            returns = ", ".join(f"{run['greedy']:,.0f}" for run in runs)
            cells = [f"{average(runs, 'greedy'):,.0f} ({returns})"]
            milliseconds = f"{1000 * compute_cost(runs):.2f}"
            if sb3 is None or learner == SB3:
                cells += [UNKNOWN, milliseconds, UNKNOWN, UNKNOWN]
            else:
                of_return, of_cost = compute_return_ratio(runs, sb3), compute_cost_ratio(runs, sb3)
                ratios.setdefault(learner, []).append((of_return, of_cost))
                text = UNKNOWN if math.isnan(of_return) else f"{of_return:.2f}"
                cost = UNKNOWN if math.isnan(of_cost) else f"{of_cost:.2f}"
                cells += [text, milliseconds, cost, format_time_to_return(runs, sb3)]
            print(f"| {task} | {learner} | {' | '.join(cells)} |")
    for learner, pairs in ratios.items():
        return_mean, cost_mean = (format_geometric_mean(values) for values in zip(*pairs, strict=True))
        print(f"\n{learner} to SB3, geometric mean over {len(pairs)} tasks: return {return_mean}, CPU time {cost_mean}")


def read_results(folder: Path, task: str, steps: int) -> dict[str, list[Figures]]:
    """Return the figures of the runs that have ended, by learner, SB3 first."""
    results: dict[str, list[Figures]] = {}
    for path in sorted(folder.glob(f"{task}.*.{steps}.*.json"), key=lambda path: (f".{SB3}." not in path.name, path)):
        learner = path.name.split(".")[1]
        results.setdefault(learner, []).append(json.loads(path.read_text(encoding="utf-8")))
    return results


def average(runs: Sequence[Mapping[str, Any]], figure: str) -> float:
    """Return the mean of a figure over runs."""
    return statistics.fmean(run[figure] for run in runs)


def compute_return_ratio(runs: Sequence[Figures], sb3: Sequence[Figures]) -> float:
    """Return the mean return relative to that of SB3; NaN if SB3's is not positive, which leaves no ratio."""
    target = average(sb3, "greedy")
    return average(runs, "greedy") / target if target > 0 else math.nan


def compute_cost(runs: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean CPU seconds of an env step."""
    return average(runs, "cpu_seconds") / average(runs, "env_steps")


def pair_by_processor(runs: Sequence[Figures], sb3: Sequence[Figures]) -> list[tuple[list[Figures], list[Figures]]]:
    """Return the runs of both on processors with the same instructions, a pair for each kind that both have."""
    kinds = {run["instructions"] for run in runs} & {run["instructions"] for run in sb3}
    return [
        (
            [run for run in runs if run["instructions"] == kind],
            [run for run in sb3 if run["instructions"] == kind],
        )
        for kind in sorted(kinds)
    ]


def compute_cost_ratio(runs: Sequence[Figures], sb3: Sequence[Figures]) -> float:
    """Return the CPU seconds of an env step relative to SB3, mean over kinds of processors; NaN without one."""
    ratios = [compute_cost(ours) / compute_cost(theirs) for ours, theirs in pair_by_processor(runs, sb3)]
    return statistics.fmean(ratios) if ratios else math.nan


def format_time_to_return(runs: Sequence[Figures], sb3: Sequence[Figures]) -> str:
    """Return the mean CPU time until a curve reaches the mean return of SB3, relative to the CPU time of SB3."""
    target = average(sb3, "greedy")
    ratios: list[float | None] = []
    for ours, theirs in pair_by_processor(runs, sb3):
        for run in ours:
            seconds = next((seconds for _, seconds, value in run["curve"] if value >= target), None)
            ratios.append(seconds and seconds / average(theirs, "cpu_seconds"))
    if not ratios:
        return UNKNOWN
    reached = [ratio for ratio in ratios if ratio is not None]
    return (
        f"{statistics.fmean(reached):.2f}" if len(reached) == len(ratios) else f"{len(reached)} of {len(ratios)} runs"
    )


def format_geometric_mean(ratios: Sequence[float]) -> str:
    """Return the geometric mean of ratios as text; `UNKNOWN` if one of them is not positive, or NaN."""
    return f"{statistics.geometric_mean(ratios):.2f}" if all(ratio > 0 for ratio in ratios) else UNKNOWN


def main() -> None:
    """Make the missing runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the results")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--variant", nargs="*", default=[], help="variants of the tasks' folders to train")
    parser.add_argument("--sb3", action="store_true", help="train SAC of Stable-Baselines3, too")
    parser.add_argument("--seeds", nargs="+", type=int, default=[7000, 7001])
    parser.add_argument("--steps", type=int, default=100_000, help="env steps of a run")
    parser.add_argument("--runs", type=Path, help="folder that keeps the runs, so that interrupted ones continue")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    learners = [*options.variant, *([SB3] if options.sb3 else [])]
    with tempfile.TemporaryDirectory() as temporary:
        runs = (options.runs or Path(temporary)).resolve()
        runs.mkdir(parents=True, exist_ok=True)
        for line in collect(options.folder, runs, options.tasks, learners, options.steps, options.seeds):
            print(line, flush=True)
    print_table(options.folder, options.tasks, options.steps)


if __name__ == "__main__":
    main()
