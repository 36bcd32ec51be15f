"""Scenes of Godot in the engine itself, beside Godot RL Agents: ticks per second, training, engines that are killed.

Godot RL Agents (`pip install --no-deps godot-rl`) and Stable-Baselines3 are measured if they are installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from measure import compare, describe_setup, format_spread, run_in_subprocesses, train_folder

from algorithm.adapters.adapter import EnvConfig
from algorithm.adapters.godot.adapter import GodotAdapter
from algorithm.config.yaml_layers import load_defaults

PROJECT = Path(__file__).resolve().parents[1] / "examples" / "godot"
ENGINE = "godot3-server"
N_KILLS, SEEDS = 20, (1000, 1001, 1002)
FOLDERS, GOAL = ("godot/ball", "godot/chase"), 45.0


def open_ball(n_envs: int) -> GodotAdapter:
    """Return an adapter of ball.tscn, whose eight agents decide in every physics tick."""
    section = {"project_path": str(PROJECT), "additional_args": ["ball.tscn"]}
    defaults = load_defaults()["base_config"]["godot_args"]
    return GodotAdapter(EnvConfig(name="", n_envs=n_envs, section={**defaults, **section}))


def step_randomly(adapter: GodotAdapter, steps: Any, rng: np.random.Generator) -> Any:
    """Step with random actions, and return the next Steps."""
    n = len(steps["agent"].lane) if steps else 0
    return adapter.step({"agent": rng.uniform(-1, 1, (n, 2)).astype(np.float32)})


def measure_rate(step: Callable[[], Any], ticks: int) -> float:
    """Return the ticks per second of wall time."""
    begin = time.perf_counter()
    for _ in range(ticks):
        step()
    return ticks / (time.perf_counter() - begin)


def measure_samara(ticks: int) -> float:
    """Return the ticks per second of one engine with this project's adapter."""
    rng = np.random.default_rng(0)
    with closing(open_ball(1)) as adapter:
        steps = adapter.reset(0)
        return measure_rate(lambda: step_randomly(adapter, steps, rng), ticks)


@contextmanager
def make_program() -> Iterator[str]:
    """Write a program that runs the scene, and yield its path, as the client of Godot RL Agents needs it."""
    with TemporaryDirectory() as folder:
        program = Path(folder) / "ball.x86_64"
        program.write_text(f'#!/bin/sh\nexec {ENGINE} --path {PROJECT} ball.tscn "$@"\n')
        program.chmod(0o755)
        yield str(program)


def measure_client(ticks: int) -> float:
    """Return the ticks per second of one engine with the client of Godot RL Agents."""
    from godot_rl.core.godot_env import GodotEnv

    rng = np.random.default_rng(0)
    with make_program() as program:
        with closing(GodotEnv(program, framerate=60, speedup=8)) as env:
            env.reset()
            return measure_rate(lambda: env.step([rng.uniform(-1, 1, (8, 2)).astype(np.float32)]), ticks)


def train_sb3(seed: int) -> dict[str, Any]:
    """Train PPO of Stable-Baselines3 on the ball in two engines until the mean of 20 episodes is the goal."""
    import torch
    from godot_rl.wrappers.stable_baselines_wrapper import StableBaselinesGodotEnv
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import VecMonitor

    torch.set_num_threads(1)
    with make_program() as program:
        speed = {"framerate": 60, "speedup": 8, "action_repeat": 5}
        env = VecMonitor(StableBaselinesGodotEnv(program, n_parallel=2, seed=seed, **speed))
        torch.manual_seed(seed)  # the wrapper refuses the argument seed of PPO
        model = PPO("MultiInputPolicy", env, ent_coef=0.0001, n_steps=32, device="cpu")
        begin = time.process_time()

        def is_below(local: dict[str, Any], _: Any) -> bool:
            returns = [episode["r"] for episode in list(local["self"].ep_info_buffer)[-20:]]
            return len(returns) < 20 or float(np.mean(returns)) < GOAL

        model.learn(500_000, callback=is_below)
        figures = {"env_steps": model.num_timesteps, "cpu_seconds": time.process_time() - begin}
        env.close()
    return figures


def list_engines() -> set[int]:
    """Return the processes of all engines of this machine."""
    listed = subprocess.run(["pgrep", "-x", ENGINE], capture_output=True, text=True, check=False)
    return set(map(int, listed.stdout.split()))


def kill_engines(n_envs: int = 2) -> str:
    """Kill an engine `N_KILLS` times while the others go on; return how many were replaced, and when."""
    others = list_engines()
    adapter, rng, seconds = open_ball(n_envs), np.random.default_rng(0), list[float]()
    steps = adapter.reset(0)
    for number in range(N_KILLS):
        for _ in range(50):
            steps = step_randomly(adapter, steps, rng)
        os.kill(int(rng.choice(sorted(list_engines() - others))), signal.SIGKILL)
        begin = time.perf_counter()
        while adapter.restarts <= number or not steps or len(steps["agent"].lane) < 8 * n_envs:
            steps = step_randomly(adapter, steps, rng)
        seconds.append(time.perf_counter() - begin)
    adapter.close()
    return f"{adapter.restarts} of {N_KILLS} engines replaced, after {format_spread(seconds, 1)} seconds"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["speed", "kills", "goals"])
    parser.add_argument("--ticks", type=int, default=3000)
    options = parser.parse_args()
    print(describe_setup())
    if options.what == "speed":
        print(f"ticks per second of 8 agents: {format_spread(measure_samara(options.ticks) for _ in range(3))}")
        if importlib.util.find_spec("godot_rl"):
            print(compare(3, lambda: measure_samara(options.ticks), lambda: measure_client(options.ticks)))
    elif options.what == "kills":
        print(kill_engines())
    else:
        for folder in FOLDERS:
            for seed, result in zip(
                SEEDS, run_in_subprocesses(train_folder, [(folder, s) for s in SEEDS]), strict=True
            ):
                print(folder, seed, {name: result[name] for name in ("reached", "env_steps", "cpu_seconds", "greedy")})
        if importlib.util.find_spec("godot_rl"):
            for seed, result in zip(SEEDS, run_in_subprocesses(train_sb3, [(seed,) for seed in SEEDS]), strict=True):
                print("godot/ball, Stable-Baselines3", seed, result)


if __name__ == "__main__":
    main()
