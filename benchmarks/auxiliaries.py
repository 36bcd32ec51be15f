"""Auxiliaries: the cost of each relative to the agent's own update, and the env steps to a goal with each."""

from __future__ import annotations

import argparse
import json
import time
from contextlib import suppress
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any

from measure import describe_setup, format_spread, run_in_subprocesses, train_folder

from algorithm.agents.agent import LossResult
from algorithm.rollout import Rollout
from algorithm.training.learner import Learner

# Settings by name; AUGMENTATION is replaced by that of the case.
AUXILIARIES = {
    "none": "{}",
    "curiosity": "{curiosity: {}}",
    "curiosity, features of the agent": "{curiosity: {features: agent}}",
    "rnd": "{rnd: {}}",
    "episodic": "{episodic: {}}",
    "prediction": "{prediction: {}}",
    "atc": "{atc: {AUGMENTATION}}",
    "byol": "{byol: {AUGMENTATION}}",
}
# Folder, variant, and the augmentation that atc and byol need for its observations.
CASES = {
    "ACER, gym/lunar_lander": ("gym/lunar_lander", "default", "noise: 0.1"),
    "PPO, minigrid/doorkey_5x5": ("minigrid/doorkey_5x5", "ppo", "noise: 0.1, steps: 0"),
    "ACER, minatar/breakout": ("minatar/breakout", "default", "shift: 1"),
    "ACER, visual/errand": ("visual/errand", "default", "shift: 1"),
}
FIRST_UPDATES, REPETITIONS = 40, 60
FEATURES = ("default", "shift", "prediction", "atc", "byol")
GAMES = ("visual/errand", "minatar/breakout")


class Measured(Exception):
    """An exception that ends a run after the measurement."""


def time_updates(env: str, variant: str, auxiliaries: str) -> dict[str, float]:
    """Train for some updates, then repeat the next one. Return the mean CPU seconds of the repetitions."""
    compute, calls, seconds = Learner.compute_gradients, count(), []

    @wraps(compute)
    def compute_gradients(learner: Learner, batch: Rollout) -> LossResult:
        if next(calls) == FIRST_UPDATES:
            begin = time.process_time()
            for _ in range(REPETITIONS):
                compute(learner, batch)
                learner.apply_gradients()
            seconds.append((time.process_time() - begin) / REPETITIONS)
            raise Measured
        return compute(learner, batch)

    Learner.compute_gradients = compute_gradients  # type: ignore[method-assign]
    with suppress(Measured):
        train_folder(env, 0, [f"auxiliaries={auxiliaries}", "goal=null"], 0, variant)
    return {"seconds": seconds[0]}


def measure_costs(options: argparse.Namespace) -> None:
    """Print the CPU time that each auxiliary adds to an update, relative to an update without any."""
    print("| auxiliary | " + " | ".join(CASES) + " |\n| --- |" + " ---: |" * len(CASES))
    columns = [measure_case(*case, options.rounds) for case in CASES.values()]
    for name in AUXILIARIES:
        print(f"| {name} | " + " | ".join(column[name] for column in columns) + " |")


def measure_case(env: str, variant: str, augmentation: str, rounds: int) -> dict[str, str]:
    """Return a cell of the table for each auxiliary: milliseconds without any, otherwise the added fraction."""
    seconds: dict[str, list[float]] = {name: [] for name in AUXILIARIES}
    for _ in range(rounds):
        for name, settings in AUXILIARIES.items():
            ((result),) = run_in_subprocesses(
                time_updates, [(env, variant, settings.replace("AUGMENTATION", augmentation))]
            )
            seconds[name].append(result["seconds"])
    without = seconds["none"]
    cells = {
        name: format_spread((each / own - 1 for each, own in zip(values, without, strict=True)), 2)
        for name, values in seconds.items()
    }
    return {**cells, "none": f"{format_spread((1e3 * each for each in without), 2)} ms"}


def compare_features(options: argparse.Namespace) -> None:
    """Make the runs to the goal that have no file in the folder, and print a table of all."""
    options.folder.mkdir(parents=True, exist_ok=True)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for env in options.games:
        print(f"\n| {env} | reached | env steps | CPU seconds |\n| --- | ---: | ---: | ---: |", flush=True)
        for variant in FEATURES:
            name = "none" if variant == "default" else variant
            runs = [
                load_or_train(options.folder / f"{env.replace('/', '.')}.{variant}.{seed}.json", env, seed, variant)
                for seed in seeds
            ]
            print(
                f"| {name} | {sum(run['reached'] for run in runs)} of {len(runs)} "
                f"| {format_spread(run['env_steps'] for run in runs)} "
                f"| {format_spread(run['cpu_seconds'] for run in runs)} |",
                flush=True,
            )


def load_or_train(path: Path, env: str, seed: int, variant: str) -> dict[str, Any]:
    """Return the figures of a run to the goal from its file; if the file is missing, train first and write it."""
    if not path.exists():
        (figures,) = run_in_subprocesses(train_folder, [(env, seed, (), 0, variant)])
        path.write_text(json.dumps(figures), encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


def main() -> None:
    """Run the measurement of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    costs = commands.add_parser("costs", help=measure_costs.__doc__)
    costs.add_argument("--rounds", type=int, default=3)
    costs.set_defaults(run=measure_costs)
    features = commands.add_parser("features", help=compare_features.__doc__)
    features.add_argument("folder", type=Path, help="folder of the results")
    features.add_argument("--games", nargs="+", default=list(GAMES), choices=GAMES)
    features.add_argument("--seeds", type=int, default=3)
    features.add_argument("--first-seed", type=int, default=9600)
    features.set_defaults(run=compare_features)
    options = parser.parse_args()
    print(describe_setup())
    options.run(options)


if __name__ == "__main__":
    main()
