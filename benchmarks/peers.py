"""Compare the time to solve CartPole-v1 with PFRL's ACER and Stable-Baselines3's PPO and A2C."""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import io
import multiprocessing
import os
import platform
import statistics
import sys
import time
import warnings
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ENV_ID = "CartPole-v1"
TARGET, EPISODES, CPU_LIMIT = 475, 20, 400  # mean return, episodes that it is the mean of, seconds


class Run:
    """A training run that is timed until its mean training return reaches the target, or until a limit."""

    def __init__(self, step_limit):
        self.step_limit = step_limit
        self.returns = deque(maxlen=EPISODES)
        self.env_steps = 0
        self.reached = False
        self.start = time.process_time()

    def add_episode(self, episode_return):
        """Record the unscaled return of a finished training episode."""
        self.returns.append(episode_return)
        self.reached |= len(self.returns) == EPISODES and statistics.fmean(self.returns) >= TARGET

    @property
    def is_over(self):
        """Whether the target or a limit is reached."""
        return self.reached or self.env_steps >= self.step_limit or self.cpu_seconds >= CPU_LIMIT

    @property
    def cpu_seconds(self):
        """CPU seconds of this process since the start of the run."""
        return time.process_time() - self.start

    def result(self):
        """Return the figures of the run."""
        return {"env_steps": self.env_steps, "cpu_seconds": self.cpu_seconds, "reached": self.reached}


def import_peer(name):
    """Import a library without the deprecation notice of gym, which both libraries import if it is installed."""
    with contextlib.redirect_stderr(io.StringIO()):
        return importlib.import_module(name)


def train_samara(seed):
    """Train Samara's ACER."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from benchmarks.measure import train_cartpole

    return train_cartpole(seed)


def train_pfrl_acer(seed):
    """Train PFRL's ACER in one process, with its default entropy, trust region and truncation."""
    import gymnasium
    import torch
    from torch import nn

    pfrl = import_peer("pfrl")
    warnings.filterwarnings("ignore", module="pfrl")  # about shapes that differ but have one element
    run = Run(step_limit=40_000)
    pfrl.utils.set_random_seed(seed)

    def layers(head):
        return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2), head)

    model = pfrl.agents.acer.ACERDiscreteActionHead(
        pi=layers(pfrl.policies.SoftmaxCategoricalHead()), q=layers(pfrl.q_functions.DiscreteActionValueHead())
    )
    agent = pfrl.agents.ACER(
        model,
        torch.optim.Adam(model.parameters(), lr=1e-3),
        t_max=10,
        gamma=0.99,
        replay_buffer=pfrl.replay_buffers.EpisodicReplayBuffer(50_000),
        n_times_replay=4,
        replay_start_size=1000,
    )
    # PFRL requires shared memory, which only training in several processes needs.
    agent.assert_shared_memory = lambda: None

    env = gymnasium.make(ENV_ID)
    observation, _ = env.reset(seed=seed)
    episode_return = 0.0
    while not run.is_over:
        observation, reward, terminated, truncated, _ = env.step(agent.act(observation))
        run.env_steps += 1
        episode_return += reward
        agent.observe(observation, 0.1 * reward, terminated, truncated)
        if terminated or truncated:
            run.add_episode(episode_return)
            episode_return = 0.0
            observation, _ = env.reset()
    return run.result()


def train_sb3(name, seed, step_limit, **settings):
    """Train an algorithm of Stable-Baselines3 with eight environments."""
    sb3 = import_peer("stable_baselines3")
    from stable_baselines3.common.env_util import make_vec_env

    run = Run(step_limit)
    env = make_vec_env(ENV_ID, n_envs=8, seed=seed)
    model = getattr(sb3, name)("MlpPolicy", env, seed=seed, device="cpu", ent_coef=0.0, **settings)

    def after_step(variables, _):
        run.env_steps = model.num_timesteps
        for info in variables["infos"]:
            if "episode" in info:
                run.add_episode(info["episode"]["r"])
        return not run.is_over

    model.learn(step_limit, callback=after_step)
    return run.result()


def train_sb3_ppo(seed):
    """Train Stable-Baselines3's PPO with the CartPole settings of RL Baselines3 Zoo."""
    return train_sb3(
        "PPO",
        seed,
        step_limit=100_000,
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        learning_rate=lambda remaining: 1e-3 * remaining,
        clip_range=lambda remaining: 0.2 * remaining,
    )


