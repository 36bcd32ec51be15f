"""Compare a variant of the folders of robots with published results, and with Stable-Baselines3, at 100,000 env steps.

Samara trains with the settings of a variant, Stable-Baselines3 with those of RL Baselines3 Zoo 2.9.2 for these tasks
(`learning_starts: 10000`, otherwise its defaults). The figure of a run is the mean return of 20 fresh greedy episodes
with the last weights; those of its curve are measured after training, from its checkpoints. CPU seconds are those of
training alone. Each run is a file in a folder, so that the table can be made in several calls; without learners, only
the table of the files that exist is printed.

    python benchmarks/locomotion.py benchmarks/results/locomotion --tasks walker2d --learners sac SB3 --seeds 7100
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

SB3 = "SB3"
STEPS, CHECKPOINTS, EPISODES = 100_000, 10, 20  # of a run; at equal intervals; of each checkpoint
LATE = 60_000  # env steps from which a collapse counts
FIRST_EPISODE = 1_000_000  # seed of the first episode of Stable-Baselines3, and further than any seed of a run


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task: its folder, its id, and the mean returns at 100,000 env steps of the authors' own runs (v4 of MuJoCo)."""

    folder: str
    env_name: str
    published: Mapping[str, float] = field(default_factory=dict)


def make_mujoco(name: str, env_name: str, sac: float, redq: float, crossq: float, simba: float) -> Task:
    """Return a task of MuJoCo, with the result files of SimbaV2 and MR.Q."""
    published = {"SAC": sac, "REDQ": redq, "CrossQ": crossq, "SimbaV2": simba}
    return Task(folder=f"mujoco/{name}", env_name=env_name, published=published)


TASKS = {
    "half_cheetah": make_mujoco("half_cheetah", "HalfCheetah-v5", 6156, 7823, 8112, 7328),
    "walker2d": make_mujoco("walker2d", "Walker2d-v5", 690, 3459, 3914, 3023),
    "walker2d_v4": make_mujoco("walker2d", "Walker2d-v4", 690, 3459, 3914, 3023),
    "hopper": make_mujoco("hopper", "Hopper-v5", 1104, 2750, 2764, 2821),
    "ant": make_mujoco("ant", "Ant-v5", 747, 3288, 2299, 3881),
    "humanoid": make_mujoco("humanoid", "Humanoid-v5", 632, 1319, 2603, 1329),
    "cartpole_swingup": Task(
        folder="dm_control/cartpole_swingup", env_name="cartpole-swingup", published={"SimbaV2": 861}
    ),
    "cheetah_run": Task(folder="dm_control/cheetah_run", env_name="cheetah-run", published={"MR.Q": 648}),
    "walker_run": Task(folder="dm_control/walker_run", env_name="walker-run", published={"TD-MPC2": 723}),
}
MEANS = ("half_cheetah", "walker2d", "hopper", "ant", "humanoid")  # tasks of the geometric means
Figures = dict[str, Any]  # of a run: env_steps, cpu_seconds, returns, instructions, and for a variant curve


