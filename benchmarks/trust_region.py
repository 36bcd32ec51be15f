"""Env steps to a goal without trust region and with every delta in every space, and the share of projected steps."""

from __future__ import annotations

import argparse

from measure import describe_setup, format_spread, run_in_subprocesses, train_folder


def main() -> None:
    """Print one line per setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env", nargs="?", default="gym/cartpole", help="environment folder below envs/")
    parser.add_argument("--spaces", nargs="+", default=["logits", "probs"])
    parser.add_argument("--deltas", nargs="+", type=float, default=[1.0, 0.3, 0.2, 0.1, 0.05])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=2000)
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    settings = {"off": ["acer_config.trust_region=off"]}
    for space in options.spaces:
        for delta in options.deltas:
            settings[f"{space}, delta {delta:g}"] = [
                f"acer_config.trust_region_space={space}",
                f"acer_config.trust_region_delta={delta}",
            ]
    print(describe_setup())
    print("| trust region | reached | env steps, median [range] | evaluation mean, worst seed | steps projected |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, assignments in settings.items():
        results = run_in_subprocesses(train_folder, [(options.env, seed, assignments) for seed in seeds])
        print(
            f"| {name} | {sum(result['reached'] for result in results)} of {len(results)} "
            f"| {format_spread(result['env_steps'] for result in results)} "
            f"| {min(result['evaluation'] for result in results):.0f} "
            f"| {100 * sum(result['trust_region_fraction'] for result in results) / len(results):.2f}% |",
            flush=True,
        )


if __name__ == "__main__":
    main()
