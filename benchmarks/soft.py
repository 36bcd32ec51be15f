"""Compare SAC with Stable-Baselines3's SAC: updates per CPU second, and Pendulum to its goal; see also locomotion.py.

Updates are also compared with those of SBX. On a machine with several cores, run this on one of them
(`taskset -c 0`), since jax uses all.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from measure import describe_setup, format_spread, run_in_subprocesses, train_folder

from algorithm.agents.sac.agent import Sac
from algorithm.agents.settings import SacSettings
from algorithm.config.yaml_layers import load_defaults
from algorithm.networks import Blueprint, Mlp, Vector
from algorithm.networks.precision import Placement
from algorithm.parts.torch_setup import configure_torch
from algorithm.replay import Replay
from algorithm.rollout import Rollout
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner

OBS, ACTIONS, BATCH_SIZE, UNITS, CAPACITY = 17, 6, 256, 256, 10_000
UPDATES, BLOCKS, PRECISIONS = 50, 5, ("float32", "bfloat16")
TARGET, EPISODES, PENDULUM_MAX_STEPS = -200, 20, 20_000


def measure_updates(precision: str) -> dict:
    """Return the CPU milliseconds of an update with a batch from a replay: the median of several blocks."""
    configure_torch()
    rng = np.random.default_rng(0)
    role = Role(1, {"obs": ObsSpec((OBS,))}, ActionSpec(ACTIONS))
    layers = Mlp(UNITS, UNITS)
    settings = SacSettings(**{**load_defaults()["sac_config"], "batch_size": BATCH_SIZE})
    agent = Sac(settings, Blueprint({"*": Vector()}, policy=layers, critic=layers), role, rng)
    learner = Learner(agent, role, {}, None, Placement(precision=getattr(torch, precision)))
    replay = Replay(capacity=CAPACITY, lanes=1, chunk=1, length=1, rng=rng)
    for row in range(CAPACITY):
        replay.add(make_row(rng, row == 0))

    def update() -> None:
        learner.compute_gradients(replay.sample(BATCH_SIZE))
        learner.apply_gradients()

    return {"ms": _measure_milliseconds(update)}


def make_row(rng: np.random.Generator, is_first: bool, n_obs: int = OBS, n_actions: int = ACTIONS) -> Rollout:
    """Return a rollout with one random step."""
    return Rollout(
        obs={"obs": rng.standard_normal((2, 1, n_obs), np.float32)},
        first=np.zeros((2, 1), bool),
        raw_action=rng.standard_normal((1, 1, n_actions), np.float32),
        reward=rng.standard_normal((1, 1), np.float32),
        alive=np.ones((1, 1), bool),
        behavior=np.zeros((1, 1, 2 * n_actions), np.float32),
        memory=np.zeros((1, 0), np.float32),
        lane=np.zeros(1, np.int64),
        continues_previous=np.array([not is_first]),
        weight=np.ones(1, np.float32),
        index=np.full(1, -1),
        version=np.zeros(1, np.int64),
    )


def measure_sb3_updates() -> dict:
    """Return the same of Stable-Baselines3, with a trivial environment outside the measured time."""
    return {"ms": _measure_peer(_import_sb3_sac(), device="cpu")}


def measure_sbx_updates() -> dict:
    """Return the same of SBX, Stable-Baselines3 in jax: one compiled update for each env step."""
    from sbx import SAC

    return {"ms": _measure_peer(SAC)}


def _measure_peer(sac, **arguments) -> float:
    """Return the CPU milliseconds of one update for each env step; compilation is outside the measured time."""
    import gymnasium

    configure_torch()

    class TrivialEnv(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (OBS,), np.float32)
        action_space = gymnasium.spaces.Box(-1, 1, (ACTIONS,), np.float32)

        def reset(self, *, seed=None, options=None):
            return np.zeros(OBS, np.float32), {}

        def step(self, action):
            return self.np_random.standard_normal(OBS).astype(np.float32), 0.0, False, False, {}

    model = sac(
        "MlpPolicy", TrivialEnv(), batch_size=BATCH_SIZE, learning_starts=100, buffer_size=CAPACITY, **arguments
    )
    model.learn(600)
    return _measure_milliseconds(lambda: model.train(gradient_steps=1, batch_size=BATCH_SIZE))


def _measure_milliseconds(update, times: int = UPDATES) -> float:
    """Return the CPU milliseconds of a call: the median of several blocks of `times` calls."""
    for _ in range(min(times, 20)):
        update()
    blocks = []
    for _ in range(BLOCKS):
        begin = time.process_time()
        for _ in range(times):
            update()
        blocks.append((time.process_time() - begin) / times * 1e3)
    return statistics.median(blocks)


def _import_sb3_sac():
    """Return Stable-Baselines3's SAC, which is imported in subprocesses only."""
    from stable_baselines3 import SAC

    return SAC


