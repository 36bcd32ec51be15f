"""Env steps per CPU second of CartPole-v1, acting and learning at replay ratio 4, with 2x64 units on one core."""

from __future__ import annotations

import argparse

from measure import in_own_processes, machine, spread, train_cartpole

SETTINGS = {"16 copies, traces of 20": (16, 20), "128 copies, traces of 50": (128, 50)}


def measure(copies: int, rows: int, env_steps: int) -> dict:
    """Train for `env_steps` without a goal; batches are as large as rollouts, so 5 rows are trained per env step."""
    changes = [
        f"base_config.n_envs={copies}",
        f"base_config.max_step={env_steps}",
        "base_config.log_every=50000",
        f"acer_config.collect_steps={rows}",
        f"acer_config.trace_length={rows}",
        f"acer_config.batch_size={copies}",
        "acer_config.replay_ratio=4",
        "acer_config.learning_rate_schedule=constant",
        "goal.return=null",
    ]
    return train_cartpole(0, changes)


def main() -> None:
    """Print one line per setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--env-steps", type=int, default=200_000)
    options = parser.parse_args()
    print(machine())
    print("| setting | env steps per CPU second, median [range] |")
    print("| --- | ---: |")
    for name, (copies, rows) in SETTINGS.items():
        results = in_own_processes(measure, [(copies, rows, options.env_steps)] * options.repeats)
        print(f"| {name} | {spread(result['env_steps'] / result['cpu_seconds'] for result in results)} |", flush=True)


if __name__ == "__main__":
    main()
