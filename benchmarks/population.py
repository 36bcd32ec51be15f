"""Populations: how often a population with a learning rate that is 10 times too small reaches a goal, with exchanges.

The task: each observation is one of 8 signals, which has one right action of 8; an episode has 20 steps with reward 1
for each right action, and the goal is a return of 18. A2C learns it with a learning rate of 3e-3; the populations start
with 3e-4. `copy` exchanges checkpoints (population-based training), `none` trains the same members without exchange.
With `single`, one run with each learning rate shows how many env steps the task needs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measure import describe_setup, format_spread

from algorithm import train

ROOT = Path(__file__).resolve().parents[1]
ENV = """
import gymnasium
import numpy as np

SIGNALS, STEPS = 8, 20


class Signals(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (SIGNALS,), np.float32)
    action_space = gymnasium.spaces.Discrete(SIGNALS)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        reward = float(action == 3 * self.signal % SIGNALS)
        return self.observe(), reward, self.steps == STEPS, False, {}

    def observe(self):
        self.signal = int(self.np_random.integers(SIGNALS))
        return np.eye(SIGNALS, dtype=np.float32)[self.signal]


def make():
    return Signals()
"""
GOOD_RATE, BAD_RATE = 3e-3, 3e-4
INTERVAL, EXCHANGES = 1000, 39
CONFIG = f"""
default:
  base_config:
    env_type: GYM
    env_name: env.py
    algorithm: A2C
    n_envs: 8
    max_step: {INTERVAL * (EXCHANGES + 1)}
    log_every: {INTERVAL}
    save_every: null
    evaluate_greedy: false
    keep_checkpoints: 1
  goal: {{return: 18}}
  a2c_config: {{learning_rate: {BAD_RATE}, rollout_length: 5, gamma: 0.0}}
  population_config: {{size: null, interval: {INTERVAL}, random_params: {{a2c_config.learning_rate: {{}}}}}}
"""
NN = "from algorithm.networks import Blueprint, Mlp\nblueprint = Blueprint(body=Mlp(32))\n"
FRACTIONS = {"copy": 0.25, "none": 0.0}  # exchange_fraction of each kind of population


def write_task() -> None:
    """Write the environment folder into the working directory."""
    folder = Path("envs/benchmark/signals")
    folder.mkdir(parents=True)
    for name, text in (("env.py", ENV), ("config.yaml", CONFIG), ("nn.py", NN)):
        (folder / name).write_text(text)


def train_population(kind: str, seed: int, size: int) -> dict[str, Any]:
    """Train a population in a temporary folder; return its last rows, its best learning rate and its CPU seconds."""
    before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    arguments = ["--population", str(size), "--seed", str(1000 * seed), "-n", "population", "--json"]
    assignment = f"population_config.exchange_fraction={FRACTIONS[kind]}"
    command = [sys.executable, str(ROOT / "main.py"), "benchmark/signals", *arguments, "--set", assignment]
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        write_task()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        result = json.loads(done.stdout.splitlines()[-1])
        rows = [json.loads(line) for line in Path(result["lineage"]).read_text().splitlines()]
        os.chdir("/")
    return {
        "reached": any(row["goal_reached"] for row in rows),
        "env_steps": max(row["env_steps"] for row in rows),
        "exchanges": max(row["interval"] for row in rows) - 1,
        "return": result["best"]["return"],
        "rate": result["best"]["settings"]["a2c_config.learning_rate"],
        "cpu_seconds": sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before,
    }


def compare_populations(kinds: list[str], seeds: range, size: int) -> None:
    """Print the result of each population."""
    for kind in kinds:
        results = []
        for seed in seeds:
            result = train_population(kind, seed, size)
            results.append(result)
            print(
                f"{kind}, seed {seed}: {'reached' if result['reached'] else 'not reached'} after {result['env_steps']} "
                f"env steps per member and {result['exchanges']} exchanges; best return {result['return']:.2f}, "
                f"learning rate {result['rate']:.2g}; {result['cpu_seconds']:.0f} CPU seconds",
                flush=True,
            )
        reached = sum(result["reached"] for result in results)
        returns = format_spread(result["return"] for result in results)
        print(f"{kind}: reached in {reached} of {len(results)} seeds; best return {returns}", flush=True)


def compare_single(seed: int) -> None:
    """Print the env steps that one run needs with each learning rate."""
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        write_task()
        for rate in (GOOD_RATE, BAD_RATE):
            settings = {"a2c_config.learning_rate": rate, "base_config.seed": seed}
            result = train("benchmark/signals", name=f"rate-{rate}", settings=settings)
            mean = next(iter(result.returns.values()))
            print(f"learning rate {rate}: return {mean:.1f} after {result.counters.env_steps} env steps", flush=True)
        os.chdir("/")


def main() -> None:
    """Print the measured figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["single", *FRACTIONS], nargs="*", default=["single", *FRACTIONS])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--size", type=int, default=8)
    options = parser.parse_args()
    print(f"{describe_setup()}; load average {os.getloadavg()[0]:.1f}")
    if "single" in options.what:
        compare_single(options.first_seed)
    kinds = [kind for kind in FRACTIONS if kind in options.what]
    compare_populations(kinds, range(options.first_seed, options.first_seed + options.seeds), options.size)


if __name__ == "__main__":
    main()
