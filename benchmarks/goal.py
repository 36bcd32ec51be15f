"""A folder until its goal is confirmed: env steps and CPU seconds of one of its variants, seed by seed."""

from __future__ import annotations

import argparse

from measure import EPISODES, in_own_processes, machine, spread, train_folder


def main() -> None:
    """Print one line per seed and the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env", help="environment folder below envs/, for example gym/cartpole")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument(
        "--episodes", type=int, default=EPISODES, help="played greedily with the weights at the end, off the clock"
    )
    parser.add_argument("-c", "--config", default="default", help="variant of the folder's config.yaml")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    results = in_own_processes(
        train_folder, [(options.env, seed, (), options.episodes, options.config) for seed in seeds]
    )
    print(machine())
    print("| seed | env steps | updates | CPU s | evaluation mean | greedy |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for seed, result in zip(seeds, results, strict=True):
        print(
            f"| {seed} | {result['env_steps']:,} | {result['updates']:,} | {result['cpu_seconds']:.2f} "
            f"| {result['evaluation']:.4g}{'' if result['reached'] else ' (not reached)'} | {result['greedy']:.4g} |"
        )
    print(
        f"reached {sum(result['reached'] for result in results)} of {len(results)}; "
        f"env steps {spread(result['env_steps'] for result in results)}; "
        f"CPU seconds {spread((result['cpu_seconds'] for result in results), 2)}"
    )


if __name__ == "__main__":
    main()
