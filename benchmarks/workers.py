"""Workers: env steps per second with slow environments, and env steps to the goal of gym/cartpole, against one process.

With `speed`, each step of a CartPole environment sleeps 2 ms; the env steps per second of two workers are compared with
those of one, after the start of the processes. With `learning`, ACER learns gym/cartpole with two workers
(`acer_workers`) and in one process (`default`).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
from measure import describe_setup, format_sleeping_env, format_spread, run_in_subprocesses, train_folder

from algorithm import train

SLEEP_SECONDS = 0.002
ENV = format_sleeping_env(SLEEP_SECONDS)
CONFIG = """
default:
  base_config: {env_type: GYM, env_name: env.py, algorithm: ACER, runtime: WORKERS, n_envs: 1, log_every: 500}
  acer_config: {rollout_length: 40, replay_ratio: 4, batch_size: 8}
"""


def measure_speed(workers: int, env_steps: int) -> dict[str, float]:
    """Return the env steps per second of a run with slow environments, after the first rows of metrics."""
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        folder = Path("envs/benchmark/sleeping")
        folder.mkdir(parents=True)
        (folder / "env.py").write_text(ENV)
        (folder / "config.yaml").write_text(CONFIG)
        settings = {"base_config.n_workers": workers, "base_config.max_step": env_steps * workers}
        result = train("benchmark/sleeping", name="run", settings=settings)
        table = np.genfromtxt(result.folder / "metrics.csv", delimiter=",", names=True, deletechars="")
        os.chdir("/")
    steps, seconds = table["env_steps"], table["time/seconds"]
    first = len(steps) // 4
    return {"env_steps_per_second": (steps[-1] - steps[first]) / (seconds[-1] - seconds[first])}


def compare_speed(repeats: int, env_steps: int) -> None:
    """Print the env steps per second of one and of two workers, measured in turn."""
    runs = [(workers, env_steps) for _ in range(repeats) for workers in (1, 2)]
    speeds = [result["env_steps_per_second"] for result in run_in_subprocesses(measure_speed, runs)]
    one, two = speeds[::2], speeds[1::2]
    print(f"one worker: {format_spread(one)} env steps per second")
    print(f"two workers: {format_spread(two)} env steps per second")
    print(f"ratio {format_spread((b / a for a, b in zip(one, two, strict=True)), 2)}")


def compare_learning(seeds: int, first_seed: int) -> None:
    """Print the env steps to the goal of gym/cartpole in one process and with two workers."""
    numbers = range(first_seed, first_seed + seeds)
    medians = {}
    for variant in ("default", "acer_workers"):
        arguments = [("gym/cartpole", seed, ("base_config.max_step=60000",), 0, variant) for seed in numbers]
        results = run_in_subprocesses(train_folder, arguments)
        steps = [result["env_steps"] for result in results]
        medians[variant] = np.median(steps)
        reached = sum(result["reached"] for result in results)
        print(f"{variant}: reached {reached} of {seeds}; env steps {format_spread(steps)}")
    print(f"ratio of the medians {medians['acer_workers'] / medians['default']:.2f}")


def main() -> None:
    """Print the measured figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["speed", "learning"], nargs="*", default=["speed", "learning"])
    parser.add_argument("--repeats", type=int, default=3, help="runs of each number of workers, for speed")
    parser.add_argument("--env-steps", type=int, default=4000, help="env steps of each worker, for speed")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1000)
    options = parser.parse_args()
    print(f"{describe_setup()}; load average {os.getloadavg()[0]:.1f}")
    if "speed" in options.what:
        compare_speed(options.repeats, options.env_steps)
    if "learning" in options.what:
        compare_learning(options.seeds, options.first_seed)


if __name__ == "__main__":
    main()