def train_sb3_pendulum(seed: int) -> dict:
    """Train Stable-Baselines3's SAC until the mean of its last training returns reaches the target."""
    import gymnasium

    configure_torch()
    model = _import_sb3_sac()("MlpPolicy", gymnasium.make("Pendulum-v1"), seed=seed, device="cpu", learning_rate=1e-3)
    returns: deque[float] = deque(maxlen=EPISODES)

    def after_step(variables, _):
        returns.extend(info["episode"]["r"] for info in variables["infos"] if "episode" in info)
        return len(returns) < EPISODES or statistics.fmean(returns) < TARGET

    begin = time.process_time()
    model.learn(PENDULUM_MAX_STEPS, callback=after_step)
    steps = model.num_timesteps
    return {"env_steps": steps, "cpu_seconds": time.process_time() - begin, "reached": steps < PENDULUM_MAX_STEPS}


def compare_speed(options: argparse.Namespace) -> None:
    """Print the time of an update, measured in alternating rounds, and the ratios of updates per CPU second."""
    peers: dict[str, Callable[[], dict]] = {"SB3": measure_sb3_updates}
    if options.sbx:
        peers["SBX"] = measure_sbx_updates
    times: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        measured = {name: run_in_subprocesses(measure, [()])[0]["ms"] for name, measure in peers.items()}
        for precision in PRECISIONS:
            measured[precision] = run_in_subprocesses(measure_updates, [(precision,)])[0]["ms"]
        for name, milliseconds in measured.items():
            times.setdefault(name, []).append(milliseconds)
        print(", ".join(f"{name} {milliseconds:.2f} ms" for name, milliseconds in measured.items()), flush=True)
    for precision in PRECISIONS:
        for peer in peers:
            ratios = [theirs / ours for theirs, ours in zip(times[peer], times[precision], strict=True)]
            print(f"{precision}: updates per CPU second relative to {peer} {format_spread(ratios, 2)}")


def compare_pendulum(options: argparse.Namespace) -> None:
    """Print the env steps and CPU seconds until the goal of Pendulum, for each seed and in total."""
    results: dict[str, list[dict]] = {"Samara": [], "Samara bfloat16": [], "SB3": []}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for name, changes in (("Samara", ()), ("Samara bfloat16", ("base_config.precision=bfloat16",))):
            arguments = ("gym/pendulum", seed, changes, options.episodes, "sac")
            results[name] += run_in_subprocesses(train_folder, [arguments])
        results["SB3"] += run_in_subprocesses(train_sb3_pendulum, [(seed,)])
        last = {name: runs[-1] for name, runs in results.items()}
        figures = (f"{name} {run['env_steps']:,} steps in {run['cpu_seconds']:.1f} s" for name, run in last.items())
        print(f"seed {seed}: {'; '.join(figures)}", flush=True)
    for name, runs in results.items():
        steps, seconds = ([run[key] for run in runs] for key in ("env_steps", "cpu_seconds"))
        print(
            f"{name}: {sum(run['reached'] for run in runs)} of {len(runs)}; env steps {format_spread(steps)}; "
            f"CPU seconds {format_spread(seconds, 1)}"
            + (f"; greedy {format_spread(run['greedy'] for run in runs)}" if name != "SB3" else "")
        )


def main() -> None:
    """Print the requested comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["speed", "pendulum"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds of speed")
    parser.add_argument("--sbx", action="store_true", help="compare speed with SBX, too (pip install sbx-rl)")
    parser.add_argument(
        "--episodes", type=int, default=20, help="number of greedy episodes at the end, outside the measured time"
    )
    options = parser.parse_args()
    print(describe_setup(), flush=True)
    {"speed": compare_speed, "pendulum": compare_pendulum}[options.what](options)


if __name__ == "__main__":
    main()
