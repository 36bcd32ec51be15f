"""Env steps per CPU second, acting and learning at replay ratio 4, with 2x64 units on one core."""

from __future__ import annotations

import argparse

from measure import in_own_processes, machine, spread, train_folder

# Folder, copies, rows of a trace, and the share of the env steps: continuous actions take longer.
SETTINGS = {
    "CartPole-v1, 16 copies, traces of 20": ("gym/cartpole", 16, 20, 1.0),
    "CartPole-v1, 128 copies, traces of 50": ("gym/cartpole", 128, 50, 1.0),
    "Pendulum-v1, 16 copies, traces of 20": ("gym/pendulum", 16, 20, 0.4),
}


def measure(env: str, copies: int, rows: int, env_steps: int) -> dict:
    """Train for `env_steps` without a goal; batches are as large as rollouts, so 5 rows are trained per env step."""
    changes = [
        f"base_config.n_envs={copies}",
        f"base_config.max_step={env_steps}",
        "base_config.log_every=50000",
        f"acer_config.rollout_length={rows}",
        f"acer_config.sequence_length={rows}",
        f"acer_config.batch_size={copies}",
        "acer_config.replay_ratio=4",
        "acer_config.learning_rate_schedule=constant",
        "acer_config.on_policy_updates=true",
        "goal.return=null",
    ]
    return train_folder(env, 0, changes)


def main() -> None:
    """Print one line per setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--env-steps", type=int, default=200_000)
    options = parser.parse_args()
    print(machine())
    print("| setting | env steps per CPU second, median [range] |")
    print("| --- | ---: |")
    for name, (env, copies, rows, share) in SETTINGS.items():
        results = in_own_processes(measure, [(env, copies, rows, int(options.env_steps * share))] * options.repeats)
        print(f"| {name} | {spread(result['env_steps'] / result['cpu_seconds'] for result in results)} |", flush=True)


if __name__ == "__main__":
    main()
