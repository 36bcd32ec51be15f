"""Env steps of CartPole-v1 with every estimator and critic, also relative to Retrace."""

from __future__ import annotations

import argparse
from statistics import median

from measure import describe_setup, format_spread, run_in_subprocesses, train_cartpole

from algorithm.returns import ESTIMATORS, find_estimators

PAIRS = [
    *((estimator, "action_value") for estimator in ESTIMATORS),
    *((estimator, "state_value") for estimator in find_estimators(for_state_values=True)),
]


def main() -> None:
    """Print one line per pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=2100)
    parser.add_argument("--set", nargs="+", default=[], metavar="section.key=value", help="settings of every pair")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    print(describe_setup())
    print("| estimator | critic | reached | env steps, median [range] | relative to Retrace | worst evaluation |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    baseline = None
    for estimator, critic in PAIRS:
        changes = [f"acer_config.estimator={estimator}", f"acer_config.critic={critic}", *options.set]
        results = run_in_subprocesses(train_cartpole, [(seed, changes) for seed in seeds])
        steps = [result["env_steps"] for result in results]
        baseline = baseline or median(steps)
        reached = sum(result["reached"] for result in results)
        worst = min(result["evaluation"] for result in results)
        print(
            f"| {estimator} | {critic} | {reached} of {len(results)} | {format_spread(steps)} | "
            f"{median(steps) / baseline:.2f} | {worst:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
