"""A folder for so many env steps, whatever its goal: the returns on the way, over seeds."""

from __future__ import annotations

import argparse

import numpy as np
from measure import EPISODES, in_own_processes, machine, spread, train_folder

POINTS = 10  # rows of the table


def main() -> None:
    """Print one line per tenth of the run, of the last 20 training episodes, and the evaluation at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env", help="environment folder below envs/, for example mujoco/half_cheetah")
    parser.add_argument("--env-steps", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--episodes", type=int, default=EPISODES, help="played greedily at the end, off the clock")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings that differ")
    options = parser.parse_args()
    changes = [f"base_config.max_step={options.env_steps}", "goal.return=null", *options.set]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    results = in_own_processes(train_folder, [(options.env, seed, changes, options.episodes) for seed in seeds])
    print(machine())
    print(f"{options.env}, seeds {seeds[0]}-{seeds[-1]} {' '.join(options.set)}")
    print("| env steps | return, median [range] |")
    print("| ---: | ---: |")
    for point in np.linspace(0, options.env_steps, POINTS + 1)[1:]:
        print(f"| {point:,.0f} | {spread((_at(point, result['curve']) for result in results), 1)} |")
    print(
        f"greedy, {options.episodes} evaluation episodes at the end: {spread((r['greedy'] for r in results), 1)}; "
        f"CPU seconds {spread(result['cpu_seconds'] for result in results)}; "
        f"env steps per CPU second {spread(result['env_steps'] / result['cpu_seconds'] for result in results)}"
    )


def _at(env_steps: float, curve: tuple[list[float], list[float]]) -> float:
    """The return in the last row of metrics up to `env_steps`."""
    steps, returns = map(np.array, curve)
    known = (steps <= env_steps) & np.isfinite(returns)
    return float(returns[known][-1]) if known.any() else float("nan")


if __name__ == "__main__":
    main()
