"""Env steps, CPU seconds and greedy return in environments that need a memory, with each memory and without."""

from __future__ import annotations

import argparse

import numpy as np
from measure import describe_setup, format_spread, run_in_subprocesses, train_folder

MEMORIES = ("gru", "lstm", "attention", "frame_stack", "none")


def main() -> None:
    """Print one line per memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "env", help="environment folder whose nn_config has the key `memory`, for example memory/recall"
    )
    parser.add_argument("--memories", nargs="+", default=MEMORIES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--episodes", type=int, default=200, help="number of greedy episodes at the end")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    print(describe_setup())
    print(f"{options.env}, seeds {seeds[0]}-{seeds[-1]}, {options.episodes} greedy episodes each")
    print("| memory | reached | env steps | CPU s | greedy evaluation return |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for memory in options.memories:
        changes = (f"nn_config.memory={memory}",)
        results = run_in_subprocesses(train_folder, [(options.env, seed, changes, options.episodes) for seed in seeds])
        reached = np.array([result["reached"] for result in results])
        print(
            f"| {memory} | {reached.sum()} of {len(results)} "
            f"| {format_spread(result['env_steps'] for result in results)} "
            f"| {format_spread((result['cpu_seconds'] for result in results), 1)} "
            f"| {format_spread((result['greedy'] for result in results), 2)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