def train_variant(task: Task, variant: str, seed: int, runs: Path) -> Figures:
    """Train a variant of a task's folder, and return the figures of the run.

    A run that was interrupted continues from its last checkpoint in `runs`. `curve` has a list [env steps, CPU seconds,
    mean greedy return] for each checkpoint.
    """
    import measure  # noqa: F401  # sets the path of the repository and imports what a run would import otherwise

    from algorithm import train
    from algorithm.parts.env_folder import RUNS
    from algorithm.parts.run_folder import RunFolder
    from algorithm.runs.playing import play

    os.chdir(runs)  # of a process that makes this run alone
    name = f"{task.env_name}-{variant}-{seed}"
    folder = RunFolder(RUNS / task.folder / name)
    if folder.has_learned():
        train(task.folder, name=name, resume=True)
    else:
        base = {"env_name": task.env_name, "seed": seed, "max_step": STEPS, "evaluate_every": None}
        saving = {"save_every": STEPS // CHECKPOINTS, "keep_checkpoints": CHECKPOINTS + 1}
        given = {"base_config": {**base, **saving}, "goal": None}
        train(task.folder, name=name, variant=variant, settings=given, replace=True)
    settings, curve = folder.load_settings(("benchmark", {"base_config": {"seed": seed + FIRST_EPISODE}})), []
    for checkpoint in folder.checkpoints(CHECKPOINTS + 1).list_all():
        ckpt = str(checkpoint.counters.env_steps)
        (result,) = play(settings, folder, EPISODES, True, ckpt=ckpt, log=lambda line: None).values()
        curve.append([checkpoint.counters.env_steps, checkpoint.counters.cpu_seconds, result.mean])
    env_steps, seconds, _ = curve[-1]
    return {"env_steps": env_steps, "cpu_seconds": seconds, "returns": list(result.returns), "curve": curve}


def train_sb3(task: Task, seed: int) -> Figures:
    """Train SAC of Stable-Baselines3 with its settings of the zoo, play, and return the figures of the run."""
    with contextlib.redirect_stderr(io.StringIO()):  # without the deprecation notice of gym, if that is installed
        sb3 = importlib.import_module("stable_baselines3")
    env = importlib.import_module("gymnasium").make(task.env_name)
    begin = time.process_time()
    model = sb3.SAC("MlpPolicy", env, seed=seed, device="cpu", learning_starts=10_000)
    model.learn(STEPS)
    figures: Figures = {"env_steps": model.num_timesteps, "cpu_seconds": time.process_time() - begin, "returns": []}
    for episode in range(FIRST_EPISODE, FIRST_EPISODE + EPISODES):
        obs, _ = env.reset(seed=episode)
        total, is_over = 0.0, False
        while not is_over:
            obs, reward, terminated, truncated, _ = env.step(model.predict(obs, deterministic=True)[0])
            total += float(reward)
            is_over = terminated or truncated
        figures["returns"].append(total)
    return figures


def train(learner: str, task: Task, seed: int, runs: Path) -> Figures:
    """Train after the imports, so that the measured time does not contain them."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")  # otherwise the first optimizer imports it
    figures = train_sb3(task, seed) if learner == SB3 else train_variant(task, learner, seed, runs)
    return figures | {"instructions": torch.backends.cpu.get_cpu_capability()}


def collect(
    folder: Path, runs: Path, names: Sequence[str], learners: Sequence[str], seeds: Sequence[int]
) -> Iterator[str]:
    """Make the runs that have no file in `folder`, one after the other, and yield a line for each."""
    for seed in seeds:
        for name in names:
            for learner in learners:
                path = folder / f"{name}.{learner}.{seed}.json"
                if path.exists():
                    continue
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                    figures = pool.submit(train, learner, TASKS[name], seed, runs).result()
                path.write_text(json.dumps(figures), encoding="utf-8")
                mean, seconds = compute_return(figures), figures["cpu_seconds"]
                yield f"{name} {learner} seed {seed}: return {mean:,.0f}, CPU s {seconds:,.0f}"


def print_table(folder: Path, names: Sequence[str]) -> None:
    """Print a row for each task and learner, and the geometric means of the ratios to published results."""
    others = list(dict.fromkeys(other for name in names for other in TASKS[name].published))
    ratios: dict[tuple[str, str], list[float]] = {}  # by learner and published algorithm
    print(f"Median [range] over seeds of the mean return of {EPISODES} greedy episodes after {STEPS:,} env steps; mean")
    print(f"of the evaluations from {LATE:,} on; the lowest of these relative to the best before it.\n")
    print(f"| task | learner | seeds | return | from {LATE:,} on | lowest | CPU s | to {' | to '.join(others)} |")
    print(f"| --- | --- | {'---: | ' * (5 + len(others))}".rstrip())
    for name in names:
        for learner, runs in read_results(folder, name).items():
            returns, published = [compute_return(run) for run in runs], TASKS[name].published
            middle = statistics.median(returns)
            cells = [str(len(runs)), f"{middle:,.0f} [{min(returns):,.0f} - {max(returns):,.0f}]", "-", "-"]
            curves = [run["curve"] for run in runs if "curve" in run]
            if curves:
                late = statistics.fmean(value for curve in curves for steps, _, value in curve if steps >= LATE)
                cells[2:] = [f"{late:,.0f}", f"{min(map(find_lowest, curves)):.2f}"]
            cells.append(f"{statistics.fmean(run['cpu_seconds'] for run in runs):,.0f}")
            cells += [f"{middle / published[other]:.2f}" if other in published else "-" for other in others]
            print(f"| {name} | {learner} | {' | '.join(cells)} |")
            for other in published if name in MEANS else ():
                ratios.setdefault((learner, other), []).append(middle / published[other])
    for (learner, other), values in ratios.items():
        if min(values) > 0:
            print(f"\n{learner} to {other}, geometric mean of {len(values)}: {statistics.geometric_mean(values):.2f}")


def compute_return(run: Figures) -> float:
    """Return the mean return of the last weights of a run."""
    return statistics.fmean(run["returns"])


def find_lowest(curve: Sequence[tuple[int, float, float]]) -> float:
    """Return the lowest evaluation of a curve from `LATE` on, relative to the best one before it."""
    return min(
        value / max(before for _, _, before in curve[:number])
        for number, (steps, _, value) in enumerate(curve)
        if number and steps >= LATE
    )


def read_results(folder: Path, name: str) -> dict[str, list[Figures]]:
    """Return the figures of the runs of a task that have ended, by learner."""
    results: dict[str, list[Figures]] = {}
    for path in sorted(folder.glob(f"{name}.*.json")):
        results.setdefault(path.name.split(".")[1], []).append(json.loads(path.read_text(encoding="utf-8")))
    return results


def main() -> None:
    """Make the missing runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the results")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--learners", nargs="*", default=[], help="variants of the tasks' folders to train, and SB3")
    parser.add_argument("--seeds", nargs="+", type=int, default=[7100])
    parser.add_argument("--runs", type=Path, help="folder that keeps the runs, so that interrupted ones continue")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        runs = (options.runs or Path(temporary)).resolve()
        runs.mkdir(parents=True, exist_ok=True)
        for line in collect(options.folder, runs, options.tasks, options.learners, options.seeds):
            print(line, flush=True)
    print_table(options.folder, options.tasks)


if __name__ == "__main__":
    main()
