"""Learning curve of an environment folder over several seeds, for a fixed number of env steps."""

from __future__ import annotations

import argparse

import numpy as np
from measure import EPISODES, describe_setup, format_spread, run_in_subprocesses, train_folder

POINTS = 10  # rows of the table


def main() -> None:
    """Print the mean return of the last 20 training episodes at each tenth of the run, and the final evaluation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env", help="environment folder below envs/, for example mujoco/half_cheetah")
    parser.add_argument("--env-steps", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument(
        "--episodes", type=int, default=EPISODES, help="number of greedy episodes at the end, outside the measured time"
    )
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings that differ from the folder's"
    )
    options = parser.parse_args()
    changes = [f"base_config.max_step={options.env_steps}", "goal.return=null", *options.set]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    results = run_in_subprocesses(train_folder, [(options.env, seed, changes, options.episodes) for seed in seeds])
    print(describe_setup())
    print(f"{options.env}, seeds {seeds[0]}-{seeds[-1]} {' '.join(options.set)}")
    print("| env steps | return, median [range] |")
    print("| ---: | ---: |")
    for point in np.linspace(0, options.env_steps, POINTS + 1)[1:]:
        print(f"| {point:,.0f} | {format_spread((_get_return(point, result['curve']) for result in results), 1)} |")
    print(
        f"{options.episodes} greedy episodes at the end: {format_spread((result['greedy'] for result in results), 1)}; "
        f"CPU seconds {format_spread(result['cpu_seconds'] for result in results)}; "
        f"env steps per CPU second {format_spread(result['env_steps'] / result['cpu_seconds'] for result in results)}"
    )


def _get_return(env_steps: float, curve: tuple[list[float], list[float]]) -> float:
    """Return the last logged return up to `env_steps`; NaN if none is logged."""
    steps, returns = map(np.array, curve)
    is_logged = (steps <= env_steps) & np.isfinite(returns)
    return float(returns[is_logged][-1]) if is_logged.any() else float("nan")


if __name__ == "__main__":
    main()
