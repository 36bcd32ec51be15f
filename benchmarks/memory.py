"""Tasks that need a memory, with each memory and without: env steps, CPU seconds and greedy evaluation return."""

from __future__ import annotations

import argparse

import numpy as np
from measure import in_own_processes, machine, spread, train_folder

MEMORIES = ("gru", "lstm", "attention", "frame_stack", "none")


def main() -> None:
    """Print one line for each memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env", help="environment folder whose nn_config has a memory, for example memory/recall")
    parser.add_argument("--memories", nargs="+", default=MEMORIES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--episodes", type=int, default=200, help="played greedily with the weights at the end")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    print(machine())
    print(f"{options.env}, seeds {seeds[0]}-{seeds[-1]}, {options.episodes} greedy episodes each")
    print("| memory | reached | env steps | CPU s | greedy evaluation return |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for memory in options.memories:
        changes = (f"nn_config.memory={memory}",)
        results = in_own_processes(train_folder, [(options.env, seed, changes, options.episodes) for seed in seeds])
        reached = np.array([result["reached"] for result in results])
        print(
            f"| {memory} | {reached.sum()} of {len(results)} | {spread(result['env_steps'] for result in results)} "
            f"| {spread((result['cpu_seconds'] for result in results), 1)} "
            f"| {spread((result['greedy'] for result in results), 2)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
