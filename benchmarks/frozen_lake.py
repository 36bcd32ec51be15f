"""Success probability of the policy that is learned in slippery FrozenLake, by the scaling of the rewards."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium
import numpy as np
from measure import describe_setup, run_in_subprocesses  # imported first: sets the number of threads

from algorithm.config.loader import read_assignments, resolve
from algorithm.config.yaml_layers import read_variant
from algorithm.parts import run_folder
from algorithm.runs.build import train
from algorithm.runs.trained_agent import load

ENV = "gym/frozen_lake"
STEPS = 100  # per episode
SCALES: dict[str, Sequence[str]] = {
    "reward_normalization": (),
    "reward_normalization, noise to 0.1": ("explorer={action_noise: [0.0, 0.1]}",),
    "reward_scale 1": ("acer_config.reward_normalization=null",),
    "reward_scale 2.5": ("acer_config.reward_normalization=null", "acer_config.reward_scale=2.5"),
    "reward_scale 10": ("acer_config.reward_normalization=null", "acer_config.reward_scale=10"),
    "reward_scale 30": ("acer_config.reward_normalization=null", "acer_config.reward_scale=30"),
}


def compute_success(policy: np.ndarray) -> float:
    """Return the probability that a policy [state, action] reaches the goal, from the model of the environment."""
    model = gymnasium.make("FrozenLake-v1").unwrapped.P
    value = np.zeros(len(model))
    for _ in range(STEPS):
        value = np.array(
            [
                sum(
                    policy[state, action] * chance * (reward + (0 if terminated else value[next_state]))
                    for action, outcomes in model[state].items()
                    for chance, next_state, reward, terminated in outcomes
                )
                for state in model
            ]
        )
    return float(value[0])


def train_once(seed: int, assignments: Sequence[str]) -> dict[str, Any]:
    """Train until `max_step`. Return the success of the sampled and of the greedy policy, and the mean entropy."""
    source = run_folder.find_environment_folder(ENV)
    layers = [
        ("config.yaml", read_variant(source / "config.yaml", "default")),
        ("benchmark", read_assignments([*assignments, f"base_config.seed={seed}", "goal=null"])),
    ]
    with TemporaryDirectory() as runs:
        run_folder.RUNS = Path(runs)
        settings = resolve(layers)
        folder = run_folder.RunFolder.create(ENV, source, "run", settings.tree)
        train(settings, folder, lambda line: None)
        agent = load(folder.path).agent
    states = np.eye(16, dtype=np.uint8)
    logits = np.asarray(agent.policy.act({"obs": states}, np.zeros((16, agent.state_size), np.float32))[0], np.float64)
    policy = np.exp(logits - logits.max(1, keepdims=True))
    policy /= policy.sum(1, keepdims=True)
    entropy = -(policy * np.log(policy + 1e-12)).sum(1).mean()
    return {
        "sampled": compute_success(policy),
        "greedy": compute_success(np.eye(4)[policy.argmax(1)]),
        "entropy": float(entropy),
    }


def main() -> None:
    """Print one line per scaling of the rewards."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--scales", nargs="*", default=list(SCALES), choices=list(SCALES))
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    print(describe_setup())
    print("| rewards | sampled, by seed | greedy, by seed | below 0.5 |")
    print("| --- | --- | --- | ---: |")
    for scale in options.scales:
        results = run_in_subprocesses(train_once, [(seed, SCALES[scale]) for seed in seeds])
        columns = [" ".join(f"{result[name]:.2f}" for result in results) for name in ("sampled", "greedy")]
        print(
            f"| {scale} | {columns[0]} | {columns[1]} | {sum(result['sampled'] < 0.5 for result in results)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
