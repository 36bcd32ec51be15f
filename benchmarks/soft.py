"""SAC next to Stable-Baselines3's: updates per CPU second, Pendulum until its goal, HalfCheetah for some steps."""

from __future__ import annotations

import argparse
import statistics
import time
from collections import deque

import numpy as np
import torch
from measure import in_own_processes, machine, spread, train_folder

from algorithm.agents.sac.agent import Sac
from algorithm.agents.sac.settings import SacSettings
from algorithm.config.loader import load_defaults
from algorithm.networks import Blueprint, Mlp, Vector
from algorithm.replay import Replay
from algorithm.rollout import Rollout
from algorithm.runs.torch_setup import configure_torch
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner, Placement

OBS, ACTIONS, BATCH, UNITS, ROWS = 17, 6, 256, 256, 10_000
UPDATES, BLOCKS = 50, 5
TARGET, WINDOW, PENDULUM_LIMIT = -200, 20, 20_000


def samara_updates(precision: str) -> dict:
    """CPU milliseconds of one update, its batch drawn from a replay: the median of several blocks."""
    configure_torch()
    rng = np.random.default_rng(0)
    role = Role(1, {"obs": ObsSpec((OBS,))}, ActionSpec(ACTIONS))
    layers = Mlp(UNITS, UNITS)
    settings = SacSettings(**{**load_defaults()["sac_config"], "batch_size": BATCH})
    agent = Sac(settings, Blueprint({"*": Vector()}, policy=layers, critic=layers), role, rng)
    learner = Learner(agent, role, {}, None, Placement(precision=getattr(torch, precision)))
    replay = Replay(ROWS, 1, 1, 1, rng)
    for row in range(ROWS):
        replay.add(_row(rng, row == 0))

    def update() -> None:
        learner.compute_gradients(replay.sample(BATCH))
        learner.apply_gradients()

    return {"ms": _clocked(update)}


def _row(rng: np.random.Generator, begins: bool) -> Rollout:
    return Rollout(
        obs={"obs": rng.standard_normal((2, 1, OBS), np.float32)},
        first=np.zeros((2, 1), bool),
        raw_action=rng.standard_normal((1, 1, ACTIONS), np.float32),
        reward=rng.standard_normal((1, 1), np.float32),
        alive=np.ones((1, 1), bool),
        behavior=np.zeros((1, 1, 2 * ACTIONS), np.float32),
        memory=np.zeros((1, 0), np.float32),
        lane=np.zeros(1, np.int64),
        continues_previous=np.array([not begins]),
        weight=np.ones(1, np.float32),
        index=np.full(1, -1),
        version=np.zeros(1, np.int64),
    )


def sb3_updates() -> dict:
    """The same of Stable-Baselines3, in an environment that costs nothing and is not clocked."""
    import gymnasium

    configure_torch()
    learner = _sb3()

    class Nothing(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (OBS,), np.float32)
        action_space = gymnasium.spaces.Box(-1, 1, (ACTIONS,), np.float32)

        def reset(self, *, seed=None, options=None):
            return np.zeros(OBS, np.float32), {}

        def step(self, action):
            return self.np_random.standard_normal(OBS).astype(np.float32), 0.0, False, False, {}

    model = learner("MlpPolicy", Nothing(), batch_size=BATCH, learning_starts=100, buffer_size=ROWS, device="cpu")
    model.learn(600)
    return {"ms": _clocked(lambda: model.train(UPDATES, BATCH), 1) / UPDATES}


def _clocked(update, times: int = UPDATES) -> float:
    """Milliseconds of the processor for each call."""
    for _ in range(min(times, 20)):
        update()
    blocks = []
    for _ in range(BLOCKS):
        begin = time.process_time()
        for _ in range(times):
            update()
        blocks.append((time.process_time() - begin) / times * 1e3)
    return statistics.median(blocks)


def _sb3():
    from stable_baselines3 import SAC

    return SAC


def sb3_pendulum(seed: int) -> dict:
    """Stable-Baselines3's SAC until the mean of its last training returns is the target."""
    import gymnasium

    configure_torch()
    model = _sb3()("MlpPolicy", gymnasium.make("Pendulum-v1"), seed=seed, device="cpu", learning_rate=1e-3)
    returns: deque[float] = deque(maxlen=WINDOW)

    def after_step(variables, _):
        returns.extend(info["episode"]["r"] for info in variables["infos"] if "episode" in info)
        return len(returns) < WINDOW or statistics.fmean(returns) < TARGET

    begin = time.process_time()
    model.learn(PENDULUM_LIMIT, callback=after_step)
    steps = model.num_timesteps
    return {"env_steps": steps, "cpu_seconds": time.process_time() - begin, "reached": steps < PENDULUM_LIMIT}