def train_sb3_a2c(seed):
    """Train Stable-Baselines3's A2C with the CartPole settings of RL Baselines3 Zoo."""
    return train_sb3("A2C", seed, step_limit=500_000)


LEARNERS = {
    "Samara ACER": (train_samara, "torch"),
    "PFRL ACER": (train_pfrl_acer, "pfrl"),
    "SB3 PPO": (train_sb3_ppo, "stable_baselines3"),
    "SB3 A2C": (train_sb3_a2c, "stable_baselines3"),
}


def train(learner, seed):
    """Train after the imports, so that the measured time does not contain them."""
    importlib.import_module("torch._dynamo")  # otherwise the first optimizer imports it, in about 1 CPU second
    return learner(seed)


def train_in_subprocess(learner, seed):
    """Train in a fresh process, so that runs do not share imports or memory."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(train, learner, seed).result()


def is_installed(module):
    """Return whether a module can be found, without importing it."""
    return importlib.util.find_spec(module) is not None


def format_row(name, runs, reference):
    """Return a line of the table: medians, ranges, and ratios of the medians to the medians of the reference."""
    cells, ratios = [f"{name:11}", f"{sum(run['reached'] for run in runs)}/{len(runs)}".rjust(7)], []
    for figure, number, width in (("env_steps", ",.0f", 25), ("cpu_seconds", ".1f", 20)):
        values = [run[figure] for run in runs]
        median = statistics.median(values)
        cells.append(f"{median:{number}} ({min(values):{number}}-{max(values):{number}})".rjust(width))
        ratios.append(f"{median / statistics.median(run[figure] for run in reference):.2f}".rjust(11))
    return f"| {' | '.join(cells + ratios)} |"


def print_table(results):
    """Print one line per learner, with Samara as the reference."""
    reference = next(iter(results.values()))
    print("\nMedian (minimum-maximum) until the target is reached, and the ratio of the medians to Samara's.")
    print("Steps and seconds of Samara include 20 evaluation episodes, which confirm its goal; the others have none.\n")
    print(f"| Learner     | Reached | {'Env steps':>25} | {'CPU seconds':>20} | Steps ratio |   CPU ratio |")
    print(f"|-------------|--------:|{'-' * 26}:|{'-' * 21}:|------------:|------------:|")
    for name, runs in results.items():
        print(format_row(name, runs, reference))
    if not all(run["reached"] for runs in results.values() for run in runs):
        print("\nRuns that stopped at a limit count with their figures at the limit, which are lower bounds.")


def main():
    """Train with every installed library, one run after the other, and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds per algorithm (default: %(default)s)")
    parser.add_argument(
        "--pfrl-seeds", type=int, default=1, help="number of seeds of PFRL, which is slow (default: %(default)s)"
    )
    parser.add_argument(
        "--first-seed", type=int, default=7000, help="first seed of every algorithm (default: %(default)s)"
    )
    options = parser.parse_args()
    if min(options.seeds, options.pfrl_seeds) < 1:
        parser.error("at least one seed is needed")

    # Subprocesses inherit these variables, so they are set before numpy and torch are imported.
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    learners = {name: learner for name, (learner, module) in LEARNERS.items() if is_installed(module)}
    if missing := [name for name in LEARNERS if name not in learners]:
        print(f'Skipping {", ".join(missing)}: not installed; install with: pip install -e ".[benchmark]"')
    modules = filter(is_installed, ("torch", "gymnasium", "stable_baselines3", "pfrl"))
    versions = ", ".join(f"{module} {importlib.metadata.version(module)}" for module in modules)
    print(f"{ENV_ID} until the mean of the last {EPISODES} training returns is {TARGET}, on one thread")
    print(f"Python {platform.python_version()}, {versions}", flush=True)

    results = {}
    for name, learner in learners.items():
        results[name] = []
        seeds = options.pfrl_seeds if learner is train_pfrl_acer else options.seeds
        for seed in range(options.first_seed, options.first_seed + seeds):
            results[name].append(run := train_in_subprocess(learner, seed))
            figures = f"{run['env_steps']:,} steps, {run['cpu_seconds']:.1f} CPU s"
            print(f"{name} seed {seed}: {figures}, {'reached' if run['reached'] else 'stopped at a limit'}", flush=True)
    print_table(results)


if __name__ == "__main__":
    main()
