"""Compare A2C and PPO with those of Stable-Baselines3: CartPole to its goal, HalfCheetah's return; and other goals."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable

import gymnasium
from measure import describe_setup, format_spread, run_in_subprocesses, train_folder
from peers import train_sb3_a2c, train_sb3_ppo

from algorithm.parts.torch_setup import configure_torch

CHEETAH = "HalfCheetah-v5"
# The settings of RL Baselines3 Zoo for HalfCheetah-v4, with normalized observations and rewards.
SB3_CHEETAH = {
    "batch_size": 64,
    "n_steps": 512,
    "gamma": 0.98,
    "learning_rate": 2.0633e-05,
    "ent_coef": 0.000401762,
    "clip_range": 0.1,
    "n_epochs": 20,
    "gae_lambda": 0.92,
    "max_grad_norm": 0.8,
    "vf_coef": 0.58096,
}
CARTPOLE: dict[str, Callable[[int], dict]] = {
    "Samara A2C": functools.partial(train_folder, "gym/cartpole", episodes=0, variant="a2c"),
    "SB3 A2C": train_sb3_a2c,
    "Samara PPO": functools.partial(train_folder, "gym/cartpole", episodes=0, variant="ppo"),
    "SB3 PPO": train_sb3_ppo,
}
# Folder, variant and further settings of tasks with a goal, without another library.
GOALS = {
    "recall": ("memory/recall", "a2c_gru", ()),
    "lunar_lander": ("gym/lunar_lander", "ppo", ()),
}


def train_with_imports(learner: Callable[[int], dict], seed: int) -> dict:
    """Train a learner after the imports of its first optimizer, which would take about 1 CPU second."""
    import torch._dynamo  # noqa: F401

    configure_torch()
    return learner(seed)


def train_sb3_cheetah(seed: int, steps: int, episodes: int) -> dict:
    """Train Stable-Baselines3's PPO for `steps` env steps. Return its greedy return and CPU seconds."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
    from torch import nn

    configure_torch()
    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make(CHEETAH)]), gamma=SB3_CHEETAH["gamma"])
    policy = {
        "log_std_init": -2,
        "ortho_init": False,
        "activation_fn": nn.ReLU,
        "net_arch": {"pi": [256, 256], "vf": [256, 256]},
    }
    model = PPO("MlpPolicy", env, seed=seed, device="cpu", policy_kwargs=policy, **SB3_CHEETAH)
    begin = time.process_time()
    model.learn(steps)
    seconds = time.process_time() - begin
    env.training = env.norm_reward = False
    env.seed(seed + 10_000)
    return {"greedy": evaluate_policy(model, env, episodes, warn=False)[0], "cpu_seconds": seconds}


def compare_cartpole(options: argparse.Namespace) -> None:
    """Print the env steps and CPU seconds until the goal of CartPole, for each seed in turn and in total."""
    results: dict[str, list[dict]] = {name: [] for name in CARTPOLE}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for name, learner in CARTPOLE.items():
            (run,) = run_in_subprocesses(train_with_imports, [(learner, seed)])
            results[name].append(run)
            reached = "reached" if run["reached"] else "stopped at a limit"
            print(f"{name} seed {seed}: {run['env_steps']:,} steps, {run['cpu_seconds']:.1f} s, {reached}", flush=True)
    for name, runs in results.items():
        steps, seconds = ([run[key] for run in runs] for key in ("env_steps", "cpu_seconds"))
        print(
            f"{name}: {sum(run['reached'] for run in runs)} of {len(runs)}; env steps {format_spread(steps)}; "
            f"CPU seconds {format_spread(seconds, 1)}"
        )
    for algorithm in ("A2C", "PPO"):
        pairs = zip(results[f"Samara {algorithm}"], results[f"SB3 {algorithm}"], strict=True)
        ratios = [samara["cpu_seconds"] / sb3["cpu_seconds"] for samara, sb3 in pairs]
        print(f"{algorithm}: CPU seconds relative to SB3 with the same seed {format_spread(ratios, 2)}")


def compare_cheetah(options: argparse.Namespace) -> None:
    """Print the greedy return after a fixed number of steps of HalfCheetah, for each seed in turn and in total."""
    samara, sb3 = [], []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        changes = (f"base_config.max_step={options.steps}", "goal=null")
        samara += run_in_subprocesses(train_folder, [("mujoco/half_cheetah", seed, changes, options.episodes, "ppo")])
        sb3 += run_in_subprocesses(train_sb3_cheetah, [(seed, options.steps, options.episodes)])
        runs = (("Samara", samara[-1]), ("SB3", sb3[-1]))
        figures = (f"{name} {run['greedy']:.0f} in {run['cpu_seconds']:.0f} s" for name, run in runs)
        print(f"seed {seed}: {'; '.join(figures)}", flush=True)
    for name, results in (("Samara", samara), ("SB3", sb3)):
        returns, seconds = ([result[key] for result in results] for key in ("greedy", "cpu_seconds"))
        print(f"{name}: greedy return {format_spread(returns)}; CPU seconds {format_spread(seconds)}")


def measure_goal(options: argparse.Namespace) -> None:
    """Print the env steps and CPU seconds until the goal of a task, for each seed and in total."""
    env, variant, changes = GOALS[options.what]
    runs = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        runs += run_in_subprocesses(train_folder, [(env, seed, changes, options.episodes, variant)])
        run = runs[-1]
        print(
            f"seed {seed}: {run['env_steps']:,} steps in {run['cpu_seconds']:.0f} s, "
            f"{'reached' if run['reached'] else 'stopped at a limit'}, greedy {run['greedy']:.2f}",
            flush=True,
        )
    print(
        f"{sum(run['reached'] for run in runs)} of {len(runs)}; "
        f"env steps {format_spread(run['env_steps'] for run in runs)}; "
        f"CPU seconds {format_spread(run['cpu_seconds'] for run in runs)}"
    )


def main() -> None:
    """Print the requested comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["cartpole", "cheetah", *GOALS])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=7000)
    parser.add_argument("--steps", type=int, default=1_000_000, help="env steps of cheetah")
    parser.add_argument("--episodes", type=int, default=20, help="greedy episodes after a run, not of cartpole")
    options = parser.parse_args()
    print(describe_setup(), flush=True)
    compare = {"cartpole": compare_cartpole, "cheetah": compare_cheetah}
    compare.get(options.what, measure_goal)(options)


if __name__ == "__main__":
    main()