def sb3_cheetah(seed: int, steps: int, episodes: int) -> dict:
    """Stable-Baselines3's SAC after so many steps, played greedily."""
    import gymnasium
    from stable_baselines3.common.evaluation import evaluate_policy

    configure_torch()
    model = _sb3()("MlpPolicy", gymnasium.make("HalfCheetah-v5"), seed=seed, device="cpu")
    begin = time.process_time()
    model.learn(steps)
    seconds = time.process_time() - begin
    env = gymnasium.make("HalfCheetah-v5")
    env.reset(seed=seed + 10_000)
    return {"greedy": evaluate_policy(model, env, episodes, warn=False)[0], "cpu_seconds": seconds}


def speed(options: argparse.Namespace) -> None:
    """Updates per CPU second, side by side, several times in turn."""
    rows = []
    for _ in range(options.rounds):
        peer = in_own_processes(sb3_updates, [()])[0]["ms"]
        own = [in_own_processes(samara_updates, [(precision,)])[0]["ms"] for precision in ("float32", "bfloat16")]
        rows.append((peer, *own))
        print(f"SB3 {peer:.2f} ms, float32 {own[0]:.2f} ms, bfloat16 {own[1]:.2f} ms", flush=True)
    for place, name in enumerate(("float32", "bfloat16"), start=1):
        print(f"{name}: {spread((row[0] / row[place] for row in rows), 2)} times SB3's updates per CPU second")


def pendulum(options: argparse.Namespace) -> None:
    """Env steps and CPU seconds until the goal, seed by seed."""
    results: dict[str, list[dict]] = {"Samara": [], "Samara bfloat16": [], "SB3": []}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for name, changes in (("Samara", ()), ("Samara bfloat16", ("base_config.precision=bfloat16",))):
            arguments = ("gym/pendulum", seed, changes, options.episodes, "sac")
            results[name] += in_own_processes(train_folder, [arguments])
        results["SB3"] += in_own_processes(sb3_pendulum, [(seed,)])
        told = (f"{name} {own[-1]['env_steps']:,} in {own[-1]['cpu_seconds']:.1f}" for name, own in results.items())
        print(f"seed {seed}: {'; '.join(told)}", flush=True)
    for name, own in results.items():
        steps, seconds = ([result[key] for result in own] for key in ("env_steps", "cpu_seconds"))
        print(
            f"{name}: {sum(result['reached'] for result in own)} of {len(own)}; env steps {spread(steps)}; "
            f"CPU seconds {spread(seconds, 1)}"
            + (f"; greedy {spread(result['greedy'] for result in own)}" if name != "SB3" else "")
        )


def cheetah(options: argparse.Namespace) -> None:
    """Greedy return after so many steps, seed by seed."""
    own, peer = [], []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        changes = (f"base_config.max_step={options.steps}",)
        own += in_own_processes(train_folder, [("mujoco/half_cheetah", seed, changes, options.episodes, "sac")])
        peer += in_own_processes(sb3_cheetah, [(seed, options.steps, options.episodes)])
        print(
            f"seed {seed}: Samara {own[-1]['greedy']:.0f} in {own[-1]['cpu_seconds']:.0f}; "
            f"SB3 {peer[-1]['greedy']:.0f} in {peer[-1]['cpu_seconds']:.0f}",
            flush=True,
        )
    for name, results in (("Samara", own), ("SB3", peer)):
        returns, seconds = ([result[key] for result in results] for key in ("greedy", "cpu_seconds"))
        print(f"{name}: greedy return {spread(returns)}; CPU seconds {spread(seconds)}")


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["speed", "pendulum", "cheetah"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=100_000, help="of cheetah")
    parser.add_argument("--rounds", type=int, default=5, help="of speed")
    parser.add_argument("--episodes", type=int, default=20, help="played greedily at the end, off the clock")
    options = parser.parse_args()
    print(machine(), flush=True)
    {"speed": speed, "pendulum": pendulum, "cheetah": cheetah}[options.what](options)


if __name__ == "__main__":
    main()
