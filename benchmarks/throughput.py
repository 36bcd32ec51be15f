"""Env steps per CPU second of training with replay ratio 4 and 2 x 64 units on one core."""

from __future__ import annotations

import argparse

from measure import describe_setup, format_spread, run_in_subprocesses, train_folder

# Folder, environments, rollout length, and share of the env steps (continuous actions take longer).
SETTINGS = {
    "CartPole-v1, 16 environments, rollouts of 20": ("gym/cartpole", 16, 20, 1.0),
    "CartPole-v1, 128 environments, rollouts of 50": ("gym/cartpole", 128, 50, 1.0),
    "Pendulum-v1, 16 environments, rollouts of 20": ("gym/pendulum", 16, 20, 0.4),
}


def measure(env: str, n_envs: int, rollout_length: int, env_steps: int) -> dict:
    """Train for `env_steps` without a goal, with batches as large as rollouts: 5 steps are learned per env step."""
    changes = [
        f"base_config.n_envs={n_envs}",
        f"base_config.max_step={env_steps}",
        "base_config.log_every=50000",
        f"acer_config.rollout_length={rollout_length}",
        f"acer_config.sequence_length={rollout_length}",
        f"acer_config.batch_size={n_envs}",
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
    print(describe_setup())
    print("| setting | env steps per CPU second, median [range] |")
    print("| --- | ---: |")
    for name, (env, n_envs, rollout_length, share) in SETTINGS.items():
        arguments = (env, n_envs, rollout_length, int(options.env_steps * share))
        results = run_in_subprocesses(measure, [arguments] * options.repeats)
        print(
            f"| {name} | {format_spread(result['env_steps'] / result['cpu_seconds'] for result in results)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
