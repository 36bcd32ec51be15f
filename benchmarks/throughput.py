"""Env steps per CPU second of training on one core: with vectors (2 x 64 units, replay ratio 4), or with pictures.

With `--pictures`, a run that ends when learning has begun is subtracted, so that the figure is that of collecting and
learning together, without the first steps and the start of the run.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from measure import describe_setup, format_spread, run_in_subprocesses, train_folder

CONSTANT_WORK = ("goal=null", "base_config.evaluate_every=null", "base_config.log_every=50000")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A variant of a folder with further settings; `begin`, in env steps, is the length of the run to subtract."""

    env: str
    variant: str = "default"
    begin: int = 0
    env_steps: int
    settings: tuple[str, ...] = ()


def make_vector_case(env: str, n_envs: int, rollout_length: int, env_steps: int) -> Case:
    """Return a case whose batches are as large as rollouts: 5 steps are learned per env step."""
    changes = {
        "rollout_length": rollout_length,
        "sequence_length": rollout_length,
        "batch_size": n_envs,
        "replay_ratio": 4,
        "learning_rate_schedule": "constant",
        "on_policy_updates": "true",
    }
    settings = [f"base_config.n_envs={n_envs}", *(f"acer_config.{name}={value}" for name, value in changes.items())]
    return Case(env=env, env_steps=env_steps, settings=tuple(settings))


VECTORS = {
    "CartPole-v1, 16 environments, rollouts of 20": make_vector_case("gym/cartpole", 16, 20, 200_000),
    "CartPole-v1, 128 environments, rollouts of 50": make_vector_case("gym/cartpole", 128, 50, 200_000),
    "Pendulum-v1, 16 environments, rollouts of 20": make_vector_case("gym/pendulum", 16, 20, 80_000),
}
ACER = {"env": "atari/pong", "variant": "acer", "begin": 12_000, "env_steps": 40_000}
PICTURES = {
    "Pong, the recipe of the folder": Case(env="atari/pong", begin=12_000, env_steps=40_000),
    "Pong, ACER": Case(**ACER),
    "Pong, the same without a replay": Case(**ACER, settings=("acer_config.replay_ratio=0",)),
}


def measure(case: Case, env_steps: int) -> tuple[int, float]:
    """Train for `env_steps` without a goal; return the env steps and the CPU seconds."""
    settings = [*CONSTANT_WORK, f"base_config.max_step={env_steps}", *case.settings]
    result = train_folder(case.env, 0, settings, episodes=0, variant=case.variant)
    return result["env_steps"], result["cpu_seconds"]


def compute_throughput(case: Case, repeats: int) -> list[float]:
    """Return the env steps per CPU second of several runs."""
    ends = run_in_subprocesses(measure, [(case, case.env_steps)] * repeats)
    begins = run_in_subprocesses(measure, [(case, case.begin)] * repeats) if case.begin else [(0, 0.0)] * repeats
    return [(end[0] - begin[0]) / (end[1] - begin[1]) for end, begin in zip(ends, begins, strict=True)]


def main() -> None:
    """Print one line per case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--pictures", action="store_true")
    options = parser.parse_args()
    print(describe_setup())
    print("| setting | env steps per CPU second, median [range] |")
    print("| --- | ---: |")
    for name, case in (PICTURES if options.pictures else VECTORS).items():
        print(f"| {name} | {format_spread(compute_throughput(case, options.repeats))} |", flush=True)


if __name__ == "__main__":
    main()
