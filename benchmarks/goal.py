"""Env steps and CPU seconds until an environment folder reaches its goal, for each of several seeds."""

from __future__ import annotations

import argparse

from measure import EPISODES, describe_setup, format_spread, run_in_subprocesses, train_folder


def main() -> None:
    """Print one line per seed and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env", help="environment folder below envs/, for example gym/cartpole")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument(
        "--episodes", type=int, default=EPISODES, help="number of greedy episodes at the end, outside the measured time"
    )
    parser.add_argument("-c", "--config", default="default", help="variant of the folder's config.yaml")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    results = run_in_subprocesses(
        train_folder, [(options.env, seed, (), options.episodes, options.config) for seed in seeds]
    )
    print(describe_setup())
    print("| seed | env steps | updates | CPU s | evaluation mean | greedy |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for seed, result in zip(seeds, results, strict=True):
        print(
            f"| {seed} | {result['env_steps']:,} | {result['updates']:,} | {result['cpu_seconds']:.2f} "
            f"| {result['evaluation']:.4g}{'' if result['reached'] else ' (not reached)'} | {result['greedy']:.4g} |"
        )
    print(
        f"reached {sum(result['reached'] for result in results)} of {len(results)}; "
        f"env steps {format_spread(result['env_steps'] for result in results)}; "
        f"CPU seconds {format_spread((result['cpu_seconds'] for result in results), 2)}"
    )


if __name__ == "__main__":
    main()
