"""Share of steps in which an agent watches unpredictable pictures, by the reward for exploration that it has.

A forward model (curiosity) never predicts the next picture, so that its error stays a reward. The error of random
network distillation falls, since there are few different pictures. The share is that of the last third of training.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

import gymnasium
from measure import describe_setup, format_spread, run_in_subprocesses, train_folder

ENV = "exploration/noisy_tv"
WRAPPER = "noisy_tv:WatchedShare"
REWARDS = {
    "none": "{}",
    "rnd": "{rnd: {}}",
    "curiosity": "{curiosity: {strength: 1.0, update_every: 1}}",
    "curiosity, features of the agent": "{curiosity: {strength: 1.0, update_every: 1, features: agent}}",
}


class WatchedShare(gymnasium.Wrapper):
    """A wrapper that records the steps of each episode, and those in which the agent watched, for all environments."""

    episodes: list[tuple[int, int]] = []  # steps, watched steps

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.steps = 0

    def reset(self, **options: Any) -> Any:
        """Start an episode."""
        self.steps = 0
        return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        """Step, and record the episode if it ends."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        if terminated or truncated:
            self.episodes.append((self.steps, info["watched"]))
        return obs, reward, terminated, truncated, info


def train_once(seed: int, variant: str, auxiliaries: str, env_steps: int) -> dict[str, Any]:
    """Train, and return the share of watched steps in the last third, and of the episodes that reached the goal."""
    changes = [
        f"auxiliaries={auxiliaries}",
        f"base_config.env_wrappers=[{WRAPPER}]",
        f"base_config.max_step={env_steps}",
        "base_config.evaluate_every=null",
        "goal=null",
    ]
    result = train_folder(ENV, seed, changes, episodes=0, variant=variant)
    episodes = import_module("noisy_tv").WatchedShare.episodes  # the module that the environments have imported
    last = episodes[-len(episodes) // 3 :]
    steps = sum(steps for steps, _ in last)
    reached = sum(steps < 60 for steps, _ in last) / len(last)  # an episode that fails has 60 steps
    return {
        "share": sum(watched for _, watched in last) / steps,
        "reached": reached,
        "cpu_seconds": result["cpu_seconds"],
    }


def main() -> None:
    """Print one line per reward."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--config", default="ppo", help="variant of the folder's config.yaml")
    parser.add_argument("--rewards", nargs="+", default=list(REWARDS), choices=list(REWARDS))
    parser.add_argument("--env-steps", type=int, default=900_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1000)
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    print(describe_setup())
    print("| reward for exploration | watched share, median [range] | episodes that reach the goal | CPU s |")
    print("| --- | ---: | ---: | ---: |")
    for name in options.rewards:
        arguments = [(seed, options.config, REWARDS[name], options.env_steps) for seed in seeds]
        results = run_in_subprocesses(train_once, arguments)
        cells = (format_spread((result[key] for result in results), 2) for key in ("share", "reached"))
        print(
            f"| {name} | {' | '.join(cells)} | {format_spread(result['cpu_seconds'] for result in results)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
