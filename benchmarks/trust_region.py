"""Env steps to a goal, and cost of an update, without trust region, with every efficient one, and with the full one."""

from __future__ import annotations

import argparse

from measure import EPISODES, describe_setup, format_spread, run_in_subprocesses, train_folder


def main() -> None:
    """Print one line per setting; the last column is CPU milliseconds of training per update, median [range]."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("env", nargs="?", default="gym/cartpole", help="environment folder below envs/")
    parser.add_argument("--spaces", nargs="+", default=["logits", "probs"])
    parser.add_argument("--deltas", nargs="+", type=float, default=[1.0, 0.3, 0.2, 0.1, 0.05])
    parser.add_argument("--full", default="full_trust_region", help="variant with the full trust region, or none")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=2000)
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    settings = {"off": ("default", ["acer_config.trust_region=off"])}
    for space in options.spaces:
        for delta in options.deltas:
            changes = [f"acer_config.trust_region_space={space}", f"acer_config.trust_region_delta={delta}"]
            settings[f"{space}, delta {delta:g}"] = ("default", changes)
    if options.full != "none":
        settings["full"] = (options.full, [])
    print(describe_setup())
    print("| trust region | reached | env steps, median [range] | evaluation mean, worst seed | steps projected | ms |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, (variant, changes) in settings.items():
        arguments = [(options.env, seed, changes, EPISODES, variant) for seed in seeds]
        results = run_in_subprocesses(train_folder, arguments)
        print(
            f"| {name} | {sum(result['reached'] for result in results)} of {len(results)} "
            f"| {format_spread(result['env_steps'] for result in results)} "
            f"| {min(result['evaluation'] for result in results):.0f} "
            f"| {100 * sum(result['trust_region_fraction'] for result in results) / len(results):.2f}% "
            f"| {format_spread((1000 * result['cpu_seconds'] / result['updates'] for result in results), 1)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
